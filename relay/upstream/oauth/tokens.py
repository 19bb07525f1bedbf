"""The access token of one account: one for all its connections, fetched when a login finds none.

Guarantees
- at most one request is under way, whoever asks; it is finished although who asked has gone, since a
  token server may have rotated the refresh token by then;
- a rotated refresh token is durable before it is ever sent; until it is, no request is made, and each login,
  and `close`, tries again to make it so;
- a token that is good is used, whatever the token server says meanwhile;
- a token that had worked and is refused before its end is worth another one at once; one that never worked
  is not.  The next login asks for another in any case.
Does not: wait between attempts for who has no token: that is the upstream's pause (`relay.verdicts.account`).
Assumes: one event loop.
"""

import asyncio
from typing import Protocol

from relay.clock import SECOND_NS, Clock
from relay.mail.text import clean
from relay.policy.model import GrantType, OAuth2
from relay.policy.secrets import AccountSecrets
from relay.upstream.oauth.token_server import (
    Ask,
    Denied,
    Granted,
    TokenAnswer,
    Unaskable,
    said_by,
    token_in,
    token_request,
)

MARGIN_NS = 30 * SECOND_NS
"""How long before its end a token is used no more, as a login takes its time; a tenth of its life at most."""


class TokenOwner(Protocol):
    """Whose account it is: has the secrets, and is told."""

    async def secrets(self) -> AccountSecrets:
        """Read them anew: a changed one counts from the next request on.  May raise what its caller knows."""

    async def keep(self, old: str, new: str) -> str:
        """Make a new refresh token durable in the place of the one sent; return why not, or nothing."""

    def token_granted(self, life_seconds: int, *, is_rotated: bool) -> None: ...

    def token_denied(self) -> None: ...

    def refresh_token_unrecorded(self, error: str) -> None: ...


class TokenUnavailable(Exception):  # noqa: N818 - what a token is
    def __init__(self, denied: Denied) -> None:
        super().__init__(denied.words)
        self.denied = denied


class Tokens:
    def __init__(self, oauth2: OAuth2, user: str, ask: Ask, owner: TokenOwner, clock: Clock) -> None:
        self._oauth2, self._user, self._ask_server = oauth2, user, ask
        self._owner, self._clock = owner, clock
        self._token = ""
        self._usable_until_ns = 0
        self._worked = ""  # the last token that a login succeeded with
        self._fetching: asyncio.Task[TokenAnswer] | None = None
        self._unkept: tuple[str, str] | None = None
        """A refresh token, and the one that took its place and is not durable yet."""

    async def token(self) -> str:
        """Return a token for a login now.  Raises TokenUnavailable, and what the owner's `secrets` raises."""
        if self._clock.boottime_ns() < self._usable_until_ns:
            if self._unkept is not None:
                # Not only at the token's end: a crash until then would lose the refresh token.
                await self._keep(*self._unkept)
            return self._token
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch())
        # Shielded: who asks may be gone, and the answer may have a new refresh token.
        answer = await asyncio.shield(self._fetching)
        if isinstance(answer, Denied):
            raise TokenUnavailable(answer)
        return answer.access_token

    def worked(self, text: str) -> None:
        self._worked = text

    def refused(self, text: str) -> bool:
        """Hear that the upstream refused a token; return whether another one is worth a login."""
        if self._token == text:
            self.forget()
        return text == self._worked

    def forget(self) -> None:
        """Use the token no more: the secrets that it was got with have changed."""
        self._usable_until_ns = 0

    async def close(self) -> None:
        """Let a request under way end, which may rotate the refresh token; keep one that is not kept yet."""
        if self._fetching is not None:
            await asyncio.wait([self._fetching])
        if self._unkept is not None:
            await self._keep(*self._unkept)

    async def _fetch(self) -> TokenAnswer:
        # The server's count began later.
        asked_at_ns = self._clock.boottime_ns()
        try:
            answer = await self._answer()
        finally:
            self._fetching = None
        if isinstance(answer, Granted):
            life_ns = max(answer.life_seconds, 1) * SECOND_NS
            self._token = answer.access_token
            self._usable_until_ns = asked_at_ns + life_ns - min(MARGIN_NS, life_ns // 10)
        else:
            self._owner.token_denied()
        return answer

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
            is_rotated = self._oauth2.grant is GrantType.REFRESH_TOKEN and (
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
        elif self._unkept == (old, new):
            self._unkept = None
        return error

    async def _ask(self, secrets: AccountSecrets) -> TokenAnswer:
        wall_seconds = self._clock.wall_ns() // SECOND_NS
        try:
            request = token_request(self._oauth2, secrets, self._user, wall_seconds)
        except Unaskable as error:
            return Denied(str(error), is_final=True)
        return token_in(await said_by(self._ask_server, request))
