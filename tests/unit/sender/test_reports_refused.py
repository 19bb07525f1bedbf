"""A refused report is gone: so what is no refusal of it must never end one."""

from pathlib import Path

import pytest

from tests.fakes.smarthost import DEFAULT, Script, Smarthost, Turn, turns
from tests.unit.sender.in_process_relay import Relay, policy_of

SENDER = '"daily sending quota"@here.example'
ODD: dict[str, Turn] = {
    "SIZE 300": b"250-fake.example\r\n250-8BITMIME\r\n250 SIZE 300\r\n",
    "no 8BITMIME, SIZE 300": b"250-fake.example\r\n250 SIZE 300\r\n",
    "a quota": "550 5.7.1 daily sending quota exceeded",
    "a quota in 502": "502 5.7.1 you have exceeded your hourly limit of messages",
}
OURS = {
    "a quota": "554 5.7.1 You have exceeded your Outmail quota",
    "a quota, with the code of a mailbox": "552 5.2.2 You have exceeded your Outmail quota",
    "a quota and the name": f"554 5.7.1 <{SENDER}>: Recipient address rejected: Daily sending quota exceeded",
    "a quota like the name": "554 5.7.1 daily sending quota exceeded",
}


def of_gone(argument: str) -> bool:
    return "gone@" in argument


def is_done(relay: Relay) -> bool:
    """Whether nothing is queued; a pause is over at once."""
    if relay.dispatcher.pausing.because:
        relay.dispatcher.pausing.end()
        relay.dispatcher.wake()
    return len(relay.sender.queue) == 0


def is_dropped(relay: Relay) -> bool:
    relay.events.flush()
    return "no report" in relay.log.getvalue()


async def relays_its_report(tmp_path: Path, host: Smarthost) -> None:
    """Have a message bounce, and see its report relayed, on another connection each time."""
    policy = policy_of(tmp_path, host.port, ", max_messages: 1", connections=1)
    async with Relay(policy) as relay:
        relay.accept("gone@there.example", sender=SENDER)
        await relay.until(lambda: is_done(relay) and (host.relayed or is_dropped(relay)))

    (report,) = host.relayed
    assert (report.reverse_path, report.recipients) == ("", [SENDER])


@pytest.mark.parametrize("odd", list(ODD.values()), ids=list(ODD))
async def test_one_odd_ehlo_ends_no_report(tmp_path: Path, odd: Turn) -> None:
    def rcpt(argument: str) -> Turn:
        return "550 5.1.1 who?" if of_gone(argument) else "250 ok"

    async with Smarthost(Script(ehlo=turns(DEFAULT, odd), rcpt=rcpt)) as host:
        await relays_its_report(tmp_path, host)

        assert sum(command.startswith("EHLO") for command in host.commands) >= 3


@pytest.mark.parametrize("phase", ["rcpt", "eod"])
@pytest.mark.parametrize("ours", list(OURS.values()), ids=list(OURS))
async def test_a_refusal_of_us_ends_no_report(tmp_path: Path, ours: str, phase: str) -> None:
    said: list[str] = []

    def refuses_once(argument: str) -> Turn:
        if of_gone(argument):
            return "550 5.1.1 who?"
        said.append(argument)
        return ours if len(said) == 1 else "250 ok"

    def rcpt(argument: str) -> Turn:
        return refuses_once(argument) if phase == "rcpt" or of_gone(argument) else "250 ok"

    script = Script(rcpt=rcpt) if phase == "rcpt" else Script(rcpt=rcpt, eod=refuses_once)
    async with Smarthost(script) as host:
        await relays_its_report(tmp_path, host)

        assert len(said) == 2
