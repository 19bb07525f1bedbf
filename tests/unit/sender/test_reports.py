"""What senders are told: of failures, of successes that they asked for, and that mail is late.

At once, once, within `reports.per_hour`, over restarts too, and never lost.
"""

import asyncio
import email
import email.policy
import errno
from pathlib import Path

import pytest
from flufl.bounce import all_failures, scan_message

from relay.clock import SECOND_NS
from relay.control.operations import OK, ONLY_REPORT_LEFT, VERBS
from relay.mail.dsn import DsnRequest, Notify, RecipientRequest, Ret
from relay.mail.envelope import QueueId
from relay.policy.model import Policy
from relay.queue.queued import State
from relay.status.snapshot import MessageView, QueueState, RecipientView
from relay.telemetry.metric_table import Totals
from relay.verdicts.account import PauseAsked
from tests.fakes.smarthost import Recorded, Script, Smarthost, Turn, Until
from tests.fakes.unsynced import Unsynced
from tests.fakes.virtual_time import pass_time
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of, virtual_clock

HOUR_NS = 3600 * SECOND_NS
SHIELD_OFF = ", shield: null"


def nobody(argument: str) -> str:
    return "550 5.1.1 no such user" if "gone" in argument else "250 ok"


def fussy(argument: str) -> str:
    return "450 4.2.0 come again" if "slow" in argument else nobody(argument)


def capped(folder: Path, port: int, per_hour: str = "2", retry: str = "min: 50ms, max: 100ms") -> Policy:
    rest = f"retry: {{{retry}, lifetime: 5d}}\nreports: {{per_hour: {per_hour}}}"
    return policy_of(folder, port, SHIELD_OFF, rest)


def patient(folder: Path, port: int, per_hour: str = "60") -> Policy:
    """Return a policy whose next attempts are hours away."""
    return capped(folder, port, per_hour, "min: 1h, max: 2h")


def reports(host: Smarthost) -> list[Recorded]:
    return [relayed for relayed in host.relayed if relayed.reverse_path == ""]


def failed(report: Recorded) -> list[str]:
    lines = report.content.partition(b"text/rfc822-headers")[0].decode().split("\r\n")
    return [line.partition("; ")[2] for line in lines if line.startswith("Final-Recipient")]


def waiting(relay: Relay) -> list[str]:
    return sorted(q.queue_id for q in relay.sender.queue if q.state is State.REPORTING)


def told(relay: Relay) -> str:
    relay.events.flush()
    return relay.log.getvalue()


def is_deferred(relay: Relay, queue_id: QueueId) -> bool:
    queued = relay.queued(queue_id)
    return queued is not None and queued.state is State.DEFERRED


