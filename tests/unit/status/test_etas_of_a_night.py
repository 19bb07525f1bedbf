"""A night in which the first of two accounts is cut off for an hour, and what each minute of it foretold.

The whole relay in virtual time (`tests.fakes.virtual_time`): mail that comes in at a drawn rate and in
batches, two accounts that take an exact second for each message and count by themselves, `failover_after` as
it is by default.  In each minute the queue is listed as `relay queue` does it, and every ETA is kept until
its message has gone.

What can be told exactly is an ETA behind which nothing surprising happened until its message had gone: no new
mail, no refusal, no return of an account.  How wrong the others were is measured, and told.
"""

import asyncio
import contextlib
import itertools
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from relay.spool.interface import Totals
from tests.fakes.clock import FakeClock
from tests.fakes.smarthost import Script, Smarthost, Turn, Until
from tests.fakes.virtual_time import VirtualTimeLoop, pass_time
from tests.unit.sender.in_process_relay import Relay
from tests.unit.status.test_eta_of_a_queue import Unsynced

pytestmark = pytest.mark.slow

MINUTE_NS = 60 * SECOND_NS
NIGHT_MINUTES = 6 * 60
MAIL_UNTIL = 5 * 60
"""Minutes; then none comes in any more."""
CUT_AT, CUT_UNTIL = 2 * 60 + 10, 3 * 60 + 10
"""Minutes: while the first account refuses."""
FAILOVER_MINUTES = 15
LIMITS = {"one": (10, 5), "two": (4, 5)}
"""Messages in minutes."""
EACH_MINUTE = 0.9
"""Messages, on the average."""
BATCH = 45
"""And so many at once in each hour."""
TRANSACTION_S = 1.0
TOLERANCE_NS = 100_000
"""Timers count in floating point, and a night has many in a row."""
CUT_OFF = "550 5.7.1 You have exceeded your sending limit"


@dataclass
class Account:
    """An upstream that notes when each message came and was taken, and refuses all while it is cut off."""

    clock: FakeClock
    counted_ns: list[int] = field(default_factory=list)
    taken: list[tuple[int, str]] = field(default_factory=list)
    """When the reply was sent, and to whom the message was."""
    refused_ns: list[int] = field(default_factory=list)
    is_cut_off: bool = False

    def __post_init__(self) -> None:
        self.host = Smarthost(Script(mail=self._mail, eod=self._eod))

    def _mail(self, _: str) -> Turn:
        self.counted_ns.append(self.clock.boottime_ns())
        return "250 2.1.0 ok"

    def _eod(self, _: str) -> Turn:
        if self.is_cut_off:
            self.refused_ns.append(self.clock.boottime_ns())
            return CUT_OFF
        ends_ns = self.clock.boottime_ns() + int(TRANSACTION_S * SECOND_NS)
        self.taken += [(ends_ns, each) for each in self.host.transactions[-1].recipients]
        is_over = asyncio.Event()
        asyncio.get_running_loop().call_later(TRANSACTION_S, is_over.set)
        return [Until(is_over), "250 2.0.0 ok"]


@dataclass(frozen=True, slots=True)
class Told:
    at_ns: int
    eta_ns: int
    upstream: str


@dataclass
class Night:
    """What was told and what came, by boottime."""

    accounts: dict[str, Account] = field(default_factory=dict)
    told: dict[str, list[Told]] = field(default_factory=dict)
    """By recipient."""
    untold: int = 0
    """How often a message was listed without an ETA."""
    accepted: set[str] = field(default_factory=set)
    arrivals_ns: list[int] = field(default_factory=list)
    """When mail came in."""
    totals: Totals = field(default_factory=Totals)

    @property
    def came_ns(self) -> dict[str, int]:
        return {each: at_ns for account in self.accounts.values() for at_ns, each in account.taken}

    @property
    def returned_ns(self) -> int:
        """When the first account took something again."""
        one = self.accounts["one"]
        return next(at_ns for at_ns, _ in one.taken if at_ns > one.refused_ns[-1])

    def errors_ns(self, from_ns: int, until_ns: int) -> list[int]:
        """Return for each ETA told in that time by how much later its message went."""
        came_ns = self.came_ns
        return [
            came_ns[recipient] - told.eta_ns
            for recipient, its in self.told.items()
            for told in its
            if from_ns <= told.at_ns < until_ns
        ]

    def undisturbed_ns(self) -> list[int]:
        """Return the error of each ETA behind which nothing surprising happened until its mail had gone."""
        came_ns = self.came_ns
        surprises_ns = sorted([*self.arrivals_ns, *self.accounts["one"].refused_ns, self.returned_ns])
        return [
            came_ns[recipient] - told.eta_ns
            for recipient, its in self.told.items()
            for told in its
            if bisect_right(surprises_ns, told.at_ns) == bisect_right(surprises_ns, came_ns[recipient])
        ]

    def figures(self) -> str:
        """Return how wrong the ETAs were, by when they were told."""
        cut_ns = self.accounts["one"].refused_ns[0]
        failed_over_ns = cut_ns + FAILOVER_MINUTES * MINUTE_NS
        spans = {
            "before the cut-off": (0, cut_ns),
            "in it, until mail fails over": (cut_ns, failed_over_ns),
            "from then on, until it returns": (failed_over_ns, self.returned_ns),
            "after that": (self.returned_ns, 1 << 62),
        }
        return "\n".join(f"  {name}: {words_of(self.errors_ns(*span))}" for name, span in spans.items())


