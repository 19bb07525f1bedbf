"""Who is told that mail is late: by the estimate, once, over restarts, and never of what goes soon."""

import email
import email.policy
import functools
from pathlib import Path

import pytest
from flufl.bounce import all_failures, scan_message

from relay.clock import SECOND_NS
from relay.policy.model import Policy
from relay.scheduler import State
from relay.service.operations import OK
from tests.fakes.clock import LeapingClock
from tests.fakes.smarthost import Script, Smarthost, turns
from tests.fakes.smarthost_dialogue import Recorded
from tests.service.house import House, policy_of
from tests.service.test_pause import REFUSED

HOUR_NS = 3600 * SECOND_NS
RETRY = "retry: {min: 3h, max: 6h, lifetime: 5d, warn_after: 4h}"


def limited(folder: Path, port: int, limits: str = "{messages: 1, per: 24h}", rest: str = RETRY) -> Policy:
    return policy_of(folder, port, f", limits: [{limits}], shield: null", rest)


def warnings(house: House) -> int:
    house.events.flush()
    return house.log.getvalue().count("sender delay notification")


async def full_window(house: House, host: Smarthost) -> None:
    """Use up the window, and put one message behind it."""
    house.accept("first@there.example")
    # Its slot opens a window after its end, which must not come after a leap of the clock.
    await house.until(lambda: host.relayed and house.heart.in_flight == 0)
    house.accept("second@there.example", "third@there.example")
    await house.until(lambda: any("no room" in queued.reason for queued in house.sender.scheduler))


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


async def test_what_waits_for_a_window_is_told_of_once_it_is_late_and_stays_for_long(tmp_path: Path) -> None:
    clock = LeapingClock()
    async with (
        Smarthost(Script()) as host,
        House(limited(tmp_path, host.port), clock=clock) as house,
    ):
        await full_window(house, host)
        assert await house.late.look() == 0
        clock.ahead_ns += 4 * HOUR_NS - 60 * SECOND_NS
        assert await house.late.look() == 0, "it is not late yet"
        clock.ahead_ns += 61 * SECOND_NS
        assert await house.late.look() == 1
        assert await house.late.look() == 0, "once"
        assert warnings(house) == 1

        await house.sender.apply(policy_of(tmp_path, host.port, rest=RETRY))
        await house.until_empty()
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


async def test_what_goes_within_the_hour_gives_no_warning_however_late_it_is(tmp_path: Path) -> None:
    clock = LeapingClock()
    async with (
        Smarthost(Script()) as host,
        House(limited(tmp_path, host.port), clock=clock) as house,
    ):
        await full_window(house, host)
        clock.ahead_ns += 23 * HOUR_NS + 60 * SECOND_NS

        assert await house.late.look() == 0
        assert warnings(house) == 0


async def test_a_restart_remembers_who_was_told(tmp_path: Path) -> None:
    clock = LeapingClock()
    async with Smarthost(Script()) as host:
        policy = limited(tmp_path, host.port)
        async with House(policy, clock=clock) as house:
            await full_window(house, host)
            clock.ahead_ns += 5 * HOUR_NS
            assert await house.late.look() == 1
        async with House(policy, clock=clock) as house:
            await house.until(lambda: len(house.sender.scheduler) == 2)
            assert await house.late.look() == 0


async def test_a_pause_that_has_lasted_for_long_is_expected_to_last(tmp_path: Path) -> None:
    clock = LeapingClock()
    script = Script(mail=f"{REFUSED} in 30 minutes")
    async with (
        Smarthost(script) as host,
        House(policy_of(tmp_path, host.port, rest=RETRY), clock=clock) as house,
    ):
        house.accept()
        for hours in range(9):
            await house.until(lambda: house.heart.pausing.because and house.heart.in_flight == 0)
            assert await house.late.look() == (hours == 8), hours
            asked = mails(host)
            clock.ahead_ns += HOUR_NS // 2
            house.heart.wake()
            await house.until(functools.partial(has_asked_more, host, asked))

        assert warnings(house) == 1


