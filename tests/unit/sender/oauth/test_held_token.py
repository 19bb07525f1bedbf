"""The holders of tokens, where an account's `auth` is edited while a request is under way."""

import asyncio
import io
import json
from pathlib import Path
from urllib.parse import parse_qs

from relay.clock import SystemClock
from relay.policy.model import Upstream
from relay.policy.shipped import standard_judge
from relay.sender.logins import Logins
from relay.spool.disk.durable import RealDisk
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics, Telemetry
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
    logins = Logins("isp", upstream("a"), "relay.test", disk=RealDisk(), telemetry=telemetry, ask=ask)

    async def token() -> str:
        token = (await logins.account(standard_judge())).token
        assert token is not None
        return token.token

    before = asyncio.create_task(token())
    await is_asked.wait()
    logins.upstream = upstream("b")
    after = asyncio.create_task(token())
    for _ in range(9):
        await asyncio.to_thread(lambda: None)
    may_answer.set()
    assert list(await asyncio.gather(before, after)) == ["a1", "a2"]
    await logins.close()
    assert sent == ["r0", "r1"]
    assert path.read_text() == "r2\n"
