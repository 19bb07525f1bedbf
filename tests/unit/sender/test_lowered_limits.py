"""What a refusal for having sent too much teaches a relay that runs, and what of it is in force."""

import re
from pathlib import Path

from relay.status.page import render
from relay.status.snapshot import public, to_json
from tests.fakes.smarthost import Script, Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of

OVER = "450 4.7.1 you have exceeded the number of recipients per hour"
FOUND = r"cut off after 19 recipients in \d+ s; policy says 20 per 1h; suggested 18"


class Counting:
    """An upstream that takes so many recipients and refuses from then on."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    def rcpt(self, _: str) -> str:
        if self.taken >= self.most:
            return OVER
        self.taken += 1
        return "250 ok"


def limits(count: int = 20, adapt: str = "") -> str:
    return f", limits: [{{recipients: {count}, per: 1h}}, {{messages: 1000, per: 1m}}]{adapt}"


def names(count: int) -> list[str]:
    return [f"r{number}@there.example" for number in range(count)]


async def cut_off(relay: Relay, after: int = 19) -> None:
    """Send so much, then one more, which is refused."""
    relay.accept(*names(after))
    await relay.until_empty()
    relay.accept("one-more@there.example")
    await relay.until(lambda: relay.dispatcher.pausing.because and relay.dispatcher.in_flight == 0)


def told(relay: Relay) -> str:
    relay.events.flush()
    return relay.log.getvalue()


def effective(relay: Relay) -> int:
    return relay.dispatcher.throttle.usage()[0].count


async def test_a_refusal_is_told_beside_what_the_history_says(tmp_path: Path) -> None:
    async with (
        Smarthost(Script(rcpt=Counting(19).rcpt)) as host,
        Relay(policy_of(tmp_path, host.port, limits())) as relay,
    ):
        await cut_off(relay)

        assert re.search(f"upstream isp: {FOUND}", told(relay))
        snapshot = relay.watch.snapshot()
        (finding,) = to_json(public(snapshot))["upstreams"][0]["findings"]
        assert re.fullmatch(FOUND, finding["text"])
        assert (finding["sent"], finding["suggested"]) == (19, 18)
        assert finding["text"] in render(public(snapshot))
        assert effective(relay) == 20, "nothing is lowered unless the policy says so"
