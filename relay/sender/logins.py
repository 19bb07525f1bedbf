"""The secrets and the certificate for connections of one upstream, read while the relay runs.

Secrets are read for each connection, so a new password needs no restart.  It counts once two reads,
`AT_REST_SECONDS` apart, agree: a half-written one never logs in.  With OAuth2 the login uses a token that
was got with the secrets; all connections share it.  Only digests of the last secrets are kept.  They show
that a refused account has a new password, and is worth another try at once.

A new refresh token is durable before the access token that came with it is used.  A failure to write it is
logged, and tried again.  `relay.upstream.oauth.tokens` decides when a token is fetched.

The client's certificate is read for each connection too.  The last pair that was whole and fit for use is
shown; a pair that is loaded or refused is logged.  Open connections go on with the pair that they showed.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
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
from relay.upstream.oauth.tokens import TokenOwner, Tokens
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Judge, Ruling, Scope, Verdict

AT_REST_SECONDS = 1.0
"""Between two reads of a secret that changed."""


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
        """Digest of the secrets used last, empty if there were none; None before the first read."""
        self._tokens: Tokens | None = None
        self._tokens_of: Auth | None = None
        self._pair: KeyPair | None = None
        self._named: tuple[Path, Path | None] | None = None
        """The files of `_pair`."""
        self._refused = ""
        """Why the files' present content is not shown; empty if it is."""

    async def current_server(self, judge: Judge) -> UpstreamServer:
        """Return the server and login for a new connection.  Raises UpstreamUnavailable."""
        upstream, auth = self.upstream, self.upstream.auth
        mechanism: Mechanism | TokenMechanism = Mechanism.AUTO if auth is None else auth.mechanism
        password, token = None, None
        try:
            pair = await self._shown_pair(upstream)
            if auth is not None and auth.oauth2 is not None:
                mechanism = auth.oauth2.mechanism
                token = await self._token(upstream, auth, auth.oauth2)
            elif auth is not None:
                # Empty if a certificate logs in.
                password = (await self._secrets(auth)).password
        except NotLoggedIn as error:
            # With this digest, the look each second at passwords finds the file that `relay login` makes.
            self._last = b""
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
        """Record a refused login; return whether a second login with another token is worthwhile."""
        if account.token is None or self._tokens is None:
            return False
        return self._tokens.refused(account.token.token)

    def worked(self, account: UpstreamServer) -> None:
        if account.token is not None and self._tokens is not None:
            self._tokens.worked(account.token.token)

    async def has_new_password(self) -> bool:
        """Return whether the secrets differ from those last tried; they may be half-written yet."""
        if self.upstream.auth is None or self._last is None:
            return False
        try:
            return not self._is_known(await asyncio.to_thread(read_secrets, self.upstream.auth))
        except SecretError:
            return False

    @property
    def certificate_ends_at_ns(self) -> int | None:
        """Wall clock: when the client's certificate ends; None without one."""
        return None if self._pair is None else self._pair.ends_at_ns

    async def close(self) -> None:
        if self._tokens is not None:
            await self._tokens.close()

    async def _token(self, upstream: Upstream, auth: Auth, oauth2: OAuth2) -> BearerToken:
        """Return a token for a login now.  Raises UpstreamUnavailable and SecretError."""
        if self._tokens is None or self._tokens_of != auth:
            read = functools.partial(self._secrets, auth)
            owner = _Owner(self._name, oauth2.refresh_token_file, read, self._disk, self._telemetry)
            clock, before = self._telemetry.clock, self._tokens
            self._tokens = Tokens(oauth2, auth.user, self._ask, owner, clock, before=before)
            self._tokens_of = auth
        token = await self._tokens.token()
        if isinstance(token, Denied):
            raise self._unavailable(token)
        return BearerToken(auth.user, token, upstream.host, upstream.port)

    def _unavailable(self, denied: Denied) -> UpstreamUnavailable:
        """Return the error for a missing token, which says what the operator has to do."""
        verdict = Verdict.STOP if denied.is_final else Verdict.PAUSE
        asked_ns = denied.retry_after_seconds * SECOND_NS
        ruling = Ruling(verdict, Scope.UPSTREAM, retry_after_ns=asked_ns) if asked_ns else None
        text = f"no access token: {denied.advised(self._name)}"
        return UpstreamUnavailable(Answer(verdict, Phase.AUTH, None, clean(text), ruling=ruling))

    def _is_known(self, secrets: AccountSecrets) -> bool:
        """Whether these are the last secrets, or those with a refresh token that the relay wrote itself."""
        digest = secrets.digest()
        return digest == self._last or (self._tokens is not None and digest in self._tokens.got_with)

    async def _secrets(self, auth: Auth) -> AccountSecrets:
        """Read the secrets; if they changed, until two reads agree.  Raises SecretError."""
        secrets, before = await asyncio.to_thread(read_secrets, auth), None
        while secrets != before and self._last is not None and not self._is_known(secrets):
            await asyncio.sleep(AT_REST_SECONDS)
            secrets, before = await asyncio.to_thread(read_secrets, auth), secrets
        self._last = secrets.digest()
        return secrets

    async def _shown_pair(self, upstream: Upstream) -> KeyPair | None:
        """Return the last good certificate and key; None without one.  Raises SecretError."""
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


class _Owner(TokenOwner):
    """Reads the secrets for the tokens of one `auth`, keeps its refresh tokens, and logs."""

    def __init__(
        self,
        name: str,
        path: Path | None,
        secrets: Callable[[], Awaitable[AccountSecrets]],
        disk: Disk,
        telemetry: Telemetry,
    ) -> None:
        self._name, self._secrets = name, secrets
        self._file = None if path is None else RefreshTokenFile(path, disk)
        self._events, self._metrics, self._clock = telemetry

    async def secrets(self) -> AccountSecrets:
        return await self._secrets()

    async def record_refresh_token(self, old: str, new: str) -> str:
        error = "the policy sets no refresh_token_file" if self._file is None else ""
        if self._file is not None:
            try:
                await asyncio.to_thread(self._file.rotate, old, new)
            except (OSError, ValueError) as failure:
                error = clean(str(failure))
        if error:
            self._events.tell("refresh_token_unrecorded", upstream=self._name, error=error)
        return error

    def token_granted(self, life_seconds: int, *, is_rotated: bool) -> None:
        ends_at_s = self._clock.wall_ns() / SECOND_NS + life_seconds
        self._metrics.count("relay_token_requests_total", self._name, "granted")
        self._metrics.set("relay_token_end_timestamp_seconds", self._name, to=ends_at_s)
        self._events.tell(
            "token_granted", upstream=self._name, life_seconds=life_seconds, is_rotated=is_rotated
        )

    def token_denied(self) -> None:
        self._metrics.count("relay_token_requests_total", self._name, "denied")
