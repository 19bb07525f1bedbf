"""The night of the article: 500 subscribers through an ISP of 100 an hour that says 550 to whoever exceeds.

The real practice smarthost, a real spool and history; the hours are those of a clock that
a test moves on, from each instant at which something may happen to the next.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from relay.clock import SECOND_NS
from relay.mail.envelope import Envelope
from relay.policy.limits import LimitSettings
from relay.policy.model import Policy
from relay.practice.account import PracticeBehaviour
from relay.practice.smarthost import PracticeSmarthost
from relay.practice.witness import Sighting, Witnessed
from relay.queue.scheduler import State
from tests.fakes.clock import LeapingClock
from tests.unit.practice.tools import LOOPBACK, PASSWORD, USER
from tests.unit.sender.in_process_relay import Relay, policy_of

HOUR_NS = 3600 * SECOND_NS
SUBSCRIBERS = [f"r{number}@list{number % 7}.example" for number in range(500)]
WAYS = pytest.mark.parametrize(
    "many", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["one message", "500 messages"]
)
OTHERS = Envelope(USER, ("friend@else.example",), 0, "phone", "phone", "ESMTP")


@asynccontextmanager
async def _isp(clock: LeapingClock) -> AsyncIterator[PracticeSmarthost]:
    """Run an ISP of 100 recipients an hour, that cuts off for an hour."""
    allows = LimitSettings.model_validate({"recipients": 100, "per": "1h"})
    behaviour = PracticeBehaviour(allows, HOUR_NS)
    isp = PracticeSmarthost(LOOPBACK, USER, PASSWORD, behaviour, clock=clock, rng=Random(1))
    await isp.start()
    try:
        yield isp
    finally:
        await isp.close()


def _policy(folder: Path, isp: PracticeSmarthost, recipients_an_hour: int, more: str = "") -> Policy:
    secret = folder / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o600)
    auth = f", auth: {{user: {USER!r}, password_file: {secret}}}"
    limits = f", limits: [{{recipients: {recipients_an_hour}, per: 1h}}]"
    return policy_of(folder, isp.port, f"{auth}{limits}{more}")


def _is_quiet(relay: Relay) -> bool:
    """Return whether nothing is under way, from the choice of a message to its settlement."""
    return not any(queued.state is State.ACTIVE for queued in relay.sender.queue)


async def _rest(relay: Relay) -> None:
    """Wait until nothing more can happen now."""
    dispatcher, scheduler = relay.dispatcher, relay.line
    await relay.until(
        lambda: (
            _is_quiet(relay)
            and (dispatcher.pausing.because or dispatcher.throttle.room() == 0 or not len(scheduler))
        )
    )


async def _leap(relay: Relay, clock: LeapingClock) -> bool:
    """Let all happen that can happen now, and move on to when more can; False: the queue is empty."""
    dispatcher = relay.dispatcher
    await _rest(relay)
    if not len(relay.sender.queue):
        return False
    until_ns = (
        dispatcher.pausing.paused_until_ns
        if dispatcher.pausing.because
        else dispatcher.throttle.opens_at_ns()
    )
    clock.ahead_ns += max(0, until_ns - clock.boottime_ns()) + 1
    dispatcher.wake()
    # A pause ends with the next beat, and may begin anew in it.
    await relay.until(
        lambda: not dispatcher.pausing.because or dispatcher.pausing.paused_until_ns > clock.boottime_ns()
    )
    return True


def _hand_over(relay: Relay, many: bool) -> None:
    """Hand the list's message over: as one for all, or as one for each, as with VERP."""
    for recipients in [[each] for each in SUBSCRIBERS] if many else [SUBSCRIBERS]:
        relay.accept(*recipients, sender="list-bounces@here.example")


def _assert_all_is_well(relay: Relay, isp: PracticeSmarthost, cut_offs: int) -> None:
    """Nobody is bounced, nobody is lost, nobody gets it twice, and so often the account was cut off."""
    _assert_everybody_got_it(relay, isp)
    assert isp.ledger.cut_offs == cut_offs


def _assert_everybody_got_it(relay: Relay, isp: PracticeSmarthost) -> None:
    relayed: Sequence[Sighting] = [entry for entry in isp.ledger.entries if entry.fate is Witnessed.RELAYED]
    got = [recipient for entry in relayed for recipient in entry.envelope.recipients]
    assert sorted(got) == sorted(SUBSCRIBERS)
    totals = relay.sender.seen.totals
    assert (totals.bounced, totals.expired, totals.queued) == (0, 0, 0)
    # A report to the list would have come through here too.
    assert {entry.envelope.reverse_path for entry in relayed} == {"list-bounces@here.example"}


def _assert_the_log_tells(relay: Relay) -> None:
    """See that the log says which upstream rests, until when, and what it said."""
    relay.events.flush()
    told = [line for line in relay.log.getvalue().splitlines() if "exceeded your sending limit" in line]
    rests = [line for line in told if "upstream isp paused until" in line]
    assert rests, relay.log.getvalue()[-3000:]


def _assert_the_log_tells_what_to_change(relay: Relay) -> None:
    relay.events.flush()
    told = r"upstream isp: cut off .*; policy says 100 per 1h; the upstream says 50; suggested 50"
    assert re.search(told, relay.log.getvalue()), relay.log.getvalue()[-3000:]
    assert "does not explain" not in relay.log.getvalue()


