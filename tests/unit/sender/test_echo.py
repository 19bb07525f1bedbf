"""An upstream that prints what a client said: its words stop nobody, whatever they are."""

from collections.abc import Callable
from pathlib import Path

import pytest

from relay.queue.queued import State
from tests.fakes.smarthost import Script, Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of

OTHERS = [f"s{number}@there.example" for number in range(5)]


def postfix(address: str) -> str:
    """Postfix prints the address in its internal form: without quotes."""
    local, _, domain = address.rpartition("@")
    bare = local.strip('"').replace("\\", "")
    return f"550 5.1.1 <{bare}@{domain}>: Recipient address rejected: User unknown in local recipient table"


def folded(address: str) -> str:
    """One reply line for every twelve characters, as a server that fills its lines does."""
    text = f"<{address}> is not a mailbox of ours"
    lines = [text[at : at + 12] for at in range(0, len(text), 12)]
    return "\r\n".join([*(f"550-5.7.1 {line}" for line in lines[:-1]), f"550 5.7.1 {lines[-1]}"])


def of_the_domain(address: str) -> str:
    return f"550 5.4.4 Unable to route: no mail exchanger for {address.rpartition('@')[2]}"


@pytest.mark.parametrize("says", [postfix, folded, of_the_domain])
@pytest.mark.parametrize(
    "recipient",
    [
        '"daily sending quota exceeded"@x.example',
        '"daily sending is paused for this account"@x.example',
        '"a> daily sending quota exceeded <b"@x.example',
        '"#5.7.13 your account is suspended, try again in 5 hours"@x.example',
        "joe@throttl.example",
    ],
)
async def test_a_recipient_whose_name_speaks_of_a_quota_stops_no_other_mail(
    tmp_path: Path, recipient: str, says: Callable[[str], str]
) -> None:
    def rcpt(argument: str) -> str:
        address = argument.partition("<")[2].rpartition(">")[0]
        return says(address) if address == recipient else "250 ok"

    async with (
        Smarthost(Script(rcpt=rcpt)) as host,
        Relay(policy_of(tmp_path, host.port, connections=1)) as relay,
    ):
        relay.accept(recipient)
        for other in OTHERS:
            relay.accept(other)
        await relay.until(lambda: relay.account.pausing.state.why or len(host.relayed) >= len(OTHERS))

        assert relay.account.pausing.state.why == ""
        await relay.until_empty()
        (report,) = [relayed for relayed in host.relayed if relayed.reverse_path == ""]
        assert b"Status: 5." in report.content
        assert relay.line.sender_pauses.senders() == {}


async def test_a_refusal_about_us_that_prints_such_a_name_bounces_nothing_and_stops_at_the_next(
    tmp_path: Path,
) -> None:
    recipient = '"daily sending quota exceeded"@x.example'

    def rcpt(argument: str) -> str:
        address = argument.removeprefix("TO:")
        return f"554 5.7.1 {address}: Recipient address rejected: Daily sending quota exceeded"

    async with (
        Smarthost(Script(rcpt=rcpt)) as host,
        Relay(policy_of(tmp_path, host.port, connections=1)) as relay,
    ):
        queue_id = relay.accept(recipient)
        await relay.until(lambda: (q := relay.queued(queue_id)) and q.state is State.DEFERRED)
        relay.accept("b@there.example")
        await relay.until(lambda: relay.account.pausing.state.why)

        totals = relay.sender.totals
        assert totals.bounced == 0
