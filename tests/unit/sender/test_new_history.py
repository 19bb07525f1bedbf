"""A history that begins empty is announced, once: nothing that was sent before it counts."""

from pathlib import Path

from tests.fakes.smarthost import Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of

FIVE_AN_HOUR = ", limits: [{messages: 5, per: 1h}]"


def _told(relay: Relay) -> list[str]:
    relay.events.flush()
    return [line.partition("]: ")[2] for line in relay.log.getvalue().splitlines() if "begins empty" in line]


def _line(path: Path) -> str:
    return f"history of isp begins empty, at {path}: nothing that was sent before counts event=history_begun"


async def test_a_history_that_begins_empty_is_announced_when_it_is_made_and_never_again(
    tmp_path: Path,
) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port, FIVE_AN_HOUR)
        async with Relay(policy) as relay:
            for _ in range(2):
                relay.accept()
                await relay.until_empty()
            assert _told(relay) == [_line(policy.history_path("isp"))]
        async with Relay(policy) as relay:
            relay.accept()
            await relay.until_empty()
            assert _told(relay) == []
