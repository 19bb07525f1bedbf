"""An account cut off in words that nobody knows bounces nobody; one sender's fault stops nobody else."""

from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.control.operations import OK
from relay.queue.queued import Queued, State
from relay.verdicts.health import Health
from tests.fakes.smarthost import Recorded, Script, Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of, virtual_clock

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
