"""Reports to senders: of failures, of successes that they asked for, and of late mail.

The simulation judges which reports are sent at all, and how often.
"""

import asyncio
import email
import email.policy
import io
from pathlib import Path

from relay.clock import SECOND_NS
from relay.control.operations import OK, ONLY_REPORT_LEFT, VERBS
from relay.mail.dsn import NO_REQUEST, DsnRequest, Notify, RecipientRequest
from relay.mail.envelope import QueueId
from relay.policy.model import Policy
from relay.queue.queued import State
from relay.sender.host import Host
from relay.sender.reports import OwedReports
from relay.status.snapshot import MessageView, QueueState, RecipientView
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics, Telemetry
from relay.verdicts.account import PauseAsked
from tests.fakes.smarthost import Recorded, Script, Smarthost, Turn, Until
from tests.fakes.unsynced import Unsynced
from tests.fakes.virtual_time import InTurn, pass_time
from tests.unit.sender.in_process_relay import (
    Relay,
    hurry,
    policy_of,
    turns_of_the_loop,
    virtual_clock,
)

HOUR_NS = 3600 * SECOND_NS
PATIENT = "min: 1h, max: 2h"
"""The next attempts are hours away."""


def answers(argument: str) -> str:
    """Answer RCPT by the name of the recipient."""
    if "gone" in argument:
        return "550 5.1.1 no such user"
    if "slow" in argument:
        return "450 4.2.1 come again"
    return "452 4.2.2 Mailbox full" if "full" in argument else "250 ok"


def capped(folder: Path, port: int, per_hour: str, retry: str = "min: 50ms, max: 100ms") -> Policy:
    rest = f"retry: {{{retry}, lifetime: 5d}}\nreports: {{per_hour: {per_hour}}}"
    return policy_of(folder, port, ", shield: null", rest)


def reports(host: Smarthost) -> list[Recorded]:
    return [relayed for relayed in host.relayed if relayed.reverse_path == ""]


def fields(report: Recorded) -> list[dict[str, str]]:
    """Return the fields of each recipient, read with the standard library's parser."""
    found = email.message_from_bytes(report.content, policy=email.policy.default)
    (status,) = (part for part in found.walk() if part.get_content_type() == "message/delivery-status")
    _, *recipients = [dict(block.items()) for block in status.walk() if block is not status]
    return recipients


def told_of(host: Smarthost) -> list[list[str]]:
    """Return the recipients that each report names."""
    return [[each["Final-Recipient"].partition("; ")[2] for each in fields(one)] for one in reports(host)]


def waiting(relay: Relay) -> list[QueueId]:
    return [queued.queue_id for queued in relay.sender.queue if queued.state is State.REPORTING]


def is_deferred(relay: Relay, queue_id: QueueId) -> bool:
    queued = relay.queued(queue_id)
    return queued is not None and queued.state is State.DEFERRED


async def test_reports_beyond_the_limit_are_shown_and_logged_and_edits_count_at_once(tmp_path: Path) -> None:
    async with Smarthost(Script(rcpt=answers)) as host, Relay(capped(tmp_path, host.port, "2")) as relay:
        for number in range(7):
            relay.accept(f"gone{number}@there.example")
        await relay.until(
            lambda: len(reports(host)) == 2 and len(waiting(relay)) == len(relay.sender.queue) == 5
        )
        assert relay.status_view.snapshot().counts(QueueState.REPORTING).messages == 5
        listed = (await relay.listed())[0]
        assert "only its report is left" in listed.reason
        assert (listed.held_by, listed.eta_at_ns) == ("reports.per_hour", None)
        assert relay.logged().count("reports.per_hour is reached") == 1

        # The only verb on a message that waits for its report is delete.
        first = waiting(relay)[0]
        for verb in set(VERBS) - {"delete"}:
            assert await relay.operator.act(verb, [first]) == {first: ONLY_REPORT_LEFT}
        assert await relay.operator.act("delete", [first]) == {first: OK}
        assert f"{first}: no report of 1 failed" in relay.logged()

        began_ns = relay.clock.boottime_ns()
        await relay.sender.apply(capped(tmp_path, host.port, "3"))
        await relay.until(lambda: len(reports(host)) == 3)
        await relay.sender.apply(capped(tmp_path, host.port, "null"))
        await relay.until_empty()
        assert len(reports(host)) == 6
        assert relay.clock.boottime_ns() - began_ns < HOUR_NS // 2


