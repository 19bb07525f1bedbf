"""A policy that is written in pieces, with pauses: nothing goes that neither whole policy allows."""

import asyncio
import contextlib
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from hypothesis import example, given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.daemon.policy_watch import PolicyWatch, Waiting
from relay.policy.document import read_document
from relay.policy.faults import PolicyError
from relay.policy.loosening import LONG_REST_NS, REST_NS, Degree, loosening
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from tests.fakes.clock import FakeClock

HEAD = """\
spool: ./spool
listen: [{address: "127.0.0.1:0", clients: [127.0.0.0/8]}]
"""
HORIZONS = (1, 60, 3600, 86400)
LIMIT = st.tuples(st.sampled_from([1, 5, 50, 60, 600]), st.sampled_from(["1s", "10s", "1m", "1h"]))


def text_of(limits: Sequence[tuple[int, str]], connections: int, *, is_flow: bool, tail: str) -> str:
    upstream = f"upstreams:\n  isp:\n    host: smtp.example.net\n    connections: {connections}\n"
    if is_flow:
        listed = ", ".join(f"{{messages: {count}, per: {per}}}" for count, per in limits)
        return f"{HEAD}{upstream}    limits: [{listed}]\n{tail}"
    listed = "".join(f"      - messages: {count}\n        per: {per}\n" for count, per in limits)
    key = "    limits:\n" if limits else ""
    return f"{HEAD}{upstream}{key}{listed}{tail}"


TEXT = st.builds(
    text_of,
    st.lists(LIMIT, max_size=3, unique=True),
    st.integers(1, 9),
    is_flow=st.booleans(),
    tail=st.sampled_from(
        ["", "retry: {min: 1m}\n", "lanes:\n  bulk:\n    sender: '@b.example'\n    ceiling: 50\n"]
    ),
)
# Another text, or the same with one number more in front of its limits.
EDIT = st.one_of(
    st.tuples(TEXT, TEXT),
    TEXT.map(lambda text: (text, text.replace("connections: ", "connections: 1"))),
)


def most(policy: Policy, horizon_seconds: int) -> float:
    """Return how many messages may go in so many seconds, at most."""
    limits = policy.upstreams["isp"].limits
    return min(
        (limit.count * math.ceil(horizon_seconds * SECOND_NS / limit.per_ns) for limit in limits),
        default=math.inf,
    )


class Followed:
    """A policy file, and what a relay that follows it goes by."""

    def __init__(self, folder: Path, text: str) -> None:
        self.path = folder / "policy.yaml"
        self.path.write_text(text)
        self.clock = FakeClock()
        self.in_force = self.counts = self.policy_in(text)
        self.told = 0
        self.refusals: list[PolicyError] = []
        self.waiting: Waiting | None = None
        self.file = PolicyWatch(self.path, self.in_force, text.encode(), self, self.clock)

    def policy_in(self, text: str) -> Policy:
        return parse_policy(text.encode(), self.path)

    async def apply(self, policy: Policy, _sha256: str) -> None:
        self.in_force = self.counts = policy

    async def hold(self, policy: Policy) -> None:
        self.counts = policy

    def refuse(self, error: PolicyError) -> None:
        self.refusals.append(error)

    def wait(self, waiting: Waiting | None) -> None:
        self.waiting = waiting
        self.told += waiting is not None

    def is_waiting(self) -> bool:
        return self.waiting is not None

    def rest_ns(self) -> float:
        """Return for how long the writer may pause at most, where nothing else tells that it goes on."""
        if self.waiting is None or self.waiting.until_ns is None:
            return math.inf
        return self.waiting.until_ns - self.clock.boottime_ns()

    async def look(self, after_ns: float = 0, *, is_asked: bool = False) -> None:
        """Let time pass, and look as often as it takes to see all that it brings."""
        await self.file.look(is_asked=False)
        self.clock.advance(int(after_ns))
        await self.file.look(is_asked=is_asked)


def pieces(text: str, cuts: Sequence[tuple[int, bool]]) -> list[str]:
    """Return a text in pieces: cut anywhere, or behind a line."""
    found = {len(text)}
    for cut, is_behind_a_line in cuts:
        end = cut % len(text)
        found.add(text.index("\n", end) + 1 if is_behind_a_line else end)
    ends = sorted(found)
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


TWO_LIMITS = text_of([(60, "1s"), (600, "1h")], 1, is_flow=False, tail="")


