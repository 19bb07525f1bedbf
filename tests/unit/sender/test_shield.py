"""An account cut off in words that nobody knows bounces nobody; one sender's fault stops nobody else.

And the night of the article: 500 subscribers through an ISP of 100 an hour that says 550 to whoever exceeds.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.control.operations import OK
from relay.policy.lane import LimitSettings
from relay.policy.model import Policy
from relay.policy.units import HostPort
from relay.practice.smarthost import PracticeAccount, PracticeSmarthost, Practised
from relay.queue.queued import Queued, State
from relay.smtp.sasl import Credentials
from relay.verdicts.account import Health, within_ns
from tests.fakes.clock import FakeClock
from tests.fakes.smarthost import Recorded, Script, Smarthost, Turn
from tests.fakes.virtual_time import pass_time
from tests.unit.sender.in_process_relay import Relay, hurry, policy_of, virtual_clock

CUT_OFF = "550 Administrative prohibition"
PATIENT = "retry: {min: 1h, max: 4h, lifetime: 5d, warn_after: null}"
HOUR_NS = 3600 * SECOND_NS
SUBSCRIBERS = [f"s{number}@there.example" for number in range(30)]


def _send_all(relay: Relay) -> None:
    """Accept a message to each subscriber, of three senders in turn."""
    for number, subscriber in enumerate(SUBSCRIBERS):
        relay.accept(subscriber, sender=f"u{number % 3}@here.example")


async def _stopped(relay: Relay) -> None:
    await relay.until(lambda: relay.account.pausing.state.is_refused and relay.account.in_flight == 0)


async def _sits_out(relay: Relay) -> None:
    """Wait until all that is queued waits for the end of its sender's pause, or for its own next attempt."""
    await relay.until(
        lambda: (
            relay.line.sender_pauses.senders()
            and relay.account.in_flight == 0
            and all(map(_is_tried, relay.sender.queue))
        )
    )


def _is_tried(queued: Queued | None) -> bool:
    return queued is not None and (queued.state is State.DEFERRED or queued.is_sitting_out)


def _is_good(transaction: Recorded) -> bool:
    return transaction.is_relayed and transaction.reverse_path == "good@here.example"


def _asked(host: Smarthost) -> int:
    return sum(command.startswith("RCPT") for command in host.commands)


async def _bounced(relay: Relay) -> int:
    return relay.sender.totals.bounced


def _refusing(host: Smarthost, sender: str, phase: str) -> Script:
    """Return a script that refuses one sender's mail in words that no rule knows."""
    if phase == "mail":
        bad = f"FROM:<{sender}>"
        return Script(mail=lambda said: "501 Invalid address provided" if said.startswith(bad) else "250 ok")
    return Script(
        eod=lambda _: "550 Lacks a header" if host.transactions[-1].reverse_path == sender else "250 ok"
    )


@pytest.mark.parametrize("phase", ["mail", "eod"])
@pytest.mark.parametrize("sender", ["", "cron@here.example"], ids=["null", "one"])
async def test_one_sender_refused_in_unknown_words_keeps_nobody_else_waiting(
    tmp_path: Path, sender: str, phase: str
) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port, rest=PATIENT)) as relay:
        host.script = _refusing(host, sender, phase)
        refused = [relay.accept(sender=sender) for _ in range(12)]
        await relay.until(lambda: sum(map(_is_tried, map(relay.queued, refused))) == len(refused))
        for number in range(20):
            relay.accept(f"r{number}@there.example", sender="good@here.example")
        await relay.until(
            lambda: sum(map(_is_good, host.transactions)) == 20 and len(relay.sender.queue) == 12
        )

        assert relay.account.pausing.state.why == ""
        assert await _bounced(relay) == 0
        # The mail of that sender alone waits: it is not asked about message by message.
        assert list(relay.line.sender_pauses.senders()) == [sender]


