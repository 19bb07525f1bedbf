"""A failure is reported when it is settled, whatever else its message waits for; each one once."""

from pathlib import Path

from relay.clock import SECOND_NS
from relay.control.operations import OK
from relay.mail.envelope import QueueId
from relay.policy.model import Policy
from relay.queue.scheduler import State
from tests.fakes.smarthost import Script, Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of, virtual_clock
from tests.unit.sender.test_report_limit import SHIELD_OFF, nobody, reports, told

HOUR_NS = 3600 * SECOND_NS


def fussy(argument: str) -> str:
    return "450 4.2.0 come again" if "slow" in argument else nobody(argument)


def patient(folder: Path, port: int, per_hour: str = "60") -> Policy:
    """Return a policy whose next attempts are hours away."""
    rest = f"retry: {{min: 1h, max: 2h, lifetime: 5d}}\nreports: {{per_hour: {per_hour}}}"
    return policy_of(folder, port, SHIELD_OFF, rest)


def failed(report: bytes) -> list[str]:
    lines = report.partition(b"text/rfc822-headers")[0].decode().split("\r\n")
    return [line.partition("; ")[2] for line in lines if line.startswith("Final-Recipient")]


def is_deferred(relay: Relay, queue_id: QueueId) -> bool:
    queued = relay.queued(queue_id)
    return queued is not None and queued.state is State.DEFERRED


async def test_failures_of_one_transaction_are_in_one_report_at_once(tmp_path: Path) -> None:
    async with Smarthost(Script(rcpt=fussy)) as host:
        policy = patient(tmp_path, host.port)
        async with Relay(policy) as relay:
            queue_id = relay.accept("gone1@there.example", "slow@there.example", "gone2@there.example")
            await relay.until(lambda: reports(host))
            await relay.until(lambda: is_deferred(relay, queue_id))
            assert f"{queue_id}: sender non-delivery notification: {queue_id}r1" in told(relay)
            host.script.rcpt = lambda argument: "550 5.1.1 no" if "slow" in argument else "250 ok"
        async with Relay(policy) as relay:
            assert await relay.operator.act("retry", [queue_id]) == {queue_id: OK}
            await relay.until_empty()
            assert f"{queue_id}: sender non-delivery notification: {queue_id}r event=" in told(relay)

        first, last = [report.content for report in reports(host)]
        assert failed(first) == ["gone1@there.example", "gone2@there.example"]
        assert failed(last) == ["slow@there.example"]
        ids = {line for report in (first, last) for line in report.split(b"\r\n") if b"Message-ID" in line}
        assert len(ids) == 2


async def test_a_capped_report_goes_in_its_turn_while_others_are_deferred(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost(Script(rcpt=fussy)) as host:
        policy = patient(tmp_path, host.port, "1")
        async with Relay(policy, clock=clock) as relay:
            relay.accept("gone0@there.example")
            await relay.until(lambda: reports(host))
            queue_id = relay.accept("gone1@there.example", "slow@there.example")
            await relay.until(lambda: is_deferred(relay, queue_id))
            host.script.rcpt = lambda argument: "250 ok" if "later" in argument else fussy(argument)
            assert await relay.operator.act("retry", [queue_id]) == {queue_id: OK}
            await relay.until(lambda: is_deferred(relay, queue_id))
            assert told(relay).count(f"{queue_id}: its report waits") == 1
        async with Relay(policy, clock=clock) as relay:
            # A start asks again.
            await relay.until(lambda: is_deferred(relay, queue_id))
            assert len(reports(host)) == 1
            clock.advance(HOUR_NS + SECOND_NS)
            relay.sender.owed.wake()
            await relay.until(lambda: len(reports(host)) == 2)
            # Its report had it until it was durable.
            await relay.until(lambda: is_deferred(relay, queue_id))
        assert failed(reports(host)[1].content) == ["gone1@there.example"]
