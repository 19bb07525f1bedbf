"""A limit for each sender, and a sender that spells its address in several ways."""

from pathlib import Path

from tests.fakes.smarthost import Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of

THREE_EACH = ", limits: [{messages: 3, per: 1h, for_each: sender}]"
SPELLINGS = ["a@h.example", '"a"@h.example', '"\\a"@h.example']


async def test_a_sender_has_one_window_and_its_spelling_is_passed_on(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port, THREE_EACH)) as relay:
        for sender in SPELLINGS * 3:
            relay.accept(sender=sender)
        relay.accept(sender="b@h.example")
        await relay.until(lambda: len(host.relayed) > 4 or _is_full(relay))

        assert len(host.relayed) == 4
        assert sorted(each.reverse_path for each in host.relayed) == sorted([*SPELLINGS, "b@h.example"])


def _is_full(relay: Relay) -> bool:
    waiting = [message.reason for message in relay.watch.listing().messages()]
    return len(waiting) == 6 and all("no room in 3 messages per 3600s" in reason for reason in waiting)