async def test_a_report_sent_during_a_transaction_is_not_repeated_after_it(tmp_path: Path) -> None:
    told_now = asyncio.Event()
    async with Smarthost(Script(rcpt=answers)) as host:
        policy = capped(tmp_path, host.port, "1", PATIENT)
        async with Relay(policy) as relay:
            relay.accept("gone0@there.example")
            await relay.until(lambda: reports(host))
            queue_id = relay.accept("gone1@there.example", "slow@there.example")
            await relay.until(lambda: is_deferred(relay, queue_id))
            hurry(10)
            await pass_time(3500)
            late: Turn = [Until(told_now), "550 5.1.1 no such user"]
            host.script.rcpt = lambda argument: late if "slow" in argument else "250 ok"
            assert await relay.operator.act("retry", [queue_id]) == {queue_id: OK}
            await relay.until(lambda: len(reports(host)) == 2)
            await relay.sender.apply(capped(tmp_path, host.port, "null", PATIENT))
            told_now.set()
            await relay.until_empty()
        assert told_of(host) == [[f"{name}@there.example"] for name in ("gone0", "gone1", "slow")]


async def test_a_deleted_message_sends_no_report_that_waited(tmp_path: Path) -> None:
    async with (
        Smarthost(Script(rcpt=answers)) as host,
        Relay(capped(tmp_path, host.port, "1", PATIENT)) as relay,
    ):
        relay.accept("gone0@there.example")
        await relay.until(lambda: reports(host))
        queue_id = relay.accept("gone1@there.example", "slow@there.example")
        await relay.until(lambda: is_deferred(relay, queue_id))
        assert await relay.operator.act("delete", [queue_id]) == {queue_id: OK}
        assert f"{queue_id}: no report of 1 failed" in relay.logged()
        await relay.sender.apply(capped(tmp_path, host.port, "null", PATIENT))
        await relay.until_empty()
        assert len(reports(host)) == 1


async def shown(relay: Relay, queue_id: QueueId) -> dict[str, RecipientView]:
    view = await relay.operator.show(queue_id)
    assert isinstance(view, MessageView)
    return {each.address.partition("@")[0]: each for each in view.recipient_statuses}


async def test_each_recipients_own_last_reply_is_shown(tmp_path: Path) -> None:
    async with Smarthost(Script(rcpt=answers)) as host:
        policy = capped(tmp_path, host.port, "60", PATIENT)
        async with Relay(policy) as relay:
            names = "slow", "full", "gone", "here", "asked"
            asked = DsnRequest(None, "", (*(NO_REQUEST,) * 4, RecipientRequest(Notify.SUCCESS)))
            queue_id = relay.accept(*(f"{name}@there.example" for name in names), dsn=asked)
            await relay.until(lambda: is_deferred(relay, queue_id))
            before = await shown(relay, queue_id)
        assert {name: (each.status, each.text) for name, each in before.items()} == {
            "slow": ("to do", "450 4.2.1 come again"),
            "full": ("to do", "452 4.2.2 Mailbox full"),
            "gone": ("bounced", "550 5.1.1 no such user"),
            "here": ("relayed", ""),
            "asked": ("relayed", ""),
        }
        async with Relay(policy) as relay:
            after = await shown(relay, queue_id)
            assert after["gone"].reported
            assert after["full"].next_attempt_at_ns is not None
            assert after["gone"].next_attempt_at_ns is None


