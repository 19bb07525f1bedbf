"""What the log says of a refusal for having sent too much: our own windows, and the number that it names."""

from pathlib import Path

from tests.fakes.smarthost import Script, Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of

OVER = "450 4.7.1 you have exceeded the limit of 19 recipients per hour"
LIMITS = ", limits: [{recipients: 20, per: 1h}, {messages: 1000, per: 1m}]"


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


async def test_a_refusal_is_told_beside_what_our_windows_held(tmp_path: Path) -> None:
    async with (
        Smarthost(Script(rcpt=Counting(19).rcpt)) as host,
        Relay(policy_of(tmp_path, host.port, LIMITS)) as relay,
    ):
        relay.accept(*[f"r{number}@there.example" for number in range(19)])
        await relay.until_empty()
        relay.accept("one-more@there.example")
        await relay.until(lambda: relay.account.pausing.state.why and relay.account.in_flight == 0)

        relay.events.flush()
        (line,) = (line for line in relay.log.getvalue().splitlines() if "event=cut_off" in line)
        assert "this was too much, and names 19; our windows held 20/20 recipients per 3600s, " in line
        assert "2/1000 messages per 60s" in line
