"""A message, or a sender, that an upstream refuses for ever as if because of us: it keeps nobody, and ends.

And where it is because of us: nothing is returned, however long it lasts.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.queue.scheduler import State
from relay.verdicts.pause_record import LONGEST_NS
from tests.fakes.clock import LeapingClock
from tests.fakes.smarthost import Script, Smarthost, Turn
from tests.unit.sender.in_process_relay import Relay, policy_of

HOUR_NS = 3600 * SECOND_NS
DAY_NS = 24 * HOUR_NS
AN_OFFENCE = "421 4.7.0 too much from you, come back later"
NOT_HIS = "553 5.7.1 Sender address rejected: not owned by user mjd"
RETRY = "retry: {min: 1m, max: 1h, lifetime: 1d, warn_after: null}"
ONE = ", pipelining: false"


def poisoned(argument: str) -> Turn:
    return AN_OFFENCE if "poison" in argument else "250 ok"


def denied(argument: str) -> Turn:
    return "554 5.7.1 Relay access denied" if "poison@there" in argument else "250 ok"


class Play(Relay):
    """A house whose clock leaps to the next instant at which something can happen."""

    def __init__(self, folder: Path, host: Smarthost) -> None:
        self.leaping = LeapingClock()
        super().__init__(policy_of(folder, host.port, ONE, RETRY, connections=1), clock=self.leaping)

    @property
    def now_ns(self) -> int:
        return self.leaping.boottime_ns()

    async def quiet(self) -> None:
        """Wait until nothing can happen before some instant."""

        def is_quiet() -> bool:
            scheduler = self.line
            is_idle = self.dispatcher.in_flight == 0 and not any(q.state is State.ACTIVE for q in scheduler)
            return is_idle and (self.dispatcher.pausing.because != "" or not scheduler.has_ready(self.now_ns))

        while True:
            await self.until(is_quiet)
            # What ended a moment ago may have more to do in this turn of the loop, and in the spool's thread.
            for _ in range(3):
                await asyncio.sleep(0)
            # What waits to be taken is in no memory, and what is taken after this look is seen as queued.
            await self.sender.look()
            if is_quiet() and not self.sender.seen.accepted:
                return

    async def leap(self, most_ns: int = DAY_NS) -> None:
        """Let time pass until something can happen, and let it happen."""
        await self.quiet()
        scheduler, pausing = self.line, self.dispatcher.pausing
        at_ns = pausing.paused_until_ns if pausing.because else scheduler.next_due_at_ns()
        wait_ns = most_ns if at_ns is None else min(most_ns, at_ns - self.now_ns)
        self.leaping.ahead_ns += max(0, wait_ns) + 1
        self.dispatcher.wake()
        await asyncio.sleep(0)
        await self.quiet()

    async def leap_until(self, condition: Callable[[], object], within_ns: int, most_ns: int = DAY_NS) -> int:
        """Leap until something is true; return how long that took."""
        began_ns = self.now_ns
        await self.quiet()
        while not condition():
            assert self.now_ns - began_ns <= within_ns, "it never happened"
            await self.leap(most_ns)
        return self.now_ns - began_ns

    async def days(self, count: int, each_hour: Callable[[], Awaitable[None]]) -> None:
        """Let days pass, and something happen each hour."""
        until_ns = self.now_ns + count * DAY_NS
        while self.now_ns < until_ns:
            await each_hour()
            hour_ns = self.now_ns + HOUR_NS
            while self.now_ns < hour_ns:
                await self.leap(hour_ns - self.now_ns)


@pytest.mark.parametrize(
    ("script", "most_hours"),
    [(Script(mail=poisoned), 4), (Script(rcpt=denied), 7)],
    ids=["a pause each time", "a stop each time"],
)
async def test_a_message_refused_alone_is_returned_after_its_lifetime(
    tmp_path: Path, script: Script, most_hours: int
) -> None:
    async with Smarthost(script) as host, Play(tmp_path, host) as relay:
        poison = relay.accept("poison@there.example", sender="poison@here.example")
        await relay.leap_until(lambda: relay.dispatcher.pausing.because, 0)

        async def other_mail() -> None:
            relay.accept("good@there.example", sender="boss@here.example")

        await relay.days(1, other_mail)
        assert relay.queued(poison) is not None
        paused = relay.dispatcher.pausing.paused_ns(0, relay.now_ns)
        await relay.days(2, other_mail)

        # Its first refusals paused the upstream, as anybody's do; the later ones did not.
        assert relay.dispatcher.pausing.paused_ns(0, relay.now_ns) == paused < most_hours * HOUR_NS
        assert relay.queued(poison) is None
        totals = await relay.sender.spool_thread.totals()
        assert (totals.expired, totals.bounced) == (1, 0)
        reports = [r for r in host.relayed if r.reverse_path == ""]
        assert [r.recipients for r in reports] == [["poison@here.example"]]
        assert b"too much from you" in reports[0].content or b"Relay access denied" in reports[0].content


@pytest.mark.parametrize("senders", [1, 20])
async def test_many_such_messages_keep_others_no_longer_than_a_pause(tmp_path: Path, senders: int) -> None:
    async with Smarthost(Script(mail=poisoned)) as host, Play(tmp_path, host) as relay:
        for number in range(20):
            relay.accept(sender=f"poison{number % senders}@here.example")
        await relay.leap_until(lambda: relay.dispatcher.pausing.because, 0)
        for _ in range(30):
            await relay.leap()
        for number in range(10):
            relay.accept(f"good{number}@there.example", sender="boss@here.example")
            await relay.until(lambda: len(relay.sender.queue) == 21)
            before = len(host.relayed)
            waited_ns = await relay.leap_until(functools.partial(_is_more, host, before), LONGEST_NS)
            assert waited_ns <= LONGEST_NS + SECOND_NS


def _is_more(host: Smarthost, before: int) -> bool:
    return len(host.relayed) > before


async def test_another_message_of_the_sender_goes_before_the_refused(tmp_path: Path) -> None:
    def rcpt(argument: str) -> Turn:
        return AN_OFFENCE if "poison" in argument else "250 ok"

    async with Smarthost(Script(rcpt=rcpt)) as host, Play(tmp_path, host) as relay:
        for number in range(5):
            relay.accept(f"poison{number}@there.example")
        await relay.leap_until(lambda: relay.dispatcher.pausing.because, 0)
        for _ in range(20):
            await relay.leap()
        relay.accept("good@there.example")
        await relay.until(lambda: len(relay.sender.queue) == 6)

        await relay.leap_until(lambda: host.relayed, LONGEST_NS)


async def test_a_quota_returns_nothing_however_long_everybody_is_refused(tmp_path: Path) -> None:
    is_over = False

    def mail(_argument: str) -> Turn:
        return "250 ok" if is_over else AN_OFFENCE

    async with Smarthost(Script(mail=mail)) as host, Play(tmp_path, host) as relay:
        for number in range(10):
            relay.accept(sender=f"s{number}@here.example")
        await relay.leap_until(lambda: relay.dispatcher.pausing.because, 0)
        began_ns = relay.now_ns
        while relay.now_ns < began_ns + 3 * DAY_NS:
            await relay.leap()
        assert len(relay.sender.queue) == 10
        is_over = True
        await relay.leap_until(lambda: not len(relay.sender.queue), HOUR_NS)

        assert len(host.relayed) == 10
        totals = await relay.sender.spool_thread.totals()
        assert (totals.relayed, totals.expired, totals.bounced) == (10, 0, 0)


@pytest.mark.parametrize(("most", "per_ns"), [(1, 10 * 60 * SECOND_NS), (5, HOUR_NS), (3, DAY_NS)])
async def test_mail_beyond_a_quota_that_opens_again_is_not_returned(
    tmp_path: Path, most: int, per_ns: int
) -> None:
    """The worst for it: others are relayed between the refusals of each message, for days."""
    counted: dict[int, int] = {}

    def mail(_argument: str) -> Turn:
        window = relay.now_ns // per_ns
        counted[window] = counted.get(window, 0) + 1
        return "250 ok" if counted[window] <= most else AN_OFFENCE

    async with Smarthost(Script(mail=mail)) as host, Play(tmp_path, host) as relay:
        for number in range(20):
            relay.accept(sender=f"s{number}@here.example")
        await relay.leap_until(lambda: not len(relay.sender.queue), 30 * DAY_NS)

        totals = await relay.sender.spool_thread.totals()
        assert (totals.relayed, totals.expired, totals.bounced) == (20, 0, 0)


@pytest.mark.parametrize("sender", ["bad@here.example", ""])
async def test_mail_of_a_sender_refused_alone_ends_after_its_lifetime(tmp_path: Path, sender: str) -> None:
    def mail(argument: str) -> Turn:
        return NOT_HIS if f"<{sender}>" in argument else "250 ok"

    async with Smarthost(Script(mail=mail)) as host, Play(tmp_path, host) as relay:
        refused = [relay.accept(sender=sender) for _ in range(3)]
        await relay.leap_until(relay.line.sender_pauses.senders, 0)

        async def other_mail() -> None:
            relay.accept("good@there.example", sender="boss@here.example")

        await relay.days(2, other_mail)

        assert not any(relay.queued(queue_id) for queue_id in refused)
        totals = await relay.sender.spool_thread.totals()
        assert (totals.expired, totals.bounced) == (3, 0)
        reports = [r for r in host.relayed if r.reverse_path == ""]
        assert len(reports) == (3 if sender else 0)


async def test_mail_waits_as_long_as_all_senders_are_refused(tmp_path: Path) -> None:
    async with Smarthost(Script(mail=NOT_HIS)) as host, Play(tmp_path, host) as relay:
        for number in range(3):
            relay.accept(sender=f"s{number}@here.example")
        began_ns = relay.now_ns
        while relay.now_ns < began_ns + 5 * DAY_NS:
            await relay.leap()
        assert len(relay.sender.queue) == 3

        host.script = Script()
        await relay.leap_until(lambda: not len(relay.sender.queue), DAY_NS)
        assert len(host.relayed) == 3
