"""Reports beyond `reports.per_hour`: none is lost and none goes early, over restarts and edits."""

from pathlib import Path

from relay.clock import SECOND_NS
from relay.control.operations import OK, ONLY_REPORT_LEFT, VERBS
from relay.policy.model import Policy
from relay.queue.scheduler import State
from relay.spool.interface import Totals
from relay.status.snapshot import QueueState
from tests.fakes.smarthost import Script, Smarthost
from tests.fakes.smarthost_dialogue import Recorded
from tests.unit.sender.in_process_relay import Relay, policy_of, virtual_clock

HOUR_NS = 3600 * SECOND_NS
SHIELD_OFF = ", shield: null"


def nobody(argument: str) -> str:
    return "550 5.1.1 no such user" if "gone" in argument else "250 ok"


def capped(folder: Path, port: int, per_hour: str = "2") -> Policy:
    rest = f"retry: {{min: 50ms, max: 100ms, lifetime: 1d}}\nreports: {{per_hour: {per_hour}}}"
    return policy_of(folder, port, SHIELD_OFF, rest)


def reports(host: Smarthost) -> list[Recorded]:
    return [relayed for relayed in host.relayed if relayed.reverse_path == ""]


def waiting(relay: Relay) -> list[str]:
    return sorted(q.queue_id for q in relay.sender.queue if q.state is State.REPORTING)


def told(relay: Relay) -> str:
    relay.events.flush()
    return relay.log.getvalue()


async def test_reports_beyond_the_cap_go_when_the_hour_allows(
    tmp_path: Path,
) -> None:
    clock = virtual_clock()
    async with Smarthost(Script(rcpt=nobody)) as host:
        async with Relay(capped(tmp_path, host.port), clock=clock) as relay:
            for number in range(5):
                relay.accept(f"gone{number}@there.example")
            # A report that is queued is nowhere in memory until the sender finds it.
            await relay.until(lambda: len(reports(host)) == 2)
            await relay.until(lambda: len(waiting(relay)) == len(relay.sender.queue) == 3)

            assert len(reports(host)) == 2
            assert relay.watch.snapshot().counts(QueueState.REPORTING).messages == 3
            listed = relay.watch.listing().messages()[0]
            assert "only its report is left" in listed.reason
            assert (listed.held_by, listed.eta_at_ns) == ("reports.per_hour", None)
            assert told(relay).count("reports are at reports.per_hour") == 1
            assert told(relay).count("its report waits") == 3
            totals = await relay.sender.spool_thread.totals()
            assert totals == Totals(accepted=7, relayed=2, bounced=5)
            # The wall clock alone opens no window: an hour has to pass.
            clock.advance(HOUR_NS - 60 * SECOND_NS)
            relay.sender.owed.wake()
            await relay.until(lambda: relay.dispatcher.in_flight == 0)
            assert len(reports(host)) == 2

            clock.advance(61 * SECOND_NS)
            relay.sender.owed.wake()
            await relay.until(lambda: len(reports(host)) == 4)
            assert len(waiting(relay)) == 1
            clock.advance(HOUR_NS + SECOND_NS)
            relay.sender.owed.wake()
            await relay.until_empty()

        told_of = b"".join(report.content for report in reports(host))
        assert all(b"gone%d@there.example" % number in told_of for number in range(5))
        assert told_of.count(b"550 5.1.1 no such user") >= 5, "the reasons were kept"


async def test_a_restart_forgets_neither_the_reports_nor_how_many_went(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost(Script(rcpt=nobody)) as host:
        policy = capped(tmp_path, host.port)
        async with Relay(policy, clock=clock) as relay:
            for number in range(4):
                relay.accept(f"gone{number}@there.example")
            await relay.until(lambda: len(waiting(relay)) == 2 and len(reports(host)) == 2)
            before = waiting(relay)
        async with Relay(policy, clock=clock) as relay:
            # A start goes on while the one or other is still on its way to where it waits.
            await relay.until(lambda: waiting(relay) == before)
            relay.accept("gone9@there.example")
            await relay.until(lambda: len(waiting(relay)) == 3)
            assert len(reports(host)) == 2
            clock.advance(HOUR_NS + SECOND_NS)
            relay.sender.owed.wake()
            await relay.until(lambda: len(reports(host)) == 4)
            # First come, first served.
            assert waiting(relay)[0] not in before
        assert policy.reports_history.exists()


async def test_an_edit_of_the_cap_counts_at_once_and_judges_the_same_hour(tmp_path: Path) -> None:
    async with Smarthost(Script(rcpt=nobody)) as host:
        async with Relay(capped(tmp_path, host.port)) as relay:
            for number in range(6):
                relay.accept(f"gone{number}@there.example")
            await relay.until(lambda: len(waiting(relay)) == 4)
            await relay.sender.apply(capped(tmp_path, host.port, "3"))
            await relay.until(lambda: len(waiting(relay)) == 3)
            await relay.sender.apply(capped(tmp_path, host.port, "null"))
            await relay.until_empty()

        assert len(reports(host)) == 6


async def test_an_operator_may_only_delete_what_waits_for_its_report(
    tmp_path: Path,
) -> None:
    async with Smarthost(Script(rcpt=nobody)) as host:
        async with Relay(capped(tmp_path, host.port, "1")) as relay:
            for number in range(3):
                relay.accept(f"gone{number}@there.example")
            await relay.until(lambda: reports(host))
            await relay.until(lambda: len(waiting(relay)) == len(relay.sender.queue) == 2)
            first, second = [queued.queue_id for queued in relay.sender.queue]
            for verb in set(VERBS) - {"delete"}:
                assert await relay.operator.act(verb, [first]) == {first: ONLY_REPORT_LEFT}
            assert await relay.operator.act("delete", [first]) == {first: OK}

            assert waiting(relay) == [second]
            assert f"{first}: no report of 1 failed" in told(relay)
            await relay.sender.apply(capped(tmp_path, host.port, "null"))
            await relay.until_empty()
            assert (await relay.sender.spool_thread.totals()).bounced == 3

        assert len(reports(host)) == 2
