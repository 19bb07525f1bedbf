"""A new password that is being written: no half of one is ever tried at an upstream."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from relay.clock import SystemClock
from relay.policy.model import Auth, Upstream
from relay.policy.shipped import standard_judge
from relay.sender.accounts import Accounts
from relay.sender.oauth.account_tokens import AccountTokens
from relay.sender.tls.client_certificates import ClientCertificates
from relay.spool.disk.durable import RealDisk
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from relay.telemetry.telemetry import Telemetry

OLD, HALF, REST = "correct horse", "battery ", "staple\n"


class Written:
    """The password of an account, and a program that writes another while `Accounts` rests."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch(0o600)
        path.write_text(OLD)
        self.upstream = Upstream(host="127.0.0.1", auth=Auth(user="u", password_file=path))
        clock = SystemClock()
        telemetry = Telemetry(Events(io.StringIO(), "text", clock), Metrics(clock), clock)
        tokens = AccountTokens(RealDisk(), telemetry)
        self.accounts = Accounts("relay.test", tokens, ClientCertificates(telemetry.events))
        self.acts: list[Callable[[], object]] = []
        self.rests = 0

    async def sleep(self, _seconds: float) -> None:
        self.rests += 1
        if self.acts:
            self.acts.pop(0)()

    async def password(self) -> str | None:
        return (await self.accounts.account("isp", self.upstream, standard_judge())).password

    async def is_new(self) -> bool:
        assert self.upstream.auth is not None
        return await self.accounts.has_new_password("isp", self.upstream.auth)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    written = Written(tmp_path / "password")
    monkeypatch.setattr("relay.sender.accounts.asyncio.sleep", written.sleep)
    return written


async def test_a_password_that_is_as_it_was_is_used_without_a_rest(written: Written) -> None:
    assert [await written.password() for _ in range(3)] == [OLD] * 3
    assert written.rests == 0


async def test_half_a_password_waits_until_its_writer_has_closed_it(written: Written) -> None:
    await written.password()
    writer = written.path.open("w")
    writer.write(HALF)
    writer.flush()

    def write_the_rest() -> None:
        writer.write(REST)
        writer.flush()

    written.acts = [lambda: None, lambda: None, write_the_rest, lambda: None, writer.close]

    assert await written.password() == HALF + REST.strip()


async def test_a_refused_account_is_tried_with_a_password_at_rest(written: Written) -> None:
    await written.password()
    with written.path.open("w") as writer:
        writer.write(HALF)
        writer.flush()
        assert [await written.is_new() for _ in range(3)] == [False] * 3
        writer.write(REST)
    assert [await written.is_new() for _ in range(2)] == [False, True]
