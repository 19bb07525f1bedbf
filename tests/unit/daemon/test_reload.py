"""After an edit of a running relay's policy the upstream never sees more than the new limits allow."""

from pathlib import Path

from tests.fakes.smarthost import Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of

FIVE_AN_HOUR = ", limits: [{messages: 5, per: 1h}]"
NO_ROOM = "limit 5 messages per 3600s"


async def test_a_limit_that_an_edit_adds_counts_what_was_sent_before(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        await _relay(relay, 3)

        await relay.sender.apply(policy_of(tmp_path, host.port, FIVE_AN_HOUR))
        await _relay_until_full(relay, host, 8, most=5)

        assert len(host.relayed) == 5


async def _relay(relay: Relay, messages: int) -> None:
    for number in range(messages):
        relay.accept(f"r{number}@x.example")
    await relay.until_empty()


async def _relay_until_full(relay: Relay, host: Smarthost, messages: int, most: int) -> None:
    """Accept messages; wait until one has no room, or more than `most` were relayed."""
    for number in range(messages):
        relay.accept(f"r{number}@x.example")

    def is_full() -> bool:
        reasons = {message.reason for message in relay.watch.listing().messages()}
        return NO_ROOM in reasons and not relay.account.in_flight

    await relay.until(lambda: is_full() or len(host.relayed) > most)
