"""Mail through an account with OAuth2: real tokens, a strict smarthost, a consent and its end, edits."""

import asyncio
import io
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from relay.clock import SystemClock
from relay.policy.model import Upstream
from relay.policy.shipped import standard_rules
from relay.sender.connections import Logins, read_refresh_token, write_refresh_token
from relay.smtp.sasl import BearerToken
from relay.spool.disk.durable import RealDisk
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics, Telemetry
from relay.upstream.oauth.token_server import TokenRequest
from relay.verdicts.account import EventKind, Health
from relay.verdicts.verdict import Judge
from tests.fakes.smarthost import ShownToken, Smarthost
from tests.fakes.token_server import CLIENT, USER, TokenServer
from tests.unit.sender.in_process_relay import Relay, policy_of, turns_of_the_loop


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer(secret=secrets.token_urlsafe(24)) as running:
        yield running


@asynccontextmanager
async def relaying(
    server: TokenServer, folder: Path, is_token: Callable[[ShownToken], bool] | None = None
) -> AsyncIterator[Relay]:
    """Run a relay with a consent and a smarthost that takes the server's tokens; check for leaked secrets."""
    refresh, secret = folder / "refresh", folder / "secret"
    for path, text in ((refresh, server.refresh_token()), (secret, server.secret or "")):
        path.touch(0o600)
        path.write_text(text + "\n")
    oauth2 = (
        f"grant: refresh_token, client_id: {CLIENT}, client_secret_file: secret, "
        f"refresh_token_file: refresh, token_url: '{server.url}/token', scope: smtp"
    )
    upstream = f", idle: 1ms, auth: {{user: {USER}, oauth2: {{{oauth2}}}}}"
    host = Smarthost(mechanisms=["XOAUTH2", "OAUTHBEARER"], is_token=is_token or server.is_good)
    async with host, Relay(policy_of(folder, host.port, upstream)) as relay:
        yield relay
        shown = relay.logged() + repr(relay.status_view.snapshot())
        for secret_text in _secrets(server, folder):
            assert secret_text not in shown


def _secrets(server: TokenServer, folder: Path) -> Iterator[str]:
    yield (folder / "secret").read_text().strip()
    for form in server.requests:
        yield form["refresh_token"]
    for granted in server.granted:
        yield from (text for key, text in granted.fields.items() if key in {"access_token", "refresh_token"})


async def _disconnected(relay: Relay) -> None:
    """Wait until no connection is left that could take mail without another login."""
    await relay.until(lambda: not relay.account.pool.open)


async def _paused(relay: Relay) -> None:
    """Wait until a refused token pauses the upstream, and end the pause: time is real here."""
    await relay.until(lambda: relay.account.pausing.state.health is Health.PAUSED)
    relay.account.use_again(EventKind.RESUME)


async def test_connections_share_a_token_and_replace_it_once_if_it_is_refused_early(
    server: TokenServer, tmp_path: Path
) -> None:
    async with relaying(server, tmp_path) as relay:
        for _ in range(20):
            relay.accept()
        await relay.until_empty()

        assert len(server.requests) == 1
        # The rotated refresh token is on disk; the old one is no longer valid.
        assert (tmp_path / "refresh").read_text().strip() == server.granted[-1].fields["refresh_token"]

        await _disconnected(relay)
        server.revoke_access()
        relay.accept()
        await _paused(relay)
        await relay.until_empty()
        assert len(server.requests) == 2
        assert "stopped" not in relay.logged()


async def test_a_refused_token_that_is_granted_again_is_tried_once_more(
    server: TokenServer, tmp_path: Path
) -> None:
    logins: list[str] = []

    def is_token(shown: ShownToken) -> bool:
        logins.append(shown.token)
        return server.is_good(shown)

    async with relaying(server, tmp_path, is_token) as relay:
        relay.accept()
        await relay.until_empty()
        await _disconnected(relay)
        server.revoke_access()
        before = len(logins)
        again = {"access_token": logins[0], "token_type": "Bearer", "expires_in": 3600}
        server.failures.append((200, json.dumps(again).encode(), {}))
        relay.accept()
        await _paused(relay)
        await relay.until(lambda: relay.account.pausing.state.health is Health.STOPPED)

        assert logins[before:] == [again["access_token"]] * 2


async def test_a_token_that_never_worked_is_not_tried_again(server: TokenServer, tmp_path: Path) -> None:
    """An example is a token of another user, which the upstream always refuses."""
    async with relaying(server, tmp_path, lambda _shown: False) as relay:
        queue_id = relay.accept()
        await relay.until(lambda: relay.account.pausing.state.health is Health.STOPPED)

        assert len(server.requests) == 1
        assert relay.queued(queue_id) is not None


@pytest.mark.parametrize("lacks", ["its consent", "its file"])
async def test_a_missing_consent_stops_with_instructions_and_a_new_one_ends_the_stop(
    server: TokenServer, tmp_path: Path, lacks: str
) -> None:
    refresh = tmp_path / "refresh"
    async with relaying(server, tmp_path) as relay:
        if lacks == "its consent":
            server.revoke_consent()
        else:
            refresh.unlink()
        relay.accept()
        await relay.until(lambda: relay.account.pausing.state.health is Health.STOPPED)
        assert "run `relay login isp`" in relay.account.pausing.state.why
        refresh.touch(0o600)
        refresh.write_text(server.refresh_token())
        await relay.until_empty()


