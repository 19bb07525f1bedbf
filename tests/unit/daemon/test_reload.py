"""A policy that is edited under a whole relay: the upstream never sees more than the new limits allow."""

from pathlib import Path

from tests.fakes.smarthost import Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of

FIVE_AN_HOUR = ", limits: [{messages: 5, per: 1h}]"
NO_ROOM = "limit 5 messages per 3600s"


async def test_a_first_limit_counts_what_went_before_it(tmp_path: Path) -> None:
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
    """Hand over messages, and wait until one has to wait, or more went than may."""
    for number in range(messages):
        relay.accept(f"r{number}@x.example")

    def is_full() -> bool:
        reasons = {message.reason for message in relay.status_view.listing().messages()}
        return NO_ROOM in reasons and not relay.account.in_flight

    await relay.until(lambda: is_full() or len(host.relayed) > most)
