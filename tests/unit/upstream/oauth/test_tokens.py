"""One token for all connections, fetched ahead of its end; no refresh token is used before it is durable."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import parse_qs

import pytest

from relay.policy.model import GrantType, OAuth2
from relay.policy.secrets import AccountSecrets
from relay.upstream.oauth.token_server import TokenRequest, TokenServerUnreachable
from relay.upstream.oauth.tokens import Tokens, TokenUnavailable
from tests.fakes.clock import FakeClock
from tests.fakes.virtual_time import VirtualTimeLoop, pass_time

LIFE = 3600


class World:
    """A token server that rotates, the owner of an account and its file; time is virtual."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.file = "r0"
        self.client_secret = ""
        self.valid = "r0"
        """The one refresh token that the server takes."""
        self.asked: list[str] = []
        """The refresh token of each request."""
        self.told: list[str] = []
        self.answers: list[tuple[int, bytes, str] | TokenServerUnreachable] = []
        """Instead of the server's own."""
        self.disk_error = ""
        self.latency_s = 0.5
        self.before_answer: Callable[[], object] = lambda: None
        oauth2 = OAuth2.model_validate(
            {
                "grant": GrantType.REFRESH_TOKEN,
                "client_id": "c",
                "refresh_token_file": "/r",
                "token_url": "https://login.example/token",
            }
        )
        self.tokens = Tokens(oauth2, "u", self.ask, self, self.clock)

    async def ask(self, request: TokenRequest) -> tuple[int, bytes, str]:
        sent = parse_qs(request.form)["refresh_token"][0]
        assert sent == self.file, "a refresh token was used that is not durable"
        self.asked.append(sent)
        await pass_time(self.latency_s)
        self.before_answer()
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, TokenServerUnreachable):
                raise answer
            return answer
        if sent != self.valid:
            return 400, b'{"error": "invalid_grant"}', ""
        self.valid = f"r{len(self.asked)}"
        said = {"access_token": f"a{len(self.asked)}", "expires_in": LIFE, "refresh_token": self.valid}
        return 200, json.dumps(said).encode(), ""

    async def secrets(self) -> AccountSecrets:
        return AccountSecrets(client_secret=self.client_secret, refresh_token=self.file)

    async def keep(self, old: str, new: str) -> str:
        await pass_time(0.1)
        if not self.disk_error and self.file == old:
            self.file = new
        return self.disk_error

    def token_granted(self, life_seconds: int, *, is_rotated: bool) -> None:
        self.told.append(f"granted {life_seconds} {is_rotated}")

    def token_denied(self) -> None:
        self.told.append("denied")

    def refresh_token_unrecorded(self, error: str) -> None:
        self.told.append(f"unrecorded {error}")

    def run(self, play: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(self.clock)) as runner:
            runner.run(play)


UNREACHABLE = TokenServerUnreachable("no answer within 30 s")
REVOKED = (400, b'{"error": "invalid_grant", "error_description": "revoked"}', "")


@pytest.fixture
def world() -> World:
    return World()


def test_all_connections_share_one_request(world: World) -> None:
    async def play() -> None:
        assert await asyncio.gather(*(world.tokens.token() for _ in range(50))) == ["a1"] * 50
        assert await world.tokens.token() == "a1"
        assert world.asked == ["r0"]

    world.run(play())


def test_a_good_token_outlasts_an_outage_of_the_server(world: World) -> None:
    async def play() -> None:
        await world.tokens.token()
        world.answers = [UNREACHABLE, (503, b"", "7"), REVOKED]
        await pass_time(LIFE - 31)
        assert await world.tokens.token() == "a1"
        await pass_time(1)
        for words, is_final, asked_seconds in (
            ("cannot be reached", False, 0),
            ("HTTP 503", False, 7),
            ("invalid_grant", True, 0),
        ):
            with pytest.raises(TokenUnavailable, match=words) as caught:
                await world.tokens.token()
            assert (caught.value.denied.is_final, caught.value.denied.retry_after_seconds) == (
                is_final,
                asked_seconds,
            )
        assert world.told[1:] == ["denied"] * 3
        assert await world.tokens.token() == "a5"

    world.run(play())


def test_no_request_goes_while_a_new_refresh_token_is_not_durable(world: World) -> None:
    async def play() -> None:
        world.disk_error = "no space"
        for _ in range(3):  # the access token is good all the same
            assert await world.tokens.token() == "a1"
        assert world.told.count("unrecorded no space") == 3
        await pass_time(LIFE)
        with pytest.raises(TokenUnavailable, match="no space"):
            await world.tokens.token()
        assert world.asked == ["r0"]
        world.disk_error = ""
        assert await world.tokens.token() == "a2"
        assert world.asked == ["r0", "r1"]

    world.run(play())


def test_a_secret_put_there_meanwhile_is_tried(world: World) -> None:
    async def play() -> None:
        world.answers = [(401, b'{"error": "invalid_client"}', "")]
        asking = asyncio.create_task(world.tokens.token())
        await pass_time(0.2)
        world.client_secret = "by hand"
        world.tokens.forget()
        assert list(await asyncio.gather(asking, world.tokens.token())) == ["a2", "a2"]

    world.run(play())


def test_a_newer_refresh_token_is_not_overwritten(world: World) -> None:
    async def play() -> None:
        def log_in() -> None:
            world.file = "by hand"

        world.before_answer = log_in
        await world.tokens.token()
        assert world.file == "by hand"

    world.run(play())


def test_a_token_that_had_worked_is_worth_another_and_one_that_never_did_is_not(world: World) -> None:
    async def play() -> None:
        first = await world.tokens.token()
        world.tokens.worked(first)
        assert world.tokens.refused(first)
        second = await world.tokens.token()
        assert second != first
        assert world.tokens.refused(first)  # another connection's, of before
        assert await world.tokens.token() == second
        assert not world.tokens.refused(second)
        assert await world.tokens.token() not in {first, second}

    world.run(play())
