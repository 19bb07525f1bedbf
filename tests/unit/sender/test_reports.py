"""What a sender is told of failed recipients: at once, once, within `reports.per_hour`, and never lost."""

import asyncio
from pathlib import Path

from relay.clock import SECOND_NS
from relay.control.operations import OK, ONLY_REPORT_LEFT, VERBS
from relay.mail.envelope import QueueId
from relay.policy.model import Policy
from relay.queue.queued import State
from relay.status.snapshot import MessageView, QueueState, RecipientView
from relay.telemetry.metric_table import Totals
from tests.fakes.smarthost import Script, Smarthost, Turn, Until
from tests.fakes.smarthost_dialogue import Recorded
from tests.fakes.virtual_time import pass_time
from tests.unit.sender.in_process_relay import Relay, policy_of, virtual_clock

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
