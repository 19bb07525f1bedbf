"""One token for all connections, fetched ahead of its end; no refresh token is used before it is durable."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.policy.oauth2 import GrantType, OAuth2
from relay.policy.secrets import AccountSecrets
from relay.upstream.oauth.answers import Denied, Granted
from relay.upstream.oauth.requests import TokenRequest
from relay.upstream.oauth.token_server import TokenServerUnreachable
from relay.upstream.oauth.tokens import AccessToken, Asked, Tokens, TokenUnavailable
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
        self.tokens = Tokens(Asked(oauth2, "u", self.ask), self, self.clock)

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

    def token_denied(self, denied: Denied, *, is_lasting: bool) -> None:
        self.told.append(f"denied {denied.is_final} {is_lasting}")

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


def test_a_token_is_replaced_ahead_of_its_end(world: World) -> None:
    async def play() -> None:
        await world.tokens.token()
        await pass_time(LIFE - 310)
        assert await world.tokens.token() == "a1"
        assert len(world.asked) == 1
        await pass_time(20)
        assert await world.tokens.token() == "a1"  # nobody waits for the next one
        await pass_time(1)
        assert await world.tokens.token() == "a2"
        assert world.asked == ["r0", "r1"]

    world.run(play())


def test_a_good_token_outlasts_an_outage_of_the_server(world: World) -> None:
    async def play() -> None:
        await world.tokens.token()
        await pass_time(LIFE - 299)
        world.answers = [UNREACHABLE, (503, b"", ""), *[UNREACHABLE] * 100]
        for _ in range(260):
            assert await world.tokens.token() == "a1"
            await pass_time(1)
        assert world.told[1:] == ["denied False True"] * 5  # after 0, 10, 20, 40 and 80 s, and their answers
        await pass_time(15)
        with pytest.raises(TokenUnavailable, match="cannot be reached") as caught:
            await world.tokens.token()
        assert not caught.value.denied.is_final
        world.answers.clear()
        assert (await world.tokens.token()).startswith("a")

    world.run(play())


def test_a_revoked_consent_ends_the_token_in_hand(world: World) -> None:
    async def play() -> None:
        await world.tokens.token()
        await pass_time(LIFE - 299)
        world.answers = [REVOKED, REVOKED]
        await world.tokens.token()
        await pass_time(1)
        with pytest.raises(TokenUnavailable, match="invalid_grant") as caught:
            await world.tokens.token()
        assert caught.value.denied.is_final
        assert world.told[1:] == ["denied True False"] * 2

    world.run(play())


def test_no_request_goes_while_a_new_refresh_token_is_not_durable(world: World) -> None:
    async def play() -> None:
        world.disk_error = "no space"
        assert await world.tokens.token() == "a1"  # the access token is good all the same
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


@given(st.integers(-5, 90_000))
def test_a_token_is_renewed_and_given_up_before_its_end(life: int) -> None:
    token = AccessToken.granted(Granted("a", life), 0)

    assert 0 < token.renew_at_ns <= token.usable_until_ns
    assert token.usable_until_ns <= max(life, 1) * SECOND_NS
