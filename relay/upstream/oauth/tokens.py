"""The access token of one account: one for all its connections, fetched ahead of its end.

Guarantees
- at most one request is under way, whoever asks; it is finished although who asked has gone, since a
  token server may have rotated the refresh token by then;
- a rotated refresh token is durable before it is ever sent; until it is, no request is made, and each login
  after a back-off, and `close`, try again to make it so;
- a token that is good goes on being used while no other can be had;
- a token that had worked and is refused before its end is worth another one at once; one that never worked
  is not.  The next login asks for another in any case.
Does not: wait between attempts for who has no token: that is the upstream's pause (`relay.verdicts.account`).
Assumes: one event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from relay.clock import SECOND_NS, Clock
from relay.mail.text import clean
from relay.policy.oauth2 import GrantType, OAuth2
from relay.policy.secrets import AccountSecrets
from relay.upstream.oauth.answers import Denied, Granted, TokenAnswer, read_token_answer
from relay.upstream.oauth.requests import TokenRequest, Unaskable, token_request
from relay.upstream.oauth.token_server import TokenServerUnreachable

AHEAD_NS = 300 * SECOND_NS
"""How long before its end a token is replaced; a third of its life at most."""
MARGIN_NS = 30 * SECOND_NS
"""How long before its end it is used no more, as a login takes its time; a tenth of its life at most."""
SHORTEST_NS = SECOND_NS
FIRST_BACK_OFF_NS = 10 * SECOND_NS
LONGEST_BACK_OFF_NS = 300 * SECOND_NS


@dataclass(frozen=True, slots=True)
class AccessToken:
    """Instants are boottime."""

    text: str = field(repr=False)
    renew_at_ns: int
    usable_until_ns: int

    @classmethod
    def granted(cls, granted: Granted, asked_at_ns: int) -> "AccessToken":
        """`asked_at_ns`: before the request, so that the server's count began later."""
        life_ns = max(granted.life_seconds * SECOND_NS, SHORTEST_NS)
        end_ns = asked_at_ns + life_ns
        return cls(
            granted.access_token,
            end_ns - min(AHEAD_NS, life_ns // 3),
            end_ns - min(MARGIN_NS, life_ns // 10),
        )


class TokenOwner(Protocol):
    """Whose account it is: has the secrets, and is told."""

    async def secrets(self) -> AccountSecrets:
        """Read them anew: a changed one counts from the next request on.  May raise what its caller knows."""

    async def keep(self, old: str, new: str) -> str:
        """Make a new refresh token durable in the place of the one sent; return why not, or nothing."""

    def token_granted(self, life_seconds: int, *, is_rotated: bool) -> None: ...

    def token_denied(self, denied: Denied, *, is_lasting: bool) -> None:
        """`is_lasting`: the token in hand goes on being used."""

    def refresh_token_unrecorded(self, error: str) -> None: ...


class TokenUnavailable(Exception):  # noqa: N818 - what a token is
    def __init__(self, denied: Denied) -> None:
        super().__init__(denied.words)
        self.denied = denied


class Asked(NamedTuple):
    """What a token is asked for with."""

    oauth2: OAuth2
    user: str
    ask: Callable[[TokenRequest], Awaitable[tuple[int, bytes, str]]]
    """Raises TokenServerUnreachable."""


class Tokens:
    def __init__(self, asked: Asked, owner: TokenOwner, clock: Clock) -> None:
        self._asked = asked
        self._clock = clock
        self._owner = owner
        self._token: AccessToken | None = None
        self._worked = ""  # the last token that a login succeeded with
        self._fetching: asyncio.Task[TokenAnswer] | None = None
        self._not_before_ns = 0  # while a token is good, when the next request may go
        self._failures = 0
        self._unkept: tuple[str, str] | None = None
        """A refresh token, and the one that took its place and is not durable yet."""

    async def token(self) -> str:
        """Return a token for a login now.  Raises TokenUnavailable, and what the owner's `secrets` raises."""
        token = self._usable()
        if token is None:
            # Shielded: who asks may be gone, and the answer may have a new refresh token.
            answer = await asyncio.shield(self._begin())
            if isinstance(answer, Denied):
                raise TokenUnavailable(answer)
            return answer.access_token
        if self._clock.boottime_ns() >= max(token.renew_at_ns, self._not_before_ns):
            self._begin()
        return token.text

    def worked(self, text: str) -> None:
        """Hear that a login with this token succeeded."""
        self._worked = text

    def refused(self, text: str) -> bool:
        """Hear that the upstream refused a token; return whether another one is worth a login."""
        if self._token is not None and self._token.text == text:
            self._token = None
        return text == self._worked

    def forget(self) -> None:
        """Use the token no more: the secrets that it was got with have changed."""
        self._token, self._not_before_ns, self._failures = None, 0, 0

    async def close(self) -> None:
        """Let a request under way end, which may rotate the refresh token; keep one that is not kept yet."""
        if self._fetching is not None:
            await asyncio.wait([self._fetching])
        if self._unkept is not None:
            await self._keep(*self._unkept)

    def _usable(self) -> AccessToken | None:
        token = self._token
        return token if token is not None and self._clock.boottime_ns() < token.usable_until_ns else None

    def _begin(self) -> "asyncio.Task[TokenAnswer]":
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch())
            self._fetching.add_done_callback(self._ended)
        return self._fetching

    def _ended(self, fetching: "asyncio.Task[TokenAnswer]") -> None:
        self._fetching = None
        if not fetching.cancelled():
            fetching.exception()  # whoever waits has it; who renewed ahead asks again

    async def _fetch(self) -> TokenAnswer:
        asked_at_ns = self._clock.boottime_ns()
        try:
            answer = await self._answer()
        except BaseException:
            self._back_off(0)
            raise
        match answer:
            case Granted():
                self._token = AccessToken.granted(answer, asked_at_ns)
                self._not_before_ns = self._failures = 0
                if self._unkept is not None:
                    # Not only at the token's end: a crash until then would lose the refresh token.
                    self._token = replace(self._token, renew_at_ns=asked_at_ns)
                    self._back_off(0)
            case Denied(is_final=True):
                # Whoever gave the consent took it back, or never gave it: the token in hand goes with it.
                self._token = None
                self._owner.token_denied(answer, is_lasting=False)
            case Denied():
                self._back_off(answer.retry_after_seconds)
                self._owner.token_denied(answer, is_lasting=self._usable() is not None)
        return answer

    def _back_off(self, asked_seconds: int) -> None:
        wait_ns = min(FIRST_BACK_OFF_NS << min(self._failures, 10), LONGEST_BACK_OFF_NS)
        self._failures += 1
        self._not_before_ns = self._clock.boottime_ns() + max(wait_ns, asked_seconds * SECOND_NS)

    async def _answer(self) -> TokenAnswer:
        if self._unkept is not None and (error := await self._keep(*self._unkept)):
            words = f"the token server gave a new refresh token, which cannot be written: {error}"
            return Denied(words, is_final=False)
        try:
            secrets = await self._owner.secrets()
            answer = await self._ask(secrets)
            if isinstance(answer, Denied) and answer.is_final:
                sent, secrets = secrets, await self._owner.secrets()
                if secrets != sent:
                    # Another process, or a person, has put others in their place meanwhile.  Who asked with
                    # those waits for this answer too, so nobody would try them again.
                    answer = await self._ask(secrets)
        except OSError as error:
            return Denied(f"the refresh token is not safely on disk: {clean(str(error))}", is_final=False)
        if isinstance(answer, Granted):
            is_rotated = self._asked.oauth2.grant is GrantType.REFRESH_TOKEN and (
                answer.refresh_token not in {"", secrets.refresh_token}
            )
            if is_rotated:
                # Crash here: the server may not take the old one any more; nobody but a person can mend that.
                await self._keep(secrets.refresh_token, answer.refresh_token)
            self._owner.token_granted(answer.life_seconds, is_rotated=is_rotated)
        return answer

    async def _keep(self, old: str, new: str) -> str:
        self._unkept = old, new
        error = await self._owner.keep(old, new)
        if error:
            self._owner.refresh_token_unrecorded(error)
        else:
            self._unkept = None
        return error

    async def _ask(self, secrets: AccountSecrets) -> TokenAnswer:
        wall_seconds = self._clock.wall_ns() // SECOND_NS
        try:
            request = token_request(self._asked.oauth2, secrets, self._asked.user, wall_seconds)
            return read_token_answer(*await self._asked.ask(request))
        except Unaskable as error:
            return Denied(str(error), is_final=True)
        except TokenServerUnreachable as unreachable:
            return Denied(f"the token server cannot be reached: {unreachable}", is_final=False)
