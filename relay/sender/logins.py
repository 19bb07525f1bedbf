"""What connections of one upstream log in with and show: read while the relay runs, no restart needed.

Secrets are read for each connection, so that a new password counts from the next one on; with OAuth2 what
logs in is a token that was got with them, shared by all connections.  Only digests of the last ones are kept,
to see that a refused account has a new password: then it is worth another try at once, as soon as that is the
same at two looks.

A new refresh token is written down before the access token that it came with is used; one that cannot be is
told of, and tried again.  When a token is fetched says `relay.upstream.oauth.tokens`.

The client's certificate is read for each connection too: the last pair that was whole and fit for use is
shown.  What is loaded and refused is told.  Connections that showed the pair of before go on.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from relay.clock import SECOND_NS
from relay.mail.text import clean
from relay.policy.model import Auth, Mechanism, OAuth2, TokenMechanism, Upstream
from relay.policy.secrets import (
    AccountSecrets,
    KeyPair,
    NotLoggedIn,
    SecretError,
    read_key_pair,
    read_secrets,
)
from relay.sender.refresh_token_file import RefreshTokenFile
from relay.smtp.reply import Phase
from relay.smtp.sasl import BearerToken
from relay.spool.disk.durable import Disk
from relay.telemetry.metrics import Telemetry
from relay.upstream.connection import UpstreamServer, UpstreamUnavailable
from relay.upstream.oauth.token_server import Ask, Denied
from relay.upstream.oauth.token_server import ask as ask_server
from relay.upstream.oauth.tokens import Tokens, TokenUnavailable
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Judge, Ruling, Scope, Verdict


class Logins:
    """Belongs to one event loop.  An edit changes `upstream`."""

    def __init__(
        self,
        name: str,
        upstream: Upstream,
        hostname: str,
        *,
        disk: Disk,
        telemetry: Telemetry,
        ask: Ask = ask_server,
    ) -> None:
        self.upstream = upstream
        self._name, self._hostname = name, hostname
        self._disk, self._telemetry, self._ask = disk, telemetry, ask
        self._last: bytes | None = None
        """Digest of the secrets that were used last; of none where none were there."""
        self._seen: bytes | None = None
        """Digest of the secrets as of the last look."""
        self._held: HeldToken | None = None
        self._token_turn = asyncio.Lock()
        self._pair: KeyPair | None = None
        self._named: tuple[Path, Path | None] | None = None
        """The files of that pair."""
        self._refused = ""
        """Why they are not what is shown."""

    async def account(self, judge: Judge) -> UpstreamServer:
        """Return what a connection is opened with now.  Raises UpstreamUnavailable."""
        upstream, auth = self.upstream, self.upstream.auth
        mechanism: Mechanism | TokenMechanism = Mechanism.AUTO if auth is None else auth.mechanism
        password, token = None, None
        try:
            pair = await self._shown_pair(upstream)
            if auth is not None and auth.oauth2 is not None:
                mechanism = auth.oauth2.mechanism
                token = await (await self._held_token(auth, auth.oauth2)).token(upstream)
            elif auth is not None:
                # Empty where a certificate logs in.
                password = (await self._secrets(auth)).password
        except NotLoggedIn as error:
            # A look each second finds the file that `relay login` makes, as it finds a new password.
            self._last = b""
            async with self._token_turn:
                await self._forget_token()
            text = f"{error}: run `relay login {self._name}`"
            raise UpstreamUnavailable(Answer(Verdict.STOP, Phase.AUTH, None, clean(text))) from None
        except SecretError as error:
            answer = Answer(Verdict.PAUSE, Phase.AUTH, None, clean(str(error)))
            raise UpstreamUnavailable(answer) from error.__cause__
        return UpstreamServer(
            upstream.host,
            upstream.port,
            upstream.tls,
            self._hostname,
            ca_file=upstream.ca_file,
            user=None if auth is None else auth.user,
            password=password,
            token=token,
            mechanism=mechanism,
            pipelining=upstream.pipelining,
            judge=judge,
            pair=pair,
            source_address=upstream.source_address,
        )

    def refused(self, account: UpstreamServer) -> bool:
        """Hear of each login that is refused; return whether another token is worth a second login."""
        if account.token is None or self._held is None:
            return False
        return self._held.tokens.refused(account.token.token)

    def worked(self, account: UpstreamServer) -> None:
        if account.token is not None and self._held is not None:
            self._held.tokens.worked(account.token.token)

    async def has_new_password(self) -> bool:
        """Return whether the secrets differ from those last tried, as they did at the last call."""
        if self.upstream.auth is None:
            return False
        try:
            secrets = await asyncio.to_thread(read_secrets, self.upstream.auth)
        except SecretError:
            return False
        before, self._seen = self._seen, secrets.digest()
        return self._seen == before and self._last is not None and not self._is_known(secrets)

    @property
    def certificate_ends_at_ns(self) -> int | None:
        """Wall clock: when the client's certificate ends; None without one."""
        return None if self._pair is None else self._pair.ends_at_ns

    async def close(self) -> None:
        async with self._token_turn:
            await self._forget_token()

    async def _held_token(self, auth: Auth, oauth2: OAuth2) -> "HeldToken":
        async with self._token_turn:
            if self._held is None or self._held.auth != auth:
                await self._forget_token()
                read = functools.partial(self._secrets, auth)
                about = self._name, auth, oauth2, read
                self._held = HeldToken(*about, disk=self._disk, telemetry=self._telemetry, ask=self._ask)
            return self._held

    async def _forget_token(self) -> None:
        """Forget what was got with secrets that are gone, or with another account's.

        A request under way ends first: it may rotate the refresh token that the next one sends.
        """
        if (held := self._held) is not None:
            self._held = None
            await held.tokens.close()

    def _is_known(self, secrets: AccountSecrets) -> bool:
        """Whether secrets are the last ones, or what the relay itself made of them."""
        digest = secrets.digest()
        return digest == self._last or (self._held is not None and digest in self._held.got_with)

    async def _secrets(self, auth: Auth) -> AccountSecrets:
        """Raise SecretError."""
        secrets = await asyncio.to_thread(read_secrets, auth)
        self._last = secrets.digest()
        return secrets

    async def _shown_pair(self, upstream: Upstream) -> KeyPair | None:
        """Return the certificate that is shown; None without one.  Raises SecretError."""
        certificate, key = upstream.tls_certificate, upstream.tls_key
        if certificate is None:
            self._pair = None
            return None
        named, before = (certificate, key), self._pair
        try:
            pair = await asyncio.to_thread(read_key_pair, certificate, key)
        except SecretError as error:
            if before is None or self._named != named:
                raise
            if str(error) != self._refused:
                self._refused = str(error)
                self._telemetry.events.tell(
                    "client_certificate_refused", upstream=self._name, error=self._refused
                )
            return before
        if pair != before:
            self._telemetry.events.tell(
                "client_certificate_loaded", upstream=self._name, certificate=pair.fingerprint
            )
        self._pair, self._named, self._refused = pair, named, ""
        return pair


