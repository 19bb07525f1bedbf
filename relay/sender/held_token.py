"""The access token of one account, shared by all its connections, and what it is got with.

Guarantees: a new refresh token is written down before the access token that it came with is used; one that
cannot be is told of, and tried again.  What a person has to do is told with the upstream's name.
Does not: decide when a token is fetched (`relay.upstream.oauth.tokens`), or how a refusal ends.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from relay.clock import SECOND_NS
from relay.mail.text import clean
from relay.policy.model import Auth, Upstream
from relay.policy.oauth2 import OAuth2
from relay.policy.secrets import AccountSecrets
from relay.sender.refresh_token_file import RefreshTokenFile
from relay.smtp.reply import Phase
from relay.smtp.sasl import BearerToken
from relay.spool.disk.durable import Disk
from relay.telemetry.telemetry import Telemetry
from relay.upstream.connection import UpstreamUnavailable
from relay.upstream.oauth.token_server import Ask, Denied
from relay.upstream.oauth.tokens import Tokens, TokenUnavailable
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Ruling, Scope, Verdict

ReadSecrets = Callable[[], Awaitable[AccountSecrets]]


class HeldToken:
    """Of one `auth`; it is the owner (`TokenOwner`) of its `tokens`."""

    def __init__(
        self,
        name: str,
        auth: Auth,
        oauth2: OAuth2,
        read: ReadSecrets,
        *,
        disk: Disk,
        telemetry: Telemetry,
        ask: Ask,
    ) -> None:
        self.auth = auth
        self.got_with: frozenset[bytes] = frozenset()
        """Digests of the secrets of the last request, and of those with the refresh token that it brought."""
        self._name, self._read = name, read
        path = oauth2.refresh_token_file
        self._file = None if path is None else RefreshTokenFile(path, disk)
        self._events, self._metrics, self._clock = telemetry
        self._sent = AccountSecrets()
        self.tokens = Tokens(oauth2, auth.user, ask, self, self._clock)

    async def token(self, upstream: Upstream) -> BearerToken:
        """Return a token for a login now.  Raises UpstreamUnavailable and SecretError."""
        if self.got_with and (await self._read()).digest() not in self.got_with:
            self.tokens.forget()
        try:
            text = await self.tokens.token()
        except TokenUnavailable as unavailable:
            raise self._unavailable(unavailable.denied) from None
        return BearerToken(self.auth.user, text, upstream.host, upstream.port)

    def token_granted(self, life_seconds: int, *, is_rotated: bool) -> None:
        ends_at_ns = self._clock.wall_ns() + life_seconds * SECOND_NS
        self._metrics.token_granted(self._name, ends_at_ns)
        self._events.tell(
            "token_granted", upstream=self._name, life_seconds=life_seconds, is_rotated=is_rotated
        )

    def token_denied(self) -> None:
        self._metrics.count("relay_token_requests_total", self._name, "denied")

    def refresh_token_unrecorded(self, error: str) -> None:
        self._events.tell("refresh_token_unrecorded", upstream=self._name, error=error)

    async def secrets(self) -> AccountSecrets:
        secrets = await self._read()
        self._sent, self.got_with = secrets, frozenset({secrets.digest()})
        return secrets

    async def keep(self, old: str, new: str) -> str:
        if self._file is None:
            return "there is no refresh_token_file"
        self.got_with |= {replace(self._sent, refresh_token=new).digest()}
        try:
            await asyncio.to_thread(self._file.rotate, old, new)
        except (OSError, ValueError) as error:
            return clean(str(error))
        return ""

    def _unavailable(self, denied: Denied) -> UpstreamUnavailable:
        verdict = Verdict.STOP if denied.is_final else Verdict.PAUSE
        asked_ns = denied.retry_after_seconds * SECOND_NS
        ruling = Ruling(verdict, Scope.UPSTREAM, retry_after_ns=asked_ns) if asked_ns else None
        text = f"no access token: {denied.advised(self._name)}"
        return UpstreamUnavailable(Answer(verdict, Phase.AUTH, None, clean(text), ruling=ruling))
