"""The access token of one account: one for all its connections, fetched when a login finds none.

Guarantees
- at most one request is under way, whoever asks, also at an edit; it is finished although who asked has gone,
  since a token server may have rotated the refresh token by then;
- a rotated refresh token is durable before it is ever sent; until it is, no request is made, and each login,
  and `close`, tries again to make it so;
- a token that is good is used for as long as the secrets are those that it was got with, or came with it;
- a token that had worked and is refused before its end is worth another one at once; one that never worked
  is not.  The next login asks for another in any case.
Does not: wait between attempts for who has no token: that is the upstream's pause (`relay.verdicts.account`).
Assumes: one event loop.
"""

import asyncio
from dataclasses import replace
from typing import Protocol

from relay.clock import SECOND_NS, Clock
from relay.policy.model import GrantType, OAuth2
from relay.policy.secrets import AccountSecrets
from relay.upstream.oauth.token_server import (
    Ask,
    Denied,
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
    def __init__(
        self,
        oauth2: OAuth2,
        user: str,
        ask: Ask,
        owner: TokenOwner,
        clock: Clock,
        *,
        before: "Tokens | None" = None,
    ) -> None:
        """`before` is what had the tokens before an edit, and may have a request under way."""
        self._oauth2, self._user, self._ask_server = oauth2, user, ask
        self._owner, self._clock, self._before = owner, clock, before
        self.got_with: frozenset[bytes] = frozenset()
        """Digests of the secrets that the token was got with, and with the refresh token that it brought."""
        self._token = ""
        self._usable_until_ns = 0
        self._worked = ""  # the last token that a login succeeded with
        self._asking: asyncio.Task[str | Denied] | None = None
        self._unkept: tuple[str, str] | None = None
        """A refresh token, and the one that took its place and is not durable yet."""

    async def token(self) -> str:
        """Return a token for a login now.  Raises TokenUnavailable, and what the owner's `secrets` raises."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._answer())
        # Shielded: who asks may be gone, and the answer may have a new refresh token.
        answer = await asyncio.shield(self._asking)
        if isinstance(answer, Denied):
            raise TokenUnavailable(answer)
        return answer

    def worked(self, text: str) -> None:
        self._worked = text

    def refused(self, text: str) -> bool:
        """Hear that the upstream refused a token; return whether another one is worth a login."""
        if self._token == text:
            self.forget()
        return text == self._worked

    def forget(self) -> None:
        """Use the token no more."""
        self._usable_until_ns = 0

    async def close(self) -> None:
        """Let a request under way end, which may rotate the refresh token; keep one that is not kept yet."""
        if self._asking is not None:
            await asyncio.wait([self._asking])
        await self._keep_all()

    async def _keep_all(self) -> str:
        """Have nothing of earlier requests left to keep; return why there is."""
        if self._before is not None:
            await self._before.close()
            self._before = None
        return "" if self._unkept is None else await self._keep(*self._unkept)

    async def _answer(self) -> str | Denied:
        # Not only at the token's end: a crash until then would lose the refresh token.
        error, secrets = await self._keep_all(), await self._owner.secrets()
        asked_at_ns = self._clock.boottime_ns()  # the server's count begins later
        if asked_at_ns < self._usable_until_ns and secrets.digest() in self.got_with:
            return self._token
        if error:
            words = f"the token server gave a new refresh token, which cannot be written: {error}"
            answer: TokenAnswer = Denied(words, is_final=False)
        else:
            answer = await self._ask(secrets)
        if isinstance(answer, Denied) and answer.is_final:
            sent, secrets = secrets, await self._owner.secrets()
            if secrets != sent:
                # Another process, or a person, has put others in their place meanwhile.  Who asked with
                # those waits for this answer too, so nobody would try them again.
                answer = await self._ask(secrets)
        if isinstance(answer, Denied):
            self._owner.token_denied()
            return answer
        new = answer.refresh_token or secrets.refresh_token
        is_rotated = self._oauth2.grant is GrantType.REFRESH_TOKEN and new != secrets.refresh_token
        self.got_with = frozenset({secrets.digest(), replace(secrets, refresh_token=new).digest()})
        if is_rotated:
            # Crash here: the server may not take the old one any more; nobody but a person can mend that.
            await self._keep(secrets.refresh_token, new)
        self._owner.token_granted(answer.life_seconds, is_rotated=is_rotated)
        life_ns = max(answer.life_seconds, 1) * SECOND_NS
        self._token = answer.access_token
        self._usable_until_ns = asked_at_ns + life_ns - min(MARGIN_NS, life_ns // 10)
        return self._token

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
            request = token_request(self._oauth2, secrets, self._user, wall_seconds)
        except Unaskable as error:
            return Denied(str(error), is_final=True)
        return token_in(await said_by(self._ask_server, request))
