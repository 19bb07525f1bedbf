"""The accounts of README, at work: what their senders hear of mail that fails."""

import asyncio
import smtplib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.fakes.smarthost import Script, Smarthost, Turn
from tests.system.warm import WarmRelay

pytestmark = pytest.mark.full

CONTENT = "Subject: x\r\n\r\nx\r\n"
README = Path(__file__).parents[2] / "README.md"


def send(relay: WarmRelay, *recipients: str) -> None:
    """Hand over a message to each."""
    with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
        for recipient in recipients:
            session.sendmail("mjd@front.test", [recipient], CONTENT)


async def beside(host: Smarthost, act: Callable[[Smarthost], None]) -> None:
    """Do something that waits, while the smarthost runs."""
    async with host:
        await asyncio.to_thread(act, host)


@pytest.mark.parametrize("account", [0, 1], ids=["gmail", "m365"])
async def test_reports_leave_as_the_accounts_of_readme_let_them(tmp_path: Path, account: int) -> None:
    """The account sends only as itself; of Microsoft 365 not even from `<>`."""
    example = yaml.safe_load(README.read_text().split("```yaml\n")[1 + account].partition("```")[0])
    itself = example["upstreams"]["m365" if account else "gmail"]["auth"]["user"]

    def mail(argument: str) -> Turn:
        return "550 5.2.252 SendAsDenied" if account and argument.startswith("FROM:<>") else "250 ok"

    def act(local: Smarthost) -> None:
        ports = {name: local.port if name == "local" else host.port for name in example["upstreams"]}
        upstreams = {
            name: {"host": "127.0.0.1", "port": port, "tls": "none", "shield": None, "history": name}
            for name, port in ports.items()
        }
        relay = WarmRelay(tmp_path, upstreams, reports=example["reports"])
        with relay:
            send(relay, "gone@there.test")
            relay.wait_until_empty()
            assert relay.metrics()["relay_reports_dropped_total"] == 0
        ((report,), other) = (local.relayed, host.relayed) if account else (host.relayed, local.relayed)
        assert (report.reverse_path, other) == ("", [])
        assert f"<{example['reports']['from']}>" in report.content.decode().partition("\r\nTo:")[0]
        assert account or example["reports"]["from"] == itself

    host = Smarthost(Script(mail=mail, rcpt=lambda to: "550 5.1.1 who?" if "gone" in to else "250 ok"))
    async with host:
        await beside(Smarthost(), act)