def words_of(errors_ns: Sequence[int]) -> str:
    """Return how wrong ETAs were, in whole seconds."""
    sizes_s = sorted(abs(each) / SECOND_NS for each in errors_ns)
    late = sum(each > TOLERANCE_NS for each in errors_ns)
    early = sum(each < -TOLERANCE_NS for each in errors_ns)
    return (
        f"{len(sizes_s)} ETAs, median {sizes_s[len(sizes_s) // 2]:.0f} s off, p90 "
        f"{sizes_s[len(sizes_s) * 9 // 10]:.0f}, worst {sizes_s[-1]:.0f}; {late} came later, {early} earlier"
    )


def policy_of(folder: Path, accounts: dict[str, Account]) -> Policy:
    sections = "".join(
        f"  {name}: {{host: 127.0.0.1, port: {each.host.port}, tls: none, connections: 2, "
        f"history: {name}, limits: [{{messages: {LIMITS[name][0]}, per: {LIMITS[name][1]}m}}]}}\n"
        for name, each in accounts.items()
    )
    text = f"""
spool: ./spool
hostname: relay.test
listen: [{{address: "127.0.0.1:0", clients: [127.0.0.0/8]}}]
upstreams:
{sections}
routes:
  - {{recipient_domain: two.example, upstreams: [two]}}
  - {{upstreams: [one, two]}}
"""
    return parse_policy(text.encode(), folder / "policy.yaml")


class Arrivals:
    """Hands mail to the relay, and knows whose is which."""

    def __init__(self, relay: Relay, night: Night, clock: FakeClock) -> None:
        self.recipients: dict[QueueId, str] = {}
        self._relay, self._night, self._clock = relay, night, clock

    def accept(self, sender: str, domain: str = "x.example") -> None:
        recipient = f"r{len(self.recipients)}@{domain}"
        self._night.arrivals_ns.append(self._clock.boottime_ns())
        self.recipients[self._relay.accept(recipient, sender=sender)] = recipient


async def live_through(relay: Relay, night: Night, clock: FakeClock, dice: Random) -> None:
    """Have the night pass, minute by minute; look at the queue at the end of each."""
    arrivals = Arrivals(relay, night, clock)
    began_ns = clock.boottime_ns()
    for domain in ("x.example", "two.example"):
        # Until one was relayed, nobody knows how long that takes.
        arrivals.accept("first@here.example", domain)
    for minute in range(NIGHT_MINUTES):
        night.accounts["one"].is_cut_off = CUT_AT <= minute < CUT_UNTIL
        if minute < MAIL_UNTIL and minute % 60 == 1:
            for _ in range(BATCH):
                arrivals.accept("list@here.example")
        left_s = 60.0
        while minute < MAIL_UNTIL and (wait_s := dice.expovariate(EACH_MINUTE / 60)) < left_s:
            await pass_time(wait_s)
            left_s -= wait_s
            arrivals.accept(f"person{dice.randrange(20)}@here.example")
        # To the minute, however the timers before it were rounded.
        await pass_time((began_ns + (minute + 1) * MINUTE_NS - clock.boottime_ns()) / SECOND_NS)
        look(relay, night, clock, arrivals.recipients)
    assert not len(relay.sender.queue), "it never ended"
    night.accepted = set(arrivals.recipients.values())


