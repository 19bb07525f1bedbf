"""An upstream that takes so many messages a session costs no pause: the next session goes on."""

from pathlib import Path

import pytest

from tests.fakes.smarthost import CLOSE, Script, Smarthost, Turn
from tests.unit.sender.in_process_relay import Relay, policy_of

EACH = 3
"""So many messages the upstream takes in a session."""
ENOUGH: dict[str, Turn] = {
    "421": ["421 4.7.0 Too many messages in this session", CLOSE],
    "452": "452 4.3.2 Enough of this session",
}


def _refusing(host: Smarthost, enough: Turn, each: int) -> Script:
    def mail(_: str) -> Turn:
        sent = sum(command.startswith("MAIL") for command in host.sessions[-1].commands)
        return enough if sent > each else "250 ok"

    return Script(mail=mail)


@pytest.mark.parametrize("extensions", [None, ()], ids=["pipelined", "plain"])
@pytest.mark.parametrize("enough", list(ENOUGH.values()), ids=list(ENOUGH))
async def test_a_full_session_ends_and_the_next_goes_on_at_once(
    tmp_path: Path, enough: Turn, extensions: tuple[str, ...] | None
) -> None:
    async with Smarthost(extensions=extensions) as host:
        host.script = _refusing(host, enough, EACH)
        limit = ", limits: [{messages: 100, per: 1h}]"
        async with Relay(policy_of(tmp_path, host.port, limit, connections=1)) as relay:
            for number in range(10):
                relay.accept(f"r{number}@there.example")
            await relay.until_empty()
            relay.events.flush()
            log = relay.log.getvalue()
            used = relay.account.throttle.view.usage()[0].used

        assert "paused" not in log
        assert "deferred" not in log
        # Who came first goes first, also behind the refusal.
        assert [relayed.recipients[0] for relayed in host.relayed] == [
            f"r{number}@there.example" for number in range(10)
        ]
        # One slot shows how many a session takes; the sessions behind it end before they are refused.
        assert used == 11
        assert len(host.sessions) == 4


@pytest.mark.parametrize(
    ("refusal", "each"),
    [
        ("421 4.7.0 Too many messages", 0),
        ("421 4.7.0 You have sent too many messages, try again in 2 hours", EACH),
        ("452 4.4.5 Daily message limit exceeded", EACH),
    ],
    ids=["first of its session", "asks for time", "names a window"],
)
async def test_a_refusal_of_us_is_no_full_session(tmp_path: Path, refusal: str, each: int) -> None:
    async with Smarthost() as host:
        host.script = _refusing(host, refusal, each)
        async with Relay(policy_of(tmp_path, host.port, connections=1)) as relay:
            for number in range(10):
                relay.accept(f"r{number}@there.example")
            await relay.until(lambda: relay.account.pausing.state.why)
            assert len(host.relayed) == each
            assert len(host.sessions) == 1