@example(
    (TWO_LIMITS, TWO_LIMITS.replace("connections: 1", "connections: 11")),
    [(185, True)],
    [0] * 6,
    (False, True),
)
@given(
    EDIT,
    st.lists(st.tuples(st.integers(0, 500), st.booleans()), max_size=4),
    st.lists(st.integers(0, 10_000 * SECOND_NS), min_size=6, max_size=6),
    st.tuples(st.booleans(), st.booleans()),
)
def test_no_piece_of_an_edit_allows_more_than_a_whole_policy(
    edit: tuple[str, str], cuts: list[tuple[int, bool]], pauses_ns: list[int], style: tuple[bool, bool]
) -> None:
    old, new = edit
    is_kept_open, is_new_file = style
    with tempfile.TemporaryDirectory() as folder:
        followed = Followed(Path(folder), old)
        bounds = [max(most(followed.policy_in(text), each) for text in (old, new)) for each in HORIZONS]

        def check() -> None:
            for bound, horizon in zip(bounds, HORIZONS, strict=True):
                assert most(followed.in_force, horizon) <= bound
                assert most(followed.counts, horizon) <= most(followed.in_force, horizon)

        async def write() -> None:
            if is_new_file:
                followed.path.unlink()
            writer: IO[str] = followed.path.open("w")
            for piece, pause_ns in zip(pieces(new, cuts), pauses_ns, strict=False):
                writer.write(piece)
                writer.flush()
                if not is_kept_open:
                    writer.close()
                await followed.look()
                await followed.look(min(pause_ns, followed.rest_ns() - 1))
                check()
                with contextlib.suppress(PolicyError):
                    # What is tighter in it waits for nothing.
                    written = followed.policy_in(followed.path.read_text())
                    for horizon in HORIZONS:
                        assert most(followed.counts, horizon) <= most(written, horizon)
                if not is_kept_open:
                    writer = followed.path.open("a")
            writer.close()
            await followed.look(LONG_REST_NS)
            check()
            unfinished = read_document(new.encode()).unfinished()
            if loosening(followed.in_force, followed.policy_in(new), unfinished).degree is Degree.UNBOUNDED:
                assert followed.waiting is not None
                assert followed.waiting.until_ns is None
                await followed.look(is_asked=True)

        asyncio.run(write())

        assert followed.in_force == followed.counts == followed.policy_in(new)
        assert followed.waiting is None


WIDE, NARROW = (text_of([(count, "1s")], 4, is_flow=True, tail="") for count in (60, 5))


async def test_half_of_an_edit_is_never_in_force(tmp_path: Path) -> None:
    """The first half is a policy as well, one that allows less."""
    followed = Followed(tmp_path, WIDE)
    for text in (NARROW, whole := WIDE.replace("connections: 4", "connections: 3")):
        followed.path.write_text(text)
        await followed.file.look(is_asked=False)
        assert followed.counts == followed.policy_in(WIDE)

    await followed.file.look(is_asked=False)
    assert followed.in_force == followed.counts == followed.policy_in(whole)
    assert followed.refusals == []


async def test_limits_that_are_not_there_yet_are_waited_for(tmp_path: Path) -> None:
    """A full disk: the writer is gone, and its file has no limits, for good."""
    followed = Followed(tmp_path, NARROW)
    followed.path.write_text(half := NARROW.partition("    limits")[0])
    for _ in range(3):
        await followed.look(LONG_REST_NS)
        assert followed.in_force == followed.policy_in(NARROW)

    await followed.look(is_asked=True)
    assert followed.in_force == followed.policy_in(half)


async def test_what_is_asked_for_is_in_force_at_once(tmp_path: Path) -> None:
    followed = Followed(tmp_path, NARROW)
    followed.path.write_text(WIDE)
    await followed.look(is_asked=True)

    assert followed.in_force == followed.policy_in(WIDE)


async def test_a_tighter_limit_does_not_wait_for_what_is_looser(tmp_path: Path) -> None:
    followed = Followed(tmp_path, WIDE)
    edit = NARROW.replace("connections: 4", "connections: 9")
    followed.path.write_text(edit)
    await followed.look()
    assert followed.in_force == followed.policy_in(WIDE)
    assert [most(followed.counts, horizon) for horizon in (1, 60)] == [5, 300]
    assert followed.counts.upstreams["isp"].connections == 4
    assert followed.waiting is not None
    assert followed.waiting.because.endswith("; its tighter limits count already")

    await followed.look(REST_NS)
    assert followed.counts == followed.in_force == followed.policy_in(edit)
