"""The access token of one account: all its connections share it, and a login that finds none fetches one.

Guarantees
- At most one request is under way, whoever asks, also across an edit of the policy.  It runs to its end even
  if its caller is gone: the token server may have rotated the refresh token by then.
- A rotated refresh token is durable before it is sent.  Until it is durable, no request is made, and each
  login, and `close`, tries again to make it durable.
- A valid token is used as long as the secrets are those that it was got with, or that came with it.
- If the upstream refuses a token that worked before, another token is worth a login.  After a token that
  never worked, or that was granted again, it is not.  In all cases the next login requests another.
Does not: wait between attempts without a token: the upstream's pause does that (`relay.verdicts.account`).
Assumes: one event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from relay.clock import SECOND_NS, Clock
from relay.policy.model import OAuth2
from relay.policy.secrets import AccountSecrets
from relay.upstream.oauth.token_server import (
    Ask,
    Denied,
    TokenAnswer,
    request_json,
    token_in,
    token_request,
)

MARGIN_NS = 30 * SECOND_NS
"""A token is not used this long before its end, since a login takes time; at most a tenth of its life."""


class Tokens:
    def __init__(
        self,
        oauth2: OAuth2,
        user: str,
        ask: Ask,
        clock: Clock,
        *,
        secrets: Callable[[], Awaitable[AccountSecrets]],
        record: Callable[[str, str], Awaitable[str]],
        on_answer: Callable[[TokenAnswer], None],
        before: "Tokens | None" = None,
    ) -> None:
        """`secrets` reads the secrets anew, so a change counts from the next request on.

        `record` makes a new refresh token durable in place of the one sent; it logs and returns the error,
        "" if there is none.  `on_answer` gets each answer; a refresh token in it is a new one.
        `before` had the tokens before an edit of the policy, and may have a request under way.
        """
        self._oauth2, self._user, self._ask_server = oauth2, user, ask
        self._secrets, self._record, self._on_answer = secrets, record, on_answer
        self._clock, self._before = clock, before
        self.got_with: frozenset[bytes] = frozenset()
        """Digests of the secrets used for the token, also with the refresh token that came with it."""
        self._token = ""
        self._usable_until_ns = 0
        self._worked = ""  # the last token that a login succeeded with
        self._asking: asyncio.Task[str | Denied] | None = None
        self._unkept: tuple[str, str] | None = None
        """A refresh token, and its successor, which is not durable yet."""

    async def token(self) -> str | Denied:
        """Return a token for a login now, or why there is none.  Raises what `secrets` raises."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._answer())
        # Shielded: the caller may be cancelled, and the answer may have a new refresh token.
        return await asyncio.shield(self._asking)

    def worked(self, text: str) -> None:
        self._worked = text

    def refused(self, text: str) -> bool:
        """Forget a token that the upstream refused; return whether another token is worth a login."""
        if self._token == text:
            self._usable_until_ns = 0
        return text == self._worked

    async def close(self) -> None:
        """Finish a request under way, which may rotate the refresh token; try to make all tokens durable."""
        if self._asking is not None:
            await asyncio.wait([self._asking])
        await self._keep_all()

    async def _keep_all(self) -> str:
        """Make refresh tokens of earlier requests durable; return the error, "" if there is none."""
        if self._before is not None:
            await self._before.close()
            self._before = None
        return "" if self._unkept is None else await self._keep(*self._unkept)

    async def _answer(self) -> str | Denied:
        # Now, not only when the token ends: a crash until then would lose the refresh token.
        error, secrets = await self._keep_all(), await self._secrets()
        asked_at_ns = self._clock.boottime_ns()  # the server counts the token's life from a later instant
        if asked_at_ns < self._usable_until_ns and secrets.digest() in self.got_with:
            return self._token
        if error:
            words = f"the new refresh token of the token server cannot be saved: {error}"
            answer: TokenAnswer = Denied(words, is_final=False)
        else:
            answer = await self._ask(secrets)
        if isinstance(answer, Denied) and answer.is_final:
            sent, secrets = secrets, await self._secrets()
            if secrets != sent:
                # Another process, or a person, replaced the secrets meanwhile.  Logins with the new ones
                # wait for this answer too, so nobody else would try them.
                answer = await self._ask(secrets)
        if isinstance(answer, Denied):
            self._on_answer(answer)
            return answer
        new = answer.refresh_token or secrets.refresh_token
        is_rotated = self._oauth2.grant == "refresh_token" and new != secrets.refresh_token
        self.got_with = frozenset({secrets.digest(), replace(secrets, refresh_token=new).digest()})
        if is_rotated:
            # Crash here: the server may refuse the old refresh token, and only a person can mend that.
            await self._keep(secrets.refresh_token, new)
        self._on_answer(answer if is_rotated else replace(answer, refresh_token=""))
        life_ns = max(answer.life_seconds, 1) * SECOND_NS
        if answer.access_token == self._token:
            self._worked = ""
        self._token = answer.access_token
        self._usable_until_ns = asked_at_ns + life_ns - min(MARGIN_NS, life_ns // 10)
        return self._token

    async def _keep(self, old: str, new: str) -> str:
        self._unkept = old, new
        error = await self._record(old, new)
        if not error:
            self._unkept = None
        return error

    async def _ask(self, secrets: AccountSecrets) -> TokenAnswer:
        now_seconds = self._clock.wall_ns() // SECOND_NS
        request = token_request(self._oauth2, secrets, self._user, now_seconds)
        return token_in(await request_json(self._ask_server, request))
