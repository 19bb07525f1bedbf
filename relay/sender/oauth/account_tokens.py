"""The access tokens of the policy's upstreams: one holder for each account.

A holder is made anew when the account's `auth` changes.

Guarantees: all connections of an upstream share one token; what a person has to do is told with the
upstream's name.
Does not: decide when a token is fetched (`relay.upstream.oauth.tokens`), or how a refusal ends.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from relay.clock import SECOND_NS
from relay.mail.text import clean
from relay.policy.model import Auth, Upstream
from relay.policy.oauth2 import GrantType, OAuth2
from relay.policy.secrets import AccountSecrets
from relay.sender.oauth.refresh_token_file import RefreshTokenFile
from relay.smtp.reply import Phase
from relay.smtp.sasl import BearerToken
from relay.spool.disk.durable import Disk
from relay.telemetry.telemetry import Telemetry
from relay.upstream.connection import UpstreamUnavailable
from relay.upstream.oauth.answers import Denied
from relay.upstream.oauth.token_server import TokenRequest
from relay.upstream.oauth.token_server import ask as ask_server
from relay.upstream.oauth.tokens import Asked, Tokens, TokenUnavailable
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Ruling, Scope, Verdict

Ask = Callable[[TokenRequest], Awaitable[tuple[int, bytes, str]]]
ReadSecrets = Callable[[], Awaitable[AccountSecrets]]


class AccountTokens:
    def __init__(self, disk: Disk, telemetry: Telemetry, ask: Ask = ask_server) -> None:
        self._disk = disk
        self._telemetry = telemetry
        self._ask = ask
        self._held: dict[str, _HeldToken] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def token(self, name: str, upstream: Upstream, read: ReadSecrets) -> BearerToken:
        """Return a token for a login now.  Raises UpstreamUnavailable, and what `read` raises."""
        auth, oauth2 = _auth_of(upstream)
        held = self._held.get(name)
        if held is None or held.auth != auth:
            self.forget(name)
            asked = Asked(oauth2, auth.user, self._ask)
            held = self._held[name] = _HeldToken(name, auth, asked, self._disk, self._telemetry)
        while self._closing:
            # A former holder may be about to rotate the refresh token that this one would send.
            await asyncio.wait(self._closing)
        return await held.token(upstream, read)

    def forget(self, name: str) -> None:
        """Forget the token of an upstream: what it was got with is gone, or another account's."""
        if (held := self._held.pop(name, None)) is not None:
            # What it has under way may bring a new refresh token.
            closing = asyncio.create_task(held.tokens.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def worked(self, name: str, token: BearerToken) -> None:
        if (held := self._held.get(name)) is not None:
            held.tokens.worked(token.token)

    def refused(self, name: str, token: BearerToken) -> bool:
        """Return whether another token is worth a login."""
        return (held := self._held.get(name)) is not None and held.tokens.refused(token.token)

    def is_own(self, name: str, secrets: AccountSecrets) -> bool:
        """Return whether these secrets are those of the last token, or what the relay itself made of them."""
        return (held := self._held.get(name)) is not None and secrets.digest() in held.got_with

    async def close(self) -> None:
        await asyncio.gather(*(held.tokens.close() for held in self._held.values()), *self._closing)


class _HeldToken:
    """The token of one account, and with what it was got."""

    def __init__(self, name: str, auth: Auth, asked: Asked, disk: Disk, telemetry: Telemetry) -> None:
        self.auth = auth
        self.got_with: frozenset[bytes] = frozenset()
        """Digests of the secrets of the last request, and of those with the refresh token that it brought."""
        self._name = name
        self._oauth2 = asked.oauth2
        self._disk = disk
        self._events, self._metrics, self._clock = telemetry
        self._read: ReadSecrets | None = None
        self._sent = AccountSecrets()
        self._durable: frozenset[str] = frozenset()
        """The refresh token that is known to be on disk: it may be sent."""
        self.tokens = Tokens(asked, self, self._clock)

    async def token(self, upstream: Upstream, read: ReadSecrets) -> BearerToken:
        self._read = read
        if self.got_with and (await read()).digest() not in self.got_with:
            self.tokens.forget()
        try:
            text = await self.tokens.token()
        except TokenUnavailable as unavailable:
            raise self._unavailable(unavailable.denied) from None
        return BearerToken(self.auth.user, text, upstream.host, upstream.port)

    # The `TokenOwner` of the holder.

    def token_granted(self, life_seconds: int, *, is_rotated: bool) -> None:
        ends_at_ns = self._clock.wall_ns() + life_seconds * SECOND_NS
        self._metrics.token_granted(self._name, ends_at_ns)
        self._events.token_granted(upstream=self._name, life_seconds=life_seconds, is_rotated=is_rotated)

    def token_denied(self) -> None:
        self._metrics.token_denied(self._name)

    def refresh_token_unrecorded(self, error: str) -> None:
        self._events.refresh_token_unrecorded(upstream=self._name, error=error)

    async def secrets(self) -> AccountSecrets:
        if self._read is None:
            raise AssertionError("a token without a reader of its secrets")
        secrets = await self._read()
        if (
            path := self._oauth2.refresh_token_file
        ) is not None and secrets.refresh_token not in self._durable:
            await asyncio.to_thread(RefreshTokenFile(path, self._disk).make_durable)
            self._durable = frozenset({secrets.refresh_token})
        self._sent, self.got_with = secrets, frozenset({secrets.digest()})
        return secrets

    async def keep(self, old: str, new: str) -> str:
        path = self._oauth2.refresh_token_file
        if path is None:
            return "there is no refresh_token_file"
        self.got_with |= {replace(self._sent, refresh_token=new).digest()}
        try:
            if await asyncio.to_thread(RefreshTokenFile(path, self._disk).rotate, old, new):
                self._durable = frozenset({new})
        except (OSError, ValueError) as error:
            return clean(str(error))
        return ""

    def _unavailable(self, denied: Denied) -> UpstreamUnavailable:
        verdict = Verdict.STOP if denied.is_final else Verdict.PAUSE
        asked_ns = denied.retry_after_seconds * SECOND_NS
        ruling = Ruling(verdict, Scope.UPSTREAM, retry_after_ns=asked_ns) if asked_ns else None
        is_service_account = self._oauth2.grant is GrantType.SERVICE_ACCOUNT
        text = f"no access token: {denied.advised(self._name, is_service_account=is_service_account)}"
        return UpstreamUnavailable(Answer(verdict, Phase.AUTH, None, clean(text), ruling=ruling))


def _auth_of(upstream: Upstream) -> tuple[Auth, OAuth2]:
    if upstream.auth is None or upstream.auth.oauth2 is None:
        raise AssertionError("a token for an account that has none")
    return upstream.auth, upstream.auth.oauth2