@pytest.mark.parametrize("answer", [(503, b"", {}), (429, b"", {"Retry-After": "7"})])
async def test_an_error_of_the_token_server_pauses_the_upstream(
    server: TokenServer, tmp_path: Path, answer: tuple[int, bytes, dict[str, str]]
) -> None:
    server.failures.append(answer)
    async with relaying(server, tmp_path) as relay:
        queue_id = relay.accept()
        await relay.until(lambda: relay.account.pausing.state.health is Health.PAUSED)
        rest_ns = relay.account.pausing.state.until_ns - relay.clock.boottime_ns()
        assert (rest_ns < 7_000_000_000) == (answer[0] == 429)
        assert relay.queued(queue_id) is not None


async def test_secrets_that_a_token_server_echoes_are_not_shown(server: TokenServer, tmp_path: Path) -> None:
    async with relaying(server, tmp_path) as relay:
        sent = [(tmp_path / name).read_text().strip() for name in ("secret", "refresh")]
        assertion = "eyJhbGciOiJSUzI1NiJ9." + secrets.token_urlsafe(90)
        said = {"error": "invalid_client", "error_description": f"no: {' '.join(sent)} {assertion}"}
        server.failures.append((401, json.dumps(said).encode(), {}))
        relay.accept()
        await relay.until(lambda: relay.account.pausing.state.health is Health.STOPPED)

        shown = relay.logged() + repr(relay.status_view.snapshot())
        assert "the token server says invalid_client; client_id or client secret is wrong" in shown
        assert not [text for text in (*sent, assertion) if text in shown]


async def test_an_unwritable_refresh_token_blocks_new_requests(server: TokenServer, tmp_path: Path) -> None:
    async with relaying(server, tmp_path) as relay:
        (tmp_path / "refresh.lock").mkdir()
        relay.accept()
        await relay.until_empty()
        assert "no access token is requested until its new refresh token is saved" in relay.logged()
        await _disconnected(relay)
        server.revoke_access()
        relay.accept()
        await relay.until(lambda: relay.account.pausing.state.health is Health.PAUSED)
        assert len(server.requests) == 1
        (tmp_path / "refresh.lock").rmdir()
        relay.account.use_again(EventKind.RESUME)
        await relay.until_empty()
        assert len(server.requests) == 2


async def test_an_edit_waits_for_a_request_that_may_rotate_the_refresh_token(tmp_path: Path) -> None:
    path, clock, sent = tmp_path / "refresh", SystemClock(), list[str]()
    path.touch(0o600)
    path.write_text("r0")
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def ask(request: TokenRequest) -> tuple[int, bytes, str]:
        sent.append(parse_qs(request.form)["refresh_token"][0])
        number = len(sent)
        is_asked.set()
        await may_answer.wait()
        said = {"access_token": f"a{number}", "token_type": "Bearer", "refresh_token": f"r{number}"}
        return 200, json.dumps(said).encode(), ""

    def upstream(scope: str) -> Upstream:
        oauth2 = {
            "grant": "refresh_token",
            "client_id": "c",
            "refresh_token_file": str(path),
            "token_url": "https://login.example/token",
            "scope": scope,
        }
        return Upstream.model_validate({"host": "h", "limits": [], "auth": {"user": "u", "oauth2": oauth2}})

    telemetry = Telemetry(Events(io.StringIO(), "text", clock), Metrics(), clock)
    logins = Logins("isp", upstream("a"), "relay.test", disk=RealDisk(), telemetry=telemetry, ask=ask)

    async def token() -> str:
        token = (await logins.current_server(Judge(standard_rules()))).credentials
        assert isinstance(token, BearerToken)
        return token.token

    before = asyncio.create_task(token())
    await is_asked.wait()
    logins.upstream = upstream("b")
    gone, after = asyncio.create_task(token()), asyncio.create_task(token())
    await turns_of_the_loop(9)
    gone.cancel()
    await turns_of_the_loop(9)
    may_answer.set()
    assert list(await asyncio.gather(before, after)) == ["a1", "a2"]
    await logins.close()
    assert sent == ["r0", "r1"]
    assert path.read_text() == "r2\n"


OLD, NEW, OTHERS = "old-refresh-token", "a-new-and-longer-refresh-token", "by-hand"


def test_only_the_owner_reads_the_file_and_no_other_writers_token_is_replaced(tmp_path: Path) -> None:
    """tests/engines/spool/test_durable cuts the power of a replacement."""
    path, disk = tmp_path / "m365", RealDisk()
    write_refresh_token(path, disk, OLD)
    # Once more, as after a failed sync of the new token.
    for _ in range(2):
        assert write_refresh_token(path, disk, NEW, old=OLD)

    assert path.read_text() == f"{NEW}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m365", "m365.lock"]
    write_refresh_token(path, disk, OTHERS)
    assert not write_refresh_token(path, disk, NEW, old=OLD)
    assert read_refresh_token(path, disk) == OTHERS