def look(relay: Relay, night: Night, clock: FakeClock, recipients: dict[QueueId, str]) -> None:
    now_ns, to_boottime_ns = clock.boottime_ns(), clock.boottime_ns() - clock.wall_ns()
    for message in relay.watch.listing().messages():
        if message.eta_at_ns is None:
            night.untold += 1
            continue
        told = Told(now_ns, message.eta_at_ns + to_boottime_ns, message.upstream)
        night.told.setdefault(recipients[message.queue_id], []).append(told)


def lived(seed: int) -> Night:
    clock, night = FakeClock(), Night()

    async def play(folder: Path) -> None:
        night.accounts = {name: Account(clock) for name in LIMITS}
        async with contextlib.AsyncExitStack() as ends:
            for account in night.accounts.values():
                await ends.enter_async_context(account.host)
            relay = Relay(policy_of(folder, night.accounts), Unsynced(), clock)
            await ends.enter_async_context(relay)
            await live_through(relay, night, clock, Random(seed))
            night.totals = await relay.sender.spool_thread.totals()

    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(clock)) as runner,
    ):
        runner.run(play(Path(folder)))
    return night


def never_over(name: str, account: Account) -> bool:
    """Return whether no window that the account counted, refused mail and all, held more than it takes."""
    count, minutes = LIMITS[name]
    instants = account.counted_ns
    return all(
        later - first >= minutes * MINUTE_NS for first, later in zip(instants, instants[count:], strict=False)
    )


def assert_all_went_well(night: Night) -> None:
    one, two = night.accounts.values()
    taken = Counter(each for account in night.accounts.values() for _, each in account.taken)
    assert taken == Counter(night.accepted), "each once, and nobody else"
    assert night.totals == Totals(accepted=len(taken), relayed=len(taken))
    assert all(never_over(*each) for each in night.accounts.items())

    # It leaves by the second account, `failover_after` behind the first refusal and not before.
    (_, (failed_over_ns, _), *_) = two.taken
    waited_ns = failed_over_ns - int(TRANSACTION_S * SECOND_NS) - one.refused_ns[0]
    assert 0 <= waited_ns - FAILOVER_MINUTES * MINUTE_NS <= SECOND_NS
    # It returns: one message first, and none beside it; then the first account has all.
    returned_ns = night.returned_ns
    came_back = [at_ns for at_ns in one.counted_ns if at_ns > one.refused_ns[-1]]
    assert came_back[0] < returned_ns <= came_back[1]
    assert [at_ns for at_ns, _ in two.taken if at_ns > returned_ns + 2 * TRANSACTION_S * SECOND_NS] == []
    # While it was down, it was asked as seldom as its pauses say: not once for each message.
    assert len(one.refused_ns) < 12


def assert_told_truly(night: Night) -> None:
    assert night.untold == 0, "each pause has an end that is known"
    undisturbed_ns = night.undisturbed_ns()
    assert len(undisturbed_ns) > 100
    assert max(map(abs, undisturbed_ns)) <= TOLERANCE_NS
    # Once it has failed over, mail goes when that was told or earlier: by the first account, once it is back.
    failed_over_ns = night.accounts["one"].refused_ns[0] + FAILOVER_MINUTES * MINUTE_NS
    assert max(night.errors_ns(failed_over_ns, night.returned_ns)) <= TOLERANCE_NS
    # New mail goes behind what waits, and so changes nothing either, once the first account is back.
    afterwards_ns = night.errors_ns(night.returned_ns, 1 << 62)
    assert max(map(abs, afterwards_ns)) <= TOLERANCE_NS
    # Of mail that waits for an account that is down, the least that can be told is when it is tried.
    came_ns = night.came_ns
    assert all(told.at_ns <= told.eta_ns for its in night.told.values() for told in its)
    assert all(came_ns[recipient] >= its[-1].at_ns for recipient, its in night.told.items())


def test_mail_of_an_account_cut_off_goes_elsewhere_and_returns(tell: Callable[[str], None]) -> None:
    night = lived(1)
    tell(f"the ETAs of a night, {len(night.accepted)} messages:\n{night.figures()}")
    assert_all_went_well(night)
    assert_told_truly(night)


@pytest.mark.crash
def test_drawn_nights_are_told_truly(
    tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    until_s = time.monotonic() + crash_budget_s
    for seed in itertools.count(crash_seed):
        night = lived(seed)
        tell(f"seed {seed}, {len(night.accepted)} messages:\n{night.figures()}")
        assert_all_went_well(night)
        assert_told_truly(night)
        if time.monotonic() > until_s:
            return
