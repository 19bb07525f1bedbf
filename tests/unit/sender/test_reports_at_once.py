"""A failure is reported when it is settled, whatever else its message waits for; each one once."""

from pathlib import Path

from relay.clock import SECOND_NS, SystemClock
from relay.control.operations import OK
from relay.mail.envelope import Envelope, QueueId
from relay.policy.model import Policy
from relay.queue.scheduler import State
from relay.spool.disk.durable import RealDisk
from relay.spool.interface import Note, Status
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.intake import MaildirIntake
from tests.fakes.clock import LeapingClock
from tests.fakes.smarthost import Script, Smarthost
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of
from tests.unit.sender.test_report_limit import SHIELD_OFF, nobody, reports, told, waiting
from tests.unit.spool.recovering import recover

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
    clock = LeapingClock()
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
            clock.ahead_ns += HOUR_NS + SECOND_NS
            relay.sender.owed.wake()
            await relay.until(lambda: len(reports(host)) == 2)
            # Its report had it until it was durable.
            await relay.until(lambda: is_deferred(relay, queue_id))
        assert failed(reports(host)[1].content) == ["gone1@there.example"]


async def test_what_fails_while_its_report_waits_is_in_the_same_report(tmp_path: Path) -> None:
    clock = LeapingClock()
    async with (
        Smarthost(Script(rcpt=fussy)) as host,
        Relay(patient(tmp_path, host.port, "1"), clock=clock) as relay,
    ):
        relay.accept("gone0@there.example")
        await relay.until(lambda: reports(host))
        queue_id = relay.accept("gone1@there.example", "slow@there.example")
        await relay.until(lambda: is_deferred(relay, queue_id))
        assert await relay.operator.act("bounce", [queue_id]) == {queue_id: OK}
        assert waiting(relay) == [queue_id]
        clock.ahead_ns += HOUR_NS + SECOND_NS
        relay.sender.owed.wake()
        await relay.until_empty()

        assert failed(reports(host)[1].content) == ["gone1@there.example", "slow@there.example"]
        assert len(reports(host)) == 2


async def test_what_an_older_relay_left_unreported_is_reported_at_the_start(tmp_path: Path) -> None:
    async with Smarthost(Script(rcpt=fussy)) as host:
        policy, clock, disk = patient(tmp_path, host.port), SystemClock(), RealDisk()
        spool = MaildirSpool(str(policy.spool), disk, clock)
        recover(spool)
        intake = MaildirIntake(str(policy.spool), disk, clock)
        draft = intake.draft()
        draft.append(CONTENT)
        to = ("gone@there.example", "slow@there.example")
        envelope = Envelope("a@here.example", to, clock.wall_ns(), "unknown[127.0.0.1]", "here", "ESMTP")
        assert intake.accept([(draft, envelope)]) == [None]
        spool.take(1)
        reason = Note(0, "5.1.1", "bounced", "550 5.1.1 told long ago", "isp", clock.wall_ns())
        spool.note({draft.queue_id: [reason]})
        spool.mark({draft.queue_id: {0: Status.BOUNCED}})
        spool.close()

        for _ in range(2):
            async with Relay(policy) as relay:
                await relay.until(lambda: reports(host))
                await relay.until(lambda: len(relay.sender.queue) == 1)
        (report,) = reports(host)
        assert failed(report.content) == ["gone@there.example"]
        assert b"550 5.1.1 told long ago" in report.content


async def test_nobody_is_told_of_mail_from_nobody_meanwhile(tmp_path: Path) -> None:
    async with (
        Smarthost(Script(rcpt=fussy)) as host,
        Relay(patient(tmp_path, host.port)) as relay,
    ):
        queue_id = relay.accept("gone@there.example", "slow@there.example", sender="")
        await relay.until(lambda: is_deferred(relay, queue_id))
        assert len(relay.sender.queue) == 1
        assert "sender non-delivery" not in told(relay)
        assert not reports(host)
