"""What was foretold of each message of one line, against what then happened, in a whole relay.

Time is virtual (`tests.fakes.virtual_time`): everything happens at an exact instant.  An estimate is
exact for one line without keys; lanes, keys and several upstreams are only estimated.
"""

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.policy.differences import policy_text
from relay.policy.source import parse_policy
from relay.status.estimate.plan import Plan
from relay.status.snapshot import MessageView, UpstreamStatus
from relay.verdicts.operator_pause import PauseAsked
from tests.fakes.clock import FakeClock
from tests.fakes.smarthost import Script, Smarthost, Turn, Until
from tests.fakes.unsynced import Unsynced
from tests.fakes.virtual_time import VirtualTimeLoop, pass_time
from tests.unit.sender.in_process_relay import Relay, policy_of

TOLERANCE_NS = 1_000
"""Timers count in floating point, and may be a nanosecond late: once for each slot in a row."""


@dataclass(frozen=True)
class Scene:
    """What there is before the look, and the limits of an edit at the look, if any."""

    limits: tuple[str, ...]
    mails: tuple[int, ...]
    """How many recipients each has."""
    connections: int = 1
    transaction_s: float = 0.0
    edit: tuple[str, ...] | None = None


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    units, counts, periods = (
        st.sampled_from(["messages", "recipients"]),
        st.integers(2, 5),
        st.integers(2, 20),
    )
    limit = st.builds("{{{}: {}, per: {}s}}".format, units, counts, periods)
    connections = draw(st.integers(1, 3))
    # Parts that end at the same instant come to the end of the line in an order that nobody knows.
    recipients = st.integers(1, 1 if connections > 1 else 2)
    return Scene(
        tuple(draw(st.lists(limit, max_size=2, unique=True))),
        tuple(draw(st.lists(recipients, min_size=1, max_size=10))),
        connections,
        draw(st.sampled_from([0.0, 0.25, 1.5])),
        draw(st.none() | st.lists(limit, max_size=2, unique=True).map(tuple)),
    )


class Play:
    """One scene in a whole relay: what was foretold, and what happened."""

    def __init__(self, scene: Scene, folder: Path, clock: FakeClock) -> None:
        self.scene, self.folder, self.clock = scene, folder, clock
        self.foretold: dict[QueueId, MessageView] = {}
        self.upstream: UpstreamStatus
        self.plan: Plan | None = None
        self.relayed_at_ns: dict[str, int] = {}
        """When the last recipient of each was relayed, by the wall clock."""

    async def run(self) -> None:
        """Let it happen."""
        self._host = Smarthost(Script(eod=self._eod))
        rest = "retry: {min: 7s, max: 9s, lifetime: 1d}"

        def limits(its: tuple[str, ...]) -> str:
            return f", limits: [{', '.join(its)}]"

        async with self._host as host:
            policy = policy_of(
                self.folder, host.port, limits(self.scene.limits), rest, self.scene.connections
            )
            async with Relay(policy, Unsynced(), self.clock) as relay:
                # Until one was relayed, nobody knows how long that takes.
                relay.accept("warm.0@x.example")
                while self.relayed_at_ns.get("warm", self.clock.wall_ns()) >= self.clock.wall_ns():
                    await pass_time(0.1)
                self.ids = {
                    relay.accept(*(f"{number}.{place}@x.example" for place in range(count))): f"{number}"
                    for number, count in enumerate(self.scene.mails)
                }
                await pass_time(1.037)
                self.foretold = {message.queue_id: message for message in relay.watch.listing().messages()}
                self.upstream = relay.watch.snapshot().upstreams[0]
                if self.scene.edit is not None:
                    edited = policy_of(
                        self.folder, host.port, limits(self.scene.edit), rest, self.scene.connections
                    )
                    path, text = self.folder / "edited.yaml", policy_text(edited).encode()
                    plan = await relay.operator.plan(text, path)
                    assert isinstance(plan, Plan), plan
                    self.plan = plan
                    await relay.sender.apply(parse_policy(text, path))
                for _ in range(3000):
                    if not len(relay.sender.queue):
                        return
                    await pass_time(1)
                raise AssertionError(f"it never ended:\n{relay.log.getvalue()}")

    def _eod(self, _: str) -> Turn:
        takes_ns = int(self.scene.transaction_s * SECOND_NS)
        name = self._host.transactions[-1].recipients[0].partition(".")[0]
        self.relayed_at_ns[name] = self.clock.wall_ns() + takes_ns
        is_over = asyncio.Event()
        asyncio.get_running_loop().call_later(self.scene.transaction_s, is_over.set)
        return [Until(is_over), "250 2.0.0 ok"]