async def test_mail_for_a_stopped_upstream_is_told_of_since_nobody_can_tell(tmp_path: Path) -> None:
    clock = LeapingClock()
    # No probes: one that the leap of the clock calls for would be on its way, and so not late.
    rule = ", verdicts: [{phase: mail, code: 535, verdict: stop, probe: false}]"
    async with (
        Smarthost(Script(mail="535 5.7.8 account suspended")) as host,
        House(policy_of(tmp_path, host.port, rule, RETRY), clock=clock) as house,
    ):
        house.accept()
        await house.until(lambda: house.heart.pausing.is_stopped and house.heart.in_flight == 0)
        assert await house.late.look() == 0
        clock.ahead_ns += 4 * HOUR_NS

        assert await house.late.look() == 1


async def test_mail_of_a_sender_whom_the_upstream_refuses_is_told_of(tmp_path: Path) -> None:
    clock = LeapingClock()

    def mail(argument: str) -> str:
        return (
            "553 5.7.1 Sender address rejected: not owned by user mjd" if "a@here" in argument else "250 ok"
        )

    async with (
        Smarthost(Script(mail=mail)) as host,
        House(policy_of(tmp_path, host.port, rest=RETRY), clock=clock) as house,
    ):
        queue_id = house.accept()
        await house.until(lambda: (q := house.queued(queue_id)) and q.is_sitting_out)
        assert await house.late.look() == 0
        # It is proved now and then, and refused each time.
        clock.ahead_ns += 4 * HOUR_NS
        house.sender.wake()
        await house.until(
            lambda: (q := house.queued(queue_id)) and q.is_sitting_out and q.due_at_ns > clock.boottime_ns()
        )

        assert await house.late.look() == 1
        await house.until(lambda: host.relayed)
        assert "takes no mail from here at present" in fields(host.relayed[0])[1]["Diagnostic-Code"]


@pytest.mark.parametrize(("minutes", "warned"), [(65, 1), (122, 0)], ids=["ends late", "ends soon"])
async def test_a_back_off_that_ends_soon_gives_no_warning_and_a_long_one_does(
    tmp_path: Path, minutes: int, warned: int
) -> None:
    clock = LeapingClock()
    async with (
        Smarthost(Script(rcpt=turns("451 4.2.1 later", "451 4.2.1 later"))) as host,
        House(policy_of(tmp_path, host.port, rest=RETRY), clock=clock) as house,
    ):
        queue_id = house.accept()
        await house.until(lambda: (q := house.queued(queue_id)) and q.state is State.DEFERRED)
        # Refused again at 3 h: its back-off ends at 6 h, and it is late at 4 h.
        clock.ahead_ns += 3 * HOUR_NS
        house.sender.wake()
        await house.until(
            lambda: (
                (q := house.queued(queue_id))
                and q.state is State.DEFERRED
                and q.due_at_ns > clock.boottime_ns()
            )
        )
        assert await house.late.look() == 0, "it is not late yet"
        # At 3 h and so many minutes: what is left of the back-off is an hour at least, or less.
        clock.ahead_ns += minutes * 60 * SECOND_NS
        assert await house.late.look() == warned

        if warned:
            await house.until(lambda: host.relayed)
            assert fields(host.relayed[0])[1]["Status"] == "4.2.1"


async def test_neither_held_mail_nor_mail_from_nobody_is_told_of(tmp_path: Path) -> None:
    clock = LeapingClock()
    async with (
        Smarthost(Script()) as host,
        House(limited(tmp_path, host.port), clock=clock) as house,
    ):
        house.accept("first@there.example")
        await house.until(lambda: host.relayed)
        held, _ = house.accept("held@there.example"), house.accept("x@there.example", sender="")
        await house.until(lambda: len(house.sender.scheduler) == 2 and house.heart.in_flight == 0)
        assert await house.operator.hold([held]) == {held: OK}
        clock.ahead_ns += 10 * HOUR_NS

        assert await house.late.look() == 0


async def test_warnings_leave_half_of_the_hour_to_reports(tmp_path: Path) -> None:
    clock = LeapingClock()
    async with (
        Smarthost(Script()) as host,
        House(limited(tmp_path, host.port, rest=f"{RETRY}\nreports: {{per_hour: 4}}"), clock=clock) as house,
    ):
        house.accept("first@there.example")
        await house.until(lambda: host.relayed)
        for number in range(5):
            house.accept(f"r{number}@there.example")
        await house.until(lambda: len(house.sender.scheduler) == 5)
        clock.ahead_ns += 5 * HOUR_NS

        assert await house.late.look() == 2
        assert await house.late.look() == 0
        clock.ahead_ns += HOUR_NS + SECOND_NS
        assert await house.late.look() == 2