class HeldToken:
    """The access token of one `auth`, and what it is got with; the owner (`TokenOwner`) of its `tokens`."""

    def __init__(
        self,
        name: str,
        auth: Auth,
        oauth2: OAuth2,
        read: Callable[[], Awaitable[AccountSecrets]],
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
        self._metrics.token_granted(self._name, self._clock.wall_ns() + life_seconds * SECOND_NS)
        self._events.tell(
            "token_granted", upstream=self._name, life_seconds=life_seconds, is_rotated=is_rotated
        )

    def token_denied(self) -> None:
        self._metrics.count("relay_token_requests_total", self._name, "denied")

    def refresh_token_unrecorded(self, error: str) -> None:
        self._events.tell("refresh_token_unrecorded", upstream=self._name, error=error)

    async def secrets(self) -> AccountSecrets:
        self._sent = secrets = await self._read()
        self.got_with = frozenset({secrets.digest()})
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
        """Tell what a person has to do, with the upstream's name."""
        verdict = Verdict.STOP if denied.is_final else Verdict.PAUSE
        asked_ns = denied.retry_after_seconds * SECOND_NS
        ruling = Ruling(verdict, Scope.UPSTREAM, retry_after_ns=asked_ns) if asked_ns else None
        text = f"no access token: {denied.advised(self._name)}"
        return UpstreamUnavailable(Answer(verdict, Phase.AUTH, None, clean(text), ruling=ruling))
