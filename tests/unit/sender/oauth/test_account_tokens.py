"""The holders of tokens, where an account's `auth` is edited while a request is under way."""

import asyncio
import io
import json
from pathlib import Path
from urllib.parse import parse_qs

from relay.clock import SystemClock
from relay.policy.model import Upstream
from relay.policy.secrets import AccountSecrets, read_refresh_token
from relay.sender.oauth.account_tokens import AccountTokens
from relay.spool.disk.durable import RealDisk
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from relay.telemetry.telemetry import Telemetry
from relay.upstream.oauth.token_server import TokenRequest


async def test_an_edit_waits_for_a_request_that_may_rotate(tmp_path: Path) -> None:
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

    async def read() -> AccountSecrets:
        return AccountSecrets(refresh_token=read_refresh_token(path))

    def upstream(scope: str) -> Upstream:
        oauth2 = {
            "grant": "refresh_token",
            "client_id": "c",
            "refresh_token_file": str(path),
            "token_url": "https://login.example/token",
            "scope": scope,
        }
        return Upstream.model_validate({"host": "h", "limits": [], "auth": {"user": "u", "oauth2": oauth2}})

    telemetry = Telemetry(Events(io.StringIO(), "text", clock), Metrics(clock), clock)
    tokens = AccountTokens(RealDisk(), telemetry, ask)
    before = asyncio.create_task(tokens.token("isp", upstream("a"), read))
    await is_asked.wait()
    after = asyncio.create_task(tokens.token("isp", upstream("b"), read))
    for _ in range(9):
        await asyncio.to_thread(lambda: None)
    may_answer.set()
    assert [each.token for each in await asyncio.gather(before, after)] == ["a1", "a2"]
    await tokens.close()
    assert (sent, path.read_text()) == (["r0", "r1"], "r2\n")
