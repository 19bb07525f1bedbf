"""Through a whole sender: a refusal bounces nobody before it is known whose it is."""

from pathlib import Path

import pytest

from tests.fakes.smarthost import CLOSE, RESET, Script, Smarthost, Turn
from tests.fakes.smarthost_script import Act
from tests.unit.sender.in_process_relay import Relay, policy_of
from tests.unit.upstream.unasked import Truth, Unasked, UnaskedHost


@pytest.mark.parametrize("behind", [CLOSE, RESET], ids=["closed", "reset"])
async def test_a_refusal_before_a_hang_up_bounces_when_said_again(tmp_path: Path, behind: Act) -> None:
    def rcpt(argument: str) -> Turn:
        return ["550 5.1.1 who?", behind] if "gone@" in argument else "250 ok"

    async with Smarthost(Script(rcpt=rcpt)) as host, Relay(policy_of(tmp_path, host.port)) as relay:
        relay.accept("gone@there.example")
        await relay.until_empty()

        (report,) = host.relayed
        assert b"gone@there.example" in report.content
        assert sum("gone@" in command for command in host.commands) == 2


@pytest.mark.parametrize("pipelines", [False, True], ids=["in turn", "at once"])
@pytest.mark.parametrize("command", [1, 2, 4, 5, 6])
async def test_an_unasked_refusal_bounces_no_message(tmp_path: Path, command: int, pipelines: bool) -> None:
    truth, unasked = Truth(), [Unasked(command, "550 5.1.1 who?")]
    async with UnaskedHost(truth, unasked, pipelines=pipelines).listening() as host:
        policy = policy_of(tmp_path, host.port, ", max_transaction: 3s", connections=1)
        async with Relay(policy) as relay:
            for number in range(3):
                relay.accept(f"r{number}@there.example")
            await relay.until_empty()
            assert (await relay.sender.spool_thread.totals()).bounced == 0
        assert {recipient for each in host.relayed for recipient in each} == {
            f"r{number}@there.example" for number in range(3)
        }
