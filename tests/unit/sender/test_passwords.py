"""A new password that is being written: no half of one is ever tried at an upstream."""

import asyncio
import io
from pathlib import Path

import pytest

from relay.clock import SystemClock
from relay.policy.model import Auth, Upstream
from relay.policy.shipped import standard_judge
from relay.sender.logins import REST_SECONDS, Logins
from relay.spool.disk.durable import RealDisk
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from relay.telemetry.telemetry import Telemetry

OLD, PIECES = "correct horse", ["bat", "battery ", "battery staple"]


class Written:
    """The password of an account, and a program that writes another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch(0o600)
        path.write_text(OLD)
        upstream = Upstream(host="127.0.0.1", limits=(), auth=Auth(user="u", password_file=path))
        clock = SystemClock()
        telemetry = Telemetry(Events(io.StringIO(), "text", clock), Metrics(clock), clock)
        self.logins = Logins("isp", upstream, "relay.test", disk=RealDisk(), telemetry=telemetry)

    async def password(self) -> str | None:
        return (await self.logins.account(standard_judge())).password


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "password")


async def test_a_password_that_is_as_it_was_is_used_without_a_rest(written: Written) -> None:
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    assert [await written.password() for _ in range(3)] == [OLD] * 3
    assert loop.time() == began_at


async def test_a_password_that_is_still_written_is_waited_for(written: Written) -> None:
    await written.password()
    loop = asyncio.get_running_loop()
    for number, piece in enumerate(PIECES):
        loop.call_later((number + 0.5) * REST_SECONDS, written.path.write_text, piece)
    written.path.write_text(PIECES[0][:1])

    assert await written.password() == PIECES[-1]


async def test_a_refused_account_is_tried_with_a_password_at_rest(written: Written) -> None:
    await written.password()
    for piece in PIECES:
        written.path.write_text(piece)
        assert not await written.logins.has_new_password()
    assert [await written.logins.has_new_password() for _ in range(2)] == [True, True]