async def test_a_warning_of_late_mail_has_its_last_replies_and_counts_as_a_report(tmp_path: Path) -> None:
    clock, retry = virtual_clock(), "min: 6h, max: 12h, warn_after: 4h"
    async with (
        Smarthost(Script(rcpt=answers)) as host,
        Relay(capped(tmp_path, host.port, "60", retry)) as relay,
    ):
        late = relay.accept("slow@there.example", "full@there.example")
        held = relay.accept("slow-held@there.example")
        nobodys = relay.accept("slow@there.example", sender="")
        await relay.until(lambda: all(is_deferred(relay, each) for each in (late, held, nobodys)))
        assert await relay.operator.act("hold", [held]) == {held: OK}
        clock.advance(5 * HOUR_NS)
        for _ in range(2):
            await relay.late.look()
            assert relay.logged().count("sender delay notification") == 1
        await relay.until(lambda: reports(host))
        assert [each["Status"] for each in fields(reports(host)[0])] == ["4.2.1", "4.2.2"]

        began_ns = clock.boottime_ns()
        await relay.sender.apply(capped(tmp_path, host.port, "1", retry))
        relay.accept("gone@there.example")
        hurry(30)
        await relay.until(lambda: len(reports(host)) == 2)
        assert told_of(host)[1] == ["gone@there.example"]
        assert clock.boottime_ns() - began_ns >= HOUR_NS - 60 * SECOND_NS


async def test_late_mail_that_cannot_be_warned_of_holds_up_no_other_warning(tmp_path: Path) -> None:
    clock, retry = virtual_clock(), "min: 6h, max: 12h, warn_after: 4h"
    async with Smarthost() as host, Relay(capped(tmp_path, host.port, "60", retry)) as relay:
        assert await relay.operator.pause("isp", PauseAsked("anna")) == OK
        damaged, late = relay.accept(), relay.accept()
        await relay.until(lambda: len(relay.sender.queue) == 2)
        (path,) = (tmp_path / "spool").rglob(damaged)
        path.write_bytes(b"")
        clock.advance(5 * HOUR_NS)
        await relay.late.look()
        assert f"{late}: sender delay notification" in relay.logged()
        assert damaged not in relay.sender.queue


async def test_dsn_that_an_upstream_refuses_is_asked_once_and_successes_are_reported(
    tmp_path: Path,
) -> None:
    def refuses(argument: str) -> str:
        return "555 5.5.4 unsupported option" if "NOTIFY" in argument else "250 ok"

    asked = DsnRequest(None, "", (RecipientRequest(Notify.SUCCESS),))
    async with (
        Smarthost(Script(rcpt=refuses), extensions=(*Smarthost.EXTENSIONS, "DSN")) as host,
        Relay(policy_of(tmp_path, host.port, connections=1)) as relay,
    ):
        for _ in range(2):
            relay.accept("here@there.example", dsn=asked)
            await relay.until_empty()
        assert [[each["Action"] for each in fields(report)] for report in reports(host)] == [["relayed"]] * 2
        assert sum("NOTIFY" in command for command in host.commands) == 1


async def test_owed_reports_go_in_order_and_before_any_warning(tmp_path: Path) -> None:
    clock, made = virtual_clock(), list[QueueId]()
    telemetry = Telemetry(Events(io.StringIO(), "text", clock), Metrics(), clock)
    owed = OwedReports(capped(tmp_path, 9, "5"), Host(clock, Unsynced(), InTurn), telemetry)

    async def report(queue_id: QueueId) -> bool:
        """Make a report, while late mail asks for a slot."""
        assert not await owed.may_warn()
        made.append(queue_id)
        return True

    ids = [QueueId("1" * 16), QueueId("0" * 16)]
    for queue_id in ids:
        owed.ask(queue_id)
    running = asyncio.create_task(owed.run(report))
    await turns_of_the_loop()
    assert made == ids
    assert await owed.may_warn()
    running.cancel()