def play_out(play: Coroutine[object, object, None], clock: FakeClock) -> None:
    """Run a play in virtual time, in which writing takes none, since no estimate knows of it."""
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(clock)) as runner:
        runner.run(play)


def played(scene: Scene) -> Play:
    """Return a scene that is over."""
    with tempfile.TemporaryDirectory() as folder:
        clock = FakeClock()
        play = Play(scene, Path(folder), clock)
        play_out(play.run(), clock)
        return play


# A window that holds more than the new N: nothing goes until enough has left it.
LOWERED = Scene(("{messages: 5, per: 9s}",), (1,) * 9, edit=("{messages: 2, per: 9s}",))


@settings(max_examples=12)
@example(LOWERED)
@example(replace(LOWERED, edit=None))
@given(scenes())
def test_what_was_foretold_of_one_line_is_what_happens(scene: Scene) -> None:
    play = played(scene)
    last_ns = max((play.relayed_at_ns[play.ids[queue_id]] for queue_id in play.foretold), default=0)
    if play.plan is not None:
        assert play.plan.new.messages == len(play.foretold)
        if play.foretold:
            assert play.plan.new.drained_at_ns is not None
            assert abs(play.plan.new.drained_at_ns - last_ns) <= TOLERANCE_NS
        return
    etas = []
    for queue_id, message in play.foretold.items():
        assert message.eta_at_ns is not None
        off_ns = play.relayed_at_ns[play.ids[queue_id]] - message.eta_at_ns
        assert abs(off_ns) <= TOLERANCE_NS, (queue_id, message, off_ns / SECOND_NS)
        etas.append(message.eta_at_ns)
    if etas:
        assert play.upstream.drained_at_ns == max(etas)


def test_a_limit_that_holds_more_than_its_new_n_is_over_until_it_has_room() -> None:
    play = played(LOWERED)

    assert play.plan is not None
    (over,) = play.plan.over
    assert (over.limit, over.used, over.count, over.key) == ("2 messages per 9s", 5, 2, None)
    first_at_ns = min(play.relayed_at_ns[play.ids[queue_id]] for queue_id in play.foretold)
    assert abs(first_at_ns - over.opens_at_ns) <= TOLERANCE_NS


async def test_an_operators_pause_holds_mail_by_either_policy(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 9, ", limits: [{messages: 8, per: 1m}]")
    text = policy_text(policy).replace("messages: 8", "messages: 5").encode()
    async with Relay(policy, clock=FakeClock()) as relay:
        await relay.operator.pause("isp", PauseAsked("anna"))
        relay.accept("b@there.example")
        await relay.until(lambda: len(relay.sender.queue) == 1)

        plan = await relay.operator.plan(text, tmp_path / "edited.yaml")

        assert isinstance(plan, Plan)
        assert [each.words for each in plan.differences] == [
            "upstreams.isp.limits: {messages: 8, per: 1m}",
            "upstreams.isp.limits: {messages: 5, per: 1m}",
        ]
        for course in plan.old, plan.new:
            assert course.held_by.startswith("operator: anna, since ")
            assert (course.messages, course.drained_at_ns, course.longest_wait_ns) == (1, None, None)
        assert plan.waits_longer_than(10**18)