async def test_reports_beyond_the_cap_go_when_the_hour_allows_over_a_restart(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost(Script(rcpt=nobody)) as host:
        policy = capped(tmp_path, host.port)
        async with Relay(policy) as relay:
            for number in range(5):
                relay.accept(f"gone{number}@there.example")
            await relay.until(
                lambda: len(reports(host)) == 2 and len(waiting(relay)) == len(relay.sender.queue) == 3
            )
            began_ns = clock.boottime_ns()
            assert relay.watch.snapshot().counts(QueueState.REPORTING).messages == 3
            listed = relay.watch.listing().messages()[0]
            assert "only its report is left" in listed.reason
            assert (listed.held_by, listed.eta_at_ns) == ("reports.per_hour", None)
            assert told(relay).count("reports are at reports.per_hour") == 1
            assert relay.sender.totals.bounced == 5
            before = waiting(relay)
        async with Relay(policy) as relay:
            await relay.until(lambda: waiting(relay) == before)
            assert len(reports(host)) == 2
            await relay.until(lambda: len(reports(host)) == 4)
            assert clock.boottime_ns() - began_ns >= HOUR_NS - SECOND_NS
            await relay.until_empty()
            assert clock.boottime_ns() - began_ns >= 2 * HOUR_NS - SECOND_NS
        told_of = b"".join(report.content for report in reports(host))
        assert all(b"gone%d@there.example" % number in told_of for number in range(5))
        assert told_of.count(b"550 5.1.1 no such user") >= 5, "the reasons were kept"


async def test_an_edit_of_the_cap_counts_at_once_and_judges_the_same_hour(tmp_path: Path) -> None:
    async with Smarthost(Script(rcpt=nobody)) as host, Relay(capped(tmp_path, host.port)) as relay:
        for number in range(6):
            relay.accept(f"gone{number}@there.example")
        await relay.until(lambda: len(waiting(relay)) == 4)
        await relay.sender.apply(capped(tmp_path, host.port, "3"))
        await relay.until(lambda: len(waiting(relay)) == 3)
        await relay.sender.apply(capped(tmp_path, host.port, "null"))
        await relay.until_empty()
        assert len(reports(host)) == 6


async def test_an_operator_may_only_delete_what_waits_for_its_report(tmp_path: Path) -> None:
    async with Smarthost(Script(rcpt=nobody)) as host, Relay(capped(tmp_path, host.port, "1")) as relay:
        for number in range(3):
            relay.accept(f"gone{number}@there.example")
        await relay.until(lambda: reports(host) and len(waiting(relay)) == len(relay.sender.queue) == 2)
        first, second = [queued.queue_id for queued in relay.sender.queue]
        for verb in set(VERBS) - {"delete"}:
            assert await relay.operator.act(verb, [first]) == {first: ONLY_REPORT_LEFT}
        assert await relay.operator.act("delete", [first]) == {first: OK}
        assert waiting(relay) == [second]
        assert f"{first}: no report of 1 failed" in told(relay)
        await relay.until_empty()
        assert len(reports(host)) == 2


async def test_a_capped_report_goes_in_its_turn_while_others_are_deferred(tmp_path: Path) -> None:
    async with Smarthost(Script(rcpt=fussy)) as host:
        policy = patient(tmp_path, host.port, "1")
        async with Relay(policy) as relay:
            relay.accept("gone0@there.example")
            await relay.until(lambda: reports(host))
            queue_id = relay.accept("gone1@there.example", "slow@there.example")
            await relay.until(lambda: is_deferred(relay, queue_id))
        async with Relay(policy) as relay:
            # A start asks again.
            await relay.until(lambda: is_deferred(relay, queue_id))
            assert len(reports(host)) == 1
            await relay.until(lambda: len(reports(host)) == 2)
        assert failed(reports(host)[1]) == ["gone1@there.example"]


async def test_a_report_that_goes_during_a_transaction_is_not_repeated_after_it(tmp_path: Path) -> None:
    told_now = asyncio.Event()
    async with Smarthost(Script(rcpt=fussy)) as host:
        policy = patient(tmp_path, host.port, "1")
        async with Relay(policy) as relay:
            relay.accept("gone0@there.example")
            await relay.until(lambda: reports(host))
            queue_id = relay.accept("gone1@there.example", "slow@there.example")
            await relay.until(lambda: is_deferred(relay, queue_id))
            await pass_time(3500)
            late: Turn = [Until(told_now), "550 5.1.1 no such user"]
            host.script.rcpt = lambda argument: late if "slow" in argument else "250 ok"
            assert await relay.operator.act("retry", [queue_id]) == {queue_id: OK}
            await relay.until(lambda: len(reports(host)) == 2)
            await relay.sender.apply(patient(tmp_path, host.port, "null"))
            told_now.set()
            await relay.until_empty()
        names = ("gone0", "gone1", "slow")
        assert [failed(report) for report in reports(host)] == [[f"{name}@there.example"] for name in names]


def told_of(host: Smarthost, recipient: str) -> bool:
    return any(recipient in failed(report) for report in reports(host))


async def test_a_report_goes_an_hour_after_the_warning_that_took_the_last_slot(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost(Script(rcpt=fussy)) as host:
        policy = capped(tmp_path, host.port, "1", "min: 3h, max: 6h, warn_after: 4h")
        async with Relay(policy) as relay:
            ids = [relay.accept(f"slow{number}@there.example") for number in range(2)]
            await relay.until(lambda: all(is_deferred(relay, queue_id) for queue_id in ids))
            clock.advance(5 * HOUR_NS)
            assert await relay.late.look() == 1
            await relay.until(lambda: reports(host))
            relay.accept("gone@there.example")
            await relay.until(lambda: told_of(host, "gone@there.example"))


async def test_a_report_that_waits_is_counted_once(tmp_path: Path) -> None:
    async with Smarthost(Script(rcpt=nobody)) as host, Relay(capped(tmp_path, host.port)) as relay:
        for number in range(7):
            relay.accept(f"gone{number}@there.example")
        await relay.until_empty()
        assert relay.metrics.registry.get_sample_value("relay_reports_capped_total") == 5


def each_its_own(argument: str) -> str:
    return "452 4.2.2 Mailbox full" if "full" in argument else fussy(argument)


async def shown(relay: Relay, queue_id: QueueId) -> dict[str, RecipientView]:
    view = await relay.operator.show(queue_id)
    assert isinstance(view, MessageView)
    return {each.address.partition("@")[0]: each for each in view.recipient_statuses}


async def test_each_recipients_own_last_reply_is_shown(tmp_path: Path) -> None:
    async with Smarthost(Script(rcpt=each_its_own)) as host:
        policy = patient(tmp_path, host.port)
        async with Relay(policy) as relay:
            queue_id = relay.accept(*(f"{name}@there.example" for name in ("slow", "full", "gone", "here")))
            await relay.until(lambda: is_deferred(relay, queue_id))
            before = await shown(relay, queue_id)
        assert {name: (each.status, each.text) for name, each in before.items()} == {
            "slow": ("to do", "450 4.2.0 come again"),
            "full": ("to do", "452 4.2.2 Mailbox full"),
            "gone": ("bounced", "550 5.1.1 no such user"),
            "here": ("relayed", ""),
        }
        async with Relay(policy) as relay:
            after = await shown(relay, queue_id)
            assert after["gone"].reported
            assert after["full"].next_attempt_at_ns is not None
            assert after["gone"].next_attempt_at_ns is None
            assert await relay.operator.act("retry", [queue_id]) == {queue_id: OK}
            await relay.until(lambda: is_deferred(relay, queue_id))
            assert (await shown(relay, queue_id))["slow"].text == "450 4.2.0 come again"


async def test_a_report_that_is_refused_is_never_reported(tmp_path: Path) -> None:
    async with (
        Smarthost(Script(rcpt="550 5.1.1 no")) as host,
        Relay(policy_of(tmp_path, host.port)) as relay,
    ):
        relay.accept()
        await relay.until_empty()

        assert host.relayed == []
        assert relay.sender.totals == Totals(accepted=2, bounced=2)
        assert "event=report_dropped" in told(relay)


DSN = (*Smarthost.EXTENSIONS, "DSN")
GONE, HERE, SLOW = "gone@there.example", "here@there.example", "slow@there.example"


def asked(*notify: Notify | None, ret: Ret | None = None, envid: str = "") -> DsnRequest:
    return DsnRequest(ret, envid, tuple(map(RecipientRequest, notify)))


def actions(report: Recorded) -> list[tuple[str, str]]:
    return [(each["Final-Recipient"].partition("; ")[2], each["Action"]) for each in fields(report)[1:]]


def unsubscribed(report: Recorded) -> set[bytes]:
    """Return whom Mailman's detector takes for gone."""
    found = email.message_from_bytes(report.content, policy=email.policy.compat32)
    _, permanent = all_failures(found)
    assert set(scan_message(found)) == set(permanent)
    return set(permanent)


async def test_failures_and_successes_are_told_together(tmp_path: Path) -> None:
    async with (
        Smarthost(Script(rcpt=nobody)) as host,
        Relay(policy_of(tmp_path, host.port, SHIELD_OFF)) as relay,
    ):
        relay.accept(HERE, GONE, dsn=asked(Notify.SUCCESS, None))
        await relay.until_empty()

        (report,) = reports(host)
        assert actions(report) == [(HERE, "relayed"), (GONE, "failed")]
        assert unsubscribed(report) == {GONE.encode()}


LONG_LINE = CONTENT + b"x" * 2000 + b"\r\n"
EIGHT_BIT = CONTENT + "ü\r\n".encode()


@pytest.mark.parametrize("content", [LONG_LINE, EIGHT_BIT], ids=["long line", "8-bit"])
async def test_a_returned_message_is_found_by_a_parser(tmp_path: Path, content: bytes) -> None:
    async with (
        Smarthost(Script(rcpt=nobody)) as host,
        Relay(policy_of(tmp_path, host.port, SHIELD_OFF)) as relay,
    ):
        relay.accept(GONE, content=content, dsn=asked(None, ret=Ret.FULL))
        await relay.until_empty()

    (report,) = reports(host)
    *_, part = email.message_from_bytes(report.content, policy=email.policy.SMTP).iter_parts()
    if content.isascii():
        assert part.get_content_type() == "message/rfc822"
        assert report.content.count(b"\r\n\r\n" + content) == 1
        (original,) = part.iter_parts()
        assert original["Subject"] == "hello"
    else:
        assert part.get_content_type() == "text/rfc822-headers"


async def test_a_false_offer_of_dsn_costs_a_slot_and_bounces_nobody(tmp_path: Path) -> None:
    def refuses(argument: str) -> str:
        return "555 5.5.4 unsupported option" if "NOTIFY" in argument else nobody(argument)

    async with (
        Smarthost(Script(rcpt=refuses), extensions=DSN) as host,
        Relay(policy_of(tmp_path, host.port, SHIELD_OFF, connections=1)) as relay,
    ):
        relay.accept(HERE, GONE, dsn=asked(Notify.SUCCESS, Notify.FAILURE))
        await relay.until_empty()
        (report,) = reports(host)
        assert actions(report) == [(HERE, "relayed"), (GONE, "failed")]
        assert sum("NOTIFY" in command for command in host.commands) <= 2

        relay.accept(HERE, dsn=asked(Notify.SUCCESS))
        await relay.until_empty()
        assert len(reports(host)) == 2
        assert sum("NOTIFY" in command for command in host.commands) <= 2


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
    await relay.until(lambda: host.relayed and relay.account.in_flight == 0)
    relay.accept("second@there.example", "third@there.example")
    await relay.until(lambda: any("limit" in queued.reason for queued in relay.sender.queue))


def fields(report: Recorded) -> list[dict[str, str]]:
    """Read a report with the standard library's parser: the fields of the message, then of each recipient."""
    found = email.message_from_bytes(report.content, policy=email.policy.default)
    assert found.get_content_type() == "multipart/report"
    (status,) = (part for part in found.walk() if part.get_content_type() == "message/delivery-status")
    blocks = [block for block in status.walk() if block is not status]
    return [{name: " ".join(str(value).split()) for name, value in block.items()} for block in blocks]


async def test_what_waits_for_a_window_is_told_of_once_it_is_late(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost(Script()) as host, Relay(limited(tmp_path, host.port)) as relay:
        await full_window(relay, host)
        assert await relay.late.look() == 0
        clock.advance(4 * HOUR_NS - 60 * SECOND_NS)
        assert await relay.late.look() == 0, "it is not late yet"
        clock.advance(61 * SECOND_NS)
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
            assert "Last-Attempt-Date" not in each, "there was none"
            assert "Will-Retry-Until" in each
        # Mailman's detector must not unsubscribe anybody for it.
        found = email.message_from_bytes(warning.content)
        assert all_failures(found)[1] == set()
        assert scan_message(found) == set()


class Unreadable(Unsynced):
    """A disk that has no descriptor for one file."""

    name = "none"

    def open_update(self, path: str) -> int:
        if path.endswith(self.name):
            raise OSError(errno.EMFILE, "Too many open files", path)
        return super().open_update(path)

    def open_read(self, path: str) -> int:
        if path.endswith(self.name):
            raise OSError(errno.EMFILE, "Too many open files", path)
        return super().open_read(path)


async def test_what_cannot_be_read_now_takes_no_other_message_its_warning(tmp_path: Path) -> None:
    clock, disk = virtual_clock(), Unreadable()
    one_an_hour = RETRY + "\nreports: {per_hour: 1}"
    policy = policy_of(tmp_path, 9, ", shield: null", one_an_hour)
    async with Relay(policy, disk) as relay:
        await relay.operator.pause("isp", PauseAsked("anna"))
        # Long content is not kept in memory.
        first = relay.accept("first@there.example", content=CONTENT + b"a line of many\r\n" * 40_000)
        await relay.until(lambda: len(relay.sender.queue) == 1)
        disk.name = first
        relay.accept("second@there.example")
        await relay.until(lambda: len(relay.sender.queue) == 2)
        clock.advance(5 * HOUR_NS)

        assert await relay.late.look() == 1


async def test_a_report_of_what_cannot_be_read_takes_no_slot_and_no_time_of_another(tmp_path: Path) -> None:
    disk, clock = Unreadable(), virtual_clock()
    async with Smarthost(Script(rcpt=nobody)) as host, Relay(capped(tmp_path, host.port, "1"), disk) as relay:
        for number in range(3):
            relay.accept(f"gone{number}@there.example")
        began_ns = clock.boottime_ns()
        await relay.until(lambda: reports(host) and len(waiting(relay)) == len(relay.sender.queue) == 2)
        disk.name, _ = [queued.queue_id for queued in relay.sender.queue]
        await relay.until(lambda: len(reports(host)) == 2)
        assert clock.boottime_ns() - began_ns < HOUR_NS + 30 * SECOND_NS
        assert waiting(relay) == [disk.name]
        disk.name = "none"
        await relay.until_empty()
        assert len(reports(host)) == 3


def part_due_ns(relay: Relay, queue_id: QueueId) -> int:
    part = relay.queued(queue_id)
    return 0 if part is None else part.due_at_ns


async def test_of_what_was_refused_the_last_reply_of_each_recipient_is_told(tmp_path: Path) -> None:
    clock = virtual_clock()

    def rcpt(argument: str) -> str:
        return "250 ok" if "@here" in argument else f"450 4.2.{1 + argument.count('full')} come again"

    async with (
        Smarthost(Script(rcpt=rcpt)) as host,
        Relay(policy_of(tmp_path, host.port, rest=RETRY)) as relay,
    ):
        queue_id = relay.accept("slow@there.example", "full@there.example")
        arrived_ns = clock.boottime_ns()
        await relay.until(lambda: part_due_ns(relay, queue_id))
        clock.advance(3 * HOUR_NS)
        relay.account.wake()
        await relay.until(lambda: part_due_ns(relay, queue_id) > arrived_ns + 4 * HOUR_NS)
        assert await relay.late.look() == 0
        clock.advance(1 * HOUR_NS)
        assert await relay.late.look() == 1
        await relay.until(lambda: host.relayed)
        (warning,) = host.relayed
    assert [each["Status"] for each in fields(warning)[1:]] == ["4.2.1", "4.2.2"]


async def test_neither_held_mail_nor_mail_from_nobody_is_told_of(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost(Script()) as host, Relay(limited(tmp_path, host.port)) as relay:
        relay.accept("first@there.example")
        await relay.until(lambda: host.relayed)
        held, _ = relay.accept("held@there.example"), relay.accept("x@there.example", sender="")
        await relay.until(lambda: len(relay.sender.queue) == 2 and relay.account.in_flight == 0)
        assert await relay.operator.act("hold", [held]) == {held: OK}
        clock.advance(10 * HOUR_NS)

        assert await relay.late.look() == 0