async def test_one_message_keeps_its_sender_waiting_once(tmp_path: Path) -> None:
    clock = FakeClock()
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port, rest=PATIENT), clock=clock) as relay:
        host.script = Script(rcpt=lambda said: CUT_OFF if "bad" in said else "250 ok")
        bad = relay.accept(*[f"bad{number}@there.example" for number in range(12)])
        await _sits_out(relay)
        for number in range(3):
            relay.accept(f"good{number}@there.example")
        await relay.until(lambda: len(relay.sender.queue) == 4)
        await _sits_out(relay)
        clock.advance(HOUR_NS // 2)
        relay.sender.wake()
        # Other mail of the sender proves it, and then the message is deferred alone.
        await relay.until(lambda: len(relay.sender.queue) == 1 and _is_tried(relay.queued(bad)))

        assert len(host.relayed) == 3
        assert relay.line.sender_pauses.senders() == {}
        assert await _bounced(relay) == 0


async def test_what_the_operator_believes_is_reported_and_the_rest_goes_on(tmp_path: Path) -> None:
    def rcpt(argument: str) -> str:
        return CUT_OFF if argument.startswith("TO:<s") else "250 ok"

    async with Smarthost(Script(rcpt=rcpt)) as host, Relay(policy_of(tmp_path, host.port)) as relay:
        relay.accept(*SUBSCRIBERS)
        await _sits_out(relay)
        assert await relay.operator.resume("isp", believes=True) == OK
        await relay.until_empty()
        (report,) = host.relayed
        assert report.reverse_path == ""
        assert report.content.count(b"Final-Recipient:") == 30
        assert b"Administrative prohibition" in report.content

        # What was believed once is believed of others.
        relay.accept("sanother@there.example")
        await relay.until_empty()
        assert await _bounced(relay) == 31


async def test_restarts_do_not_end_a_stop_and_bounce_nobody(tmp_path: Path) -> None:
    clock, says = virtual_clock(), [CUT_OFF]
    async with Smarthost(Script(rcpt=lambda _: says[0])) as host:
        policy = policy_of(tmp_path, host.port, rest=PATIENT)
        async with Relay(policy, clock=clock) as relay:
            _send_all(relay)
            await _stopped(relay)
        for hours_later, asks in ((0, 0), (0, 0), (2, 1), (2, 1), (0, 0)):
            clock.advance(hours_later * HOUR_NS)
            asked = _asked(host)
            async with Relay(policy, clock=clock) as relay:
                await _stopped(relay)
                assert "in a row were refused alike" in relay.account.pausing.state.why
                assert await _bounced(relay) == 0
            # Once its hour is over, one message asks whether all is well.
            assert _asked(host) - asked == asks

        # Nor does a pause that the message which asks meets.
        clock.advance(2 * HOUR_NS)
        says[0] = "421 4.3.2 not now"
        async with Relay(policy, clock=clock) as relay:
            await relay.until(lambda: relay.account.pausing.state.health is Health.PAUSED)
        clock.advance(2 * HOUR_NS)
        says[0], asked = CUT_OFF, _asked(host)
        async with Relay(policy, clock=clock) as relay:
            await _stopped(relay)
            assert _asked(host) - asked == 1

        says[0] = "250 ok"
        async with Relay(policy, clock=clock) as relay:
            await _stopped(relay)
            assert await relay.operator.resume("isp") == OK
            clock.advance(5 * HOUR_NS)
            relay.sender.wake()
            await relay.until_empty()
            assert len(host.relayed) == len(SUBSCRIBERS)


HOUR_S = 3600
AN_OFFENCE = "421 4.7.0 too much from you, come back later"
NOT_HIS = "553 5.7.1 Sender address rejected: not owned by user mjd"
DENIED = "554 5.7.1 Relay access denied"
RETRY = "retry: {min: 1m, max: 1h, lifetime: 1d, warn_after: null}"


def of_one(folder: Path, host: Smarthost, steps_s: int = 300) -> Policy:
    hurry(steps_s)
    return policy_of(folder, host.port, ", pipelining: false", RETRY, connections=1)


def refusing(said: str) -> Script:
    """Return a script that says this to the sender, or to the recipient, of one kind of message."""

    def answer(argument: str) -> Turn:
        return said if "poison" in argument and not argument.startswith("TO:<poison@here") else "250 ok"

    return Script(rcpt=answer) if said == DENIED else Script(mail=answer)


async def other_mail(relay: Relay, hours: int) -> None:
    for _ in range(hours):
        relay.accept("good@there.example", sender="boss@here.example")
        await pass_time(HOUR_S)


@pytest.mark.parametrize(
    ("said", "most_hours"),
    [(AN_OFFENCE, 4), (DENIED, 7), (NOT_HIS, 0)],
    ids=["a pause each time", "a stop each time", "a pause of its sender"],
)
async def test_a_message_refused_alone_keeps_no_other_for_long_and_is_returned_after_its_lifetime(
    tmp_path: Path, said: str, most_hours: int
) -> None:
    async with Smarthost(refusing(said)) as host, Relay(of_one(tmp_path, host)) as relay:
        poison = relay.accept("poison@there.example", sender="poison@here.example")
        await other_mail(relay, hours=24)
        assert relay.queued(poison) is not None
        rested_ns = within_ns(relay.account.pausing.state.spans, 0, virtual_clock().boottime_ns())
        await other_mail(relay, hours=6)

        # Its first refusals paused the upstream, as anybody's do; the later ones did not.
        assert within_ns(relay.account.pausing.state.spans, 0, virtual_clock().boottime_ns()) == rested_ns
        assert rested_ns <= most_hours * HOUR_S * SECOND_NS
        assert relay.queued(poison) is None
        totals = relay.sender.totals
        assert (totals.expired, totals.bounced) == (1, 0)
        (report,) = [r for r in host.relayed if r.reverse_path == ""]
        assert report.recipients == ["poison@here.example"]
        assert said.encode()[10:30] in report.content


@pytest.mark.parametrize("said", [AN_OFFENCE, NOT_HIS], ids=["the account", "every sender"])
async def test_a_refusal_of_everybody_returns_nothing_however_long_it_lasts(
    tmp_path: Path, said: str
) -> None:
    async with Smarthost(Script(mail=said)) as host, Relay(of_one(tmp_path, host, 1800)) as relay:
        for number in range(10):
            relay.accept(sender=f"s{number}@here.example")
        await pass_time(2 * 24 * HOUR_S)
        assert len(relay.sender.queue) == 10

        host.script = Script()
        await relay.until_empty()
        assert len(host.relayed) == 10


LIST = [f"r{number}@list{number % 7}.example" for number in range(500)]
USER, PASSWORD = "mjd", "correct horse"


def _allows(recipients: int) -> LimitSettings:
    return LimitSettings.model_validate({"recipients": recipients, "per": "1h"})


def _policy(folder: Path, isp: PracticeSmarthost, recipients_an_hour: int) -> Policy:
    secret = folder / "password"
    secret.touch(0o600)
    secret.write_text(PASSWORD)
    auth = f", auth: {{user: {USER!r}, password_file: {secret}}}"
    return policy_of(folder, isp.port, f"{auth}, limits: [{{recipients: {recipients_an_hour}, per: 1h}}]")


@asynccontextmanager
async def _night(folder: Path, *, many: bool = False) -> AsyncIterator[tuple[Relay, PracticeSmarthost]]:
    """Have the list's message under way: one for all, or one for each.  In the end everybody got it, once."""
    clock = virtual_clock()
    taken: list[Practised] = []
    account, address = PracticeAccount(_allows(100), HOUR_NS), HostPort("127.0.0.1", 0)
    isp = PracticeSmarthost(address, Credentials(USER, PASSWORD), account, clock, observer=taken.append)
    await isp.start()
    async with Relay(_policy(folder, isp, 100)) as relay:
        for recipients in [[each] for each in LIST] if many else [LIST]:
            relay.accept(*recipients, sender="list-bounces@here.example")
        await relay.until(lambda: isp.account.most == 100 and relay.account.in_flight == 0)
        hurry(30)
        yield relay, isp
        await relay.until_empty()
        relayed = [each for each in taken if each.reply.startswith("250")]
        # A report to the list would have come through here too.
        assert {each.reverse_path for each in relayed} == {"list-bounces@here.example"}
        assert sorted(r for each in relayed for r in each.recipients) == sorted(LIST)
        totals = relay.sender.totals
        assert (totals.bounced, totals.expired) == (0, 0)
    await isp.close()


def _told(relay: Relay) -> str:
    relay.events.flush()
    return relay.log.getvalue()


@pytest.mark.parametrize("many", [False, True], ids=["one message", "500 messages"])
async def test_500_subscribers_get_it_in_five_hours_and_the_isp_sees_nothing_odd(
    tmp_path: Path, many: bool
) -> None:
    began_ns = virtual_clock().boottime_ns()
    async with _night(tmp_path, many=many) as (relay, isp):
        await relay.until_empty()
        assert isp.account.most == 100
        assert isp.account.cut_offs == 0
        assert virtual_clock().boottime_ns() - began_ns < 4.3 * HOUR_NS


async def test_when_a_phone_on_the_same_account_exceeds_the_limit_the_list_waits(
    tmp_path: Path,
) -> None:
    async with _night(tmp_path) as (relay, isp):
        await pass_time(1800)
        # The relay cannot know of it: it does not go through the relay.
        now_ns = virtual_clock().boottime_ns()
        assert not isp.account.admit(1, now_ns)
        await relay.until_empty()

        assert isp.account.cut_offs == 1
        assert "upstream isp paused until" in _told(relay)
        assert "exceeded your sending limit" in _told(relay)