async def _halve(relay: Relay, isp: PracticeSmarthost) -> None:
    """Have the ISP lower its limit once the first hundred has gone."""
    await relay.until(lambda: len(relay.sender.queue))
    await _rest(relay)
    assert isp.ledger.most_in_any_window() == 100
    isp.ledger.limit = LimitSettings.model_validate({"recipients": 50, "per": "1h"})


@WAYS
async def test_500_subscribers_get_it_in_five_hours_and_the_isp_sees_nothing_odd(
    tmp_path: Path, many: bool
) -> None:
    clock = LeapingClock()
    async with _isp(clock) as isp, Relay(_policy(tmp_path, isp, 100), clock=clock) as relay:
        began_ns = clock.boottime_ns()
        _hand_over(relay, many)
        await relay.until(lambda: len(relay.sender.queue))
        while await _leap(relay, clock):
            pass
        await relay.until_empty()

        assert isp.ledger.most_in_any_window() == 100
        assert clock.boottime_ns() - began_ns < 4.1 * HOUR_NS
        _assert_all_is_well(relay, isp, cut_offs=0)


@WAYS
async def test_when_a_phone_on_the_same_account_exceeds_the_limit_the_list_waits_and_nobody_is_bounced(
    tmp_path: Path, many: bool
) -> None:
    clock = LeapingClock()
    async with _isp(clock) as isp, Relay(_policy(tmp_path, isp, 100), clock=clock) as relay:
        _hand_over(relay, many)
        await relay.until(lambda: isp.ledger.most_in_any_window() == 100 and _is_quiet(relay))
        clock.ahead_ns += HOUR_NS // 2
        # The relay cannot know of it: it does not go through the relay.
        for _ in range(5):
            now_ns = clock.boottime_ns()
            assert not isp.ledger.admit(now_ns, 1, now_ns)
            isp.ledger.enter(Sighting(now_ns, OTHERS, 0, "", "550 you have exceeded it", Witnessed.REFUSED))
        while await _leap(relay, clock):
            pass
        await relay.until_empty()

        _assert_all_is_well(relay, isp, cut_offs=1)
        _assert_the_log_tells(relay)
        # Nothing of ours was too much, and an owner must not look for the fault here.
        (found,) = re.findall(r"cut off.*", relay.log.getvalue())
        assert "our own history does not explain it" in found
        assert "something else uses the account, or the upstream counts otherwise" in found
        assert "; policy says 100 per 1h; the upstream says 100; suggested 95 event=" in found


@WAYS
async def test_when_the_isp_halves_its_limit_it_cuts_off_once_and_the_owner_is_told_and_can_follow(
    tmp_path: Path, many: bool
) -> None:
    clock = LeapingClock()
    async with _isp(clock) as isp, Relay(_policy(tmp_path, isp, 100), clock=clock) as relay:
        _hand_over(relay, many)
        await _halve(relay, isp)
        while not relay.dispatcher.pausing.because:
            assert await _leap(relay, clock)
            await _rest(relay)

        _assert_the_log_tells(relay)
        _assert_the_log_tells_what_to_change(relay)
        await relay.sender.apply(_policy(tmp_path, isp, 50))
        while await _leap(relay, clock):
            pass
        await relay.until_empty()

        _assert_all_is_well(relay, isp, cut_offs=1)


@WAYS
async def test_when_nobody_is_awake_a_relay_that_may_tighten_is_cut_off_once_and_says_what_to_change(
    tmp_path: Path, many: bool
) -> None:
    clock = LeapingClock()
    async with (
        _isp(clock) as isp,
        Relay(_policy(tmp_path, isp, 100, ", adapt: tighten"), clock=clock) as relay,
    ):
        _hand_over(relay, many)
        await _halve(relay, isp)
        began_ns = clock.boottime_ns()
        while await _leap(relay, clock):
            pass
        await relay.until_empty()

        _assert_all_is_well(relay, isp, cut_offs=1)
        _assert_the_log_tells(relay)
        _assert_the_log_tells_what_to_change(relay)
        assert "effective 50 of 100 recipients" in relay.log.getvalue()
        # 400 were left, at 50 an hour, after the hour of the cut-off and the one before.
        assert clock.boottime_ns() - began_ns < 10.1 * HOUR_NS


@WAYS
async def test_when_nobody_is_awake_a_relay_that_may_not_is_never_stuck_and_nobody_is_bounced(
    tmp_path: Path, many: bool
) -> None:
    clock = LeapingClock()
    async with _isp(clock) as isp, Relay(_policy(tmp_path, isp, 100), clock=clock) as relay:
        _hand_over(relay, many)
        await _halve(relay, isp)
        began_ns = clock.boottime_ns()
        while await _leap(relay, clock):
            hours = (clock.boottime_ns() - began_ns) / HOUR_NS
            assert hours < 30, "it is tried again and again, and never gets less"
        await relay.until_empty()

        _assert_everybody_got_it(relay, isp)
        _assert_the_log_tells(relay)
        _assert_the_log_tells_what_to_change(relay)
        # As it is told to, it tries the policy's 100 in each window.  Each costs a cut-off, and some looks.
        assert isp.ledger.cut_offs <= 20
        assert isp.ledger.refused <= 5 * isp.ledger.cut_offs
