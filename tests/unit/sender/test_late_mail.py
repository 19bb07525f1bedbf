"""Who is told that mail is late: by the estimate, once, over restarts, and never of what goes soon."""

import email
import email.policy
import functools
from pathlib import Path

import pytest
from flufl.bounce import all_failures, scan_message

from relay.clock import SECOND_NS
from relay.control.operations import OK
from relay.policy.model import Policy
from relay.queue.scheduler import State
from tests.fakes.clock import LeapingClock
from tests.fakes.smarthost import Script, Smarthost, turns
from tests.fakes.smarthost_dialogue import Recorded
from tests.unit.sender.in_process_relay import Relay, policy_of
from tests.unit.sender.test_upstream_pauses import REFUSED

HOUR_NS = 3600 * SECOND_NS
RETRY = "retry: {min: 3h, max: 6h, lifetime: 5d, warn_after: 4h}"


def limited(folder: Path, port: int, limits: str = "{messages: 1, per: 24h}", rest: str = RETRY) -> Policy:
    return policy_of(folder, port, f", limits: [{limits}], shield: null", rest)


def warnings(relay: Relay) -> int:
    relay.events.flush()
    return relay.log.getvalue().count("sender delay notification")


async def full_window(relay: Relay, host: Smarthost) -> None:
    """Use up the window, and put one message behind it."""
    relay.accept("first@there.example")
    # Its slot opens a window after its end, which must not come after a leap of the clock.
    await relay.until(lambda: host.relayed and relay.dispatcher.in_flight == 0)
    relay.accept("second@there.example", "third@there.example")
    await relay.until(lambda: any("no room" in queued.reason for queued in relay.sender.queue))


def mails(host: Smarthost) -> int:
    return sum(command.startswith("MAIL") for command in host.commands)


def has_asked_more(host: Smarthost, before: int) -> bool:
    return mails(host) > before


def fields(report: Recorded) -> list[dict[str, str]]:
    """Read a report with the standard library's parser: the fields of the message, then of each recipient."""
    found = email.message_from_bytes(report.content, policy=email.policy.default)
    assert found.get_content_type() == "multipart/report"
    (status,) = (part for part in found.walk() if part.get_content_type() == "message/delivery-status")
    blocks = [block for block in status.walk() if block is not status]
    return [{name: " ".join(str(value).split()) for name, value in block.items()} for block in blocks]


async def test_what_waits_for_a_window_is_told_of_once_it_is_late(tmp_path: Path) -> None:
    clock = LeapingClock()
    async with (
        Smarthost(Script()) as host,
        Relay(limited(tmp_path, host.port), clock=clock) as relay,
    ):
        await full_window(relay, host)
        assert await relay.late.look() == 0
        clock.ahead_ns += 4 * HOUR_NS - 60 * SECOND_NS
        assert await relay.late.look() == 0, "it is not late yet"
        clock.ahead_ns += 61 * SECOND_NS
        assert await relay.late.look() == 1
        assert await relay.late.look() == 0, "once"
        assert warnings(relay) == 1

        await relay.sender.apply(policy_of(tmp_path, host.port, rest=RETRY))
        await relay.until_empty()
        (warning,) = (relayed for relayed in host.relayed if relayed.reverse_path == "")
        of_message, *of_recipients = fields(warning)
        assert of_message["Reporting-MTA"] == "dns; relay.test"
        assert [each["Final-Recipient"] for each in of_recipients] == [
            "rfc822; second@there.example",
            "rfc822; third@there.example",
        ]
        for each in of_recipients:
            assert (each["Action"], each["Status"]) == ("delayed", "4.4.5")
            assert each["Diagnostic-Code"].startswith("X-relay; it waits for its turn")
            assert "the next attempt is expected at 20" in each["Diagnostic-Code"]
            assert "Last-Attempt-Date" not in each, "there was none"
            assert "Will-Retry-Until" in each
        # Mailman's detector must not unsubscribe anybody for it.
        found = email.message_from_bytes(warning.content)
        assert all_failures(found)[1] == set()
        assert scan_message(found) == set()


async def test_what_goes_within_the_hour_gives_no_warning(tmp_path: Path) -> None:
    clock = LeapingClock()
    async with (
        Smarthost(Script()) as host,
        Relay(limited(tmp_path, host.port), clock=clock) as relay,
    ):
        await full_window(relay, host)
        clock.ahead_ns += 23 * HOUR_NS + 60 * SECOND_NS

        assert await relay.late.look() == 0
        assert warnings(relay) == 0


async def test_a_restart_remembers_who_was_told(tmp_path: Path) -> None:
    clock = LeapingClock()
    async with Smarthost(Script()) as host:
        policy = limited(tmp_path, host.port)
        async with Relay(policy, clock=clock) as relay:
            await full_window(relay, host)
            clock.ahead_ns += 5 * HOUR_NS
            assert await relay.late.look() == 1
        async with Relay(policy, clock=clock) as relay:
            await relay.until(lambda: len(relay.sender.queue) == 2)
            assert await relay.late.look() == 0


async def test_a_pause_that_has_lasted_for_long_is_expected_to_last(tmp_path: Path) -> None:
    clock = LeapingClock()
    script = Script(mail=f"{REFUSED} in 30 minutes")
    async with (
        Smarthost(script) as host,
        Relay(policy_of(tmp_path, host.port, rest=RETRY), clock=clock) as relay,
    ):
        relay.accept()
        for hours in range(9):
            await relay.until(lambda: relay.dispatcher.pausing.because and relay.dispatcher.in_flight == 0)
            assert await relay.late.look() == (hours == 8), hours
            asked = mails(host)
            clock.ahead_ns += HOUR_NS // 2
            relay.dispatcher.wake()
            await relay.until(functools.partial(has_asked_more, host, asked))

        assert warnings(relay) == 1


async def test_mail_for_a_stopped_upstream_is_told_of_since_nobody_can_tell(tmp_path: Path) -> None:
    clock = LeapingClock()
    # No probes: one that the leap of the clock calls for would be on its way, and so not late.
    rule = ", verdicts: [{phase: mail, code: 535, verdict: stop, probe: false}]"
    async with (
        Smarthost(Script(mail="535 5.7.8 account suspended")) as host,
        Relay(policy_of(tmp_path, host.port, rule, RETRY), clock=clock) as relay,
    ):
        relay.accept()
        await relay.until(lambda: relay.dispatcher.pausing.is_stopped and relay.dispatcher.in_flight == 0)
        assert await relay.late.look() == 0
        clock.ahead_ns += 4 * HOUR_NS

        assert await relay.late.look() == 1


async def test_mail_of_a_sender_whom_the_upstream_refuses_is_told_of(tmp_path: Path) -> None:
    clock = LeapingClock()

    def mail(argument: str) -> str:
        return (
            "553 5.7.1 Sender address rejected: not owned by user mjd" if "a@here" in argument else "250 ok"
        )

    async with (
        Smarthost(Script(mail=mail)) as host,
        Relay(policy_of(tmp_path, host.port, rest=RETRY), clock=clock) as relay,
    ):
        queue_id = relay.accept()
        await relay.until(lambda: (q := relay.queued(queue_id)) and q.is_sitting_out)
        assert await relay.late.look() == 0
        # It is proved now and then, and refused each time.
        clock.ahead_ns += 4 * HOUR_NS
        relay.sender.wake()
        await relay.until(
            lambda: (q := relay.queued(queue_id)) and q.is_sitting_out and q.due_at_ns > clock.boottime_ns()
        )

        assert await relay.late.look() == 1
        await relay.until(lambda: host.relayed)
        assert "takes no mail from here at present" in fields(host.relayed[0])[1]["Diagnostic-Code"]


@pytest.mark.parametrize(("minutes", "warned"), [(65, 1), (122, 0)], ids=["ends late", "ends soon"])
async def test_a_back_off_gives_a_warning_unless_it_ends_soon(
    tmp_path: Path, minutes: int, warned: int
) -> None:
    clock = LeapingClock()
    async with (
        Smarthost(Script(rcpt=turns("451 4.2.1 later", "451 4.2.1 later"))) as host,
        Relay(policy_of(tmp_path, host.port, rest=RETRY), clock=clock) as relay,
    ):
        queue_id = relay.accept()
        await relay.until(lambda: (q := relay.queued(queue_id)) and q.state is State.DEFERRED)
        # Refused again at 3 h: its back-off ends at 6 h, and it is late at 4 h.
        clock.ahead_ns += 3 * HOUR_NS
        relay.sender.wake()
        await relay.until(
            lambda: (
                (q := relay.queued(queue_id))
                and q.state is State.DEFERRED
                and q.due_at_ns > clock.boottime_ns()
            )
        )
        assert await relay.late.look() == 0, "it is not late yet"
        # At 3 h and so many minutes: what is left of the back-off is an hour at least, or less.
        clock.ahead_ns += minutes * 60 * SECOND_NS
        assert await relay.late.look() == warned

        if warned:
            await relay.until(lambda: host.relayed)
            assert fields(host.relayed[0])[1]["Status"] == "4.2.1"


async def test_neither_held_mail_nor_mail_from_nobody_is_told_of(tmp_path: Path) -> None:
    clock = LeapingClock()
    async with (
        Smarthost(Script()) as host,
        Relay(limited(tmp_path, host.port), clock=clock) as relay,
    ):
        relay.accept("first@there.example")
        await relay.until(lambda: host.relayed)
        held, _ = relay.accept("held@there.example"), relay.accept("x@there.example", sender="")
        await relay.until(lambda: len(relay.sender.queue) == 2 and relay.dispatcher.in_flight == 0)
        assert await relay.operator.act("hold", [held]) == {held: OK}
        clock.ahead_ns += 10 * HOUR_NS

        assert await relay.late.look() == 0


async def test_warnings_leave_half_of_the_hour_to_reports(tmp_path: Path) -> None:
    clock = LeapingClock()
    async with (
        Smarthost(Script()) as host,
        Relay(limited(tmp_path, host.port, rest=f"{RETRY}\nreports: {{per_hour: 4}}"), clock=clock) as relay,
    ):
        relay.accept("first@there.example")
        await relay.until(lambda: host.relayed)
        for number in range(5):
            relay.accept(f"r{number}@there.example")
        await relay.until(lambda: len(relay.sender.queue) == 5)
        clock.ahead_ns += 5 * HOUR_NS

        assert await relay.late.look() == 2
        assert await relay.late.look() == 0
        clock.ahead_ns += HOUR_NS + SECOND_NS
        assert await relay.late.look() == 2
