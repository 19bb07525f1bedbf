"""Connections of one upstream: what each logs in with, and how it is opened with a slot of its own.

A message's slot is occupied from its reservation, so nothing slow may stand between that and MAIL: the
connection is opened, secured and logged in first, and waits in the pool (`relay.upstream.pool`).
Guarantees: no connection begins before its own slot is on disk.  That slot ends when the connection is
ready for mail, or has failed.  An upstream counts a connection somewhere in between.

Secrets are read for each connection, so a new password needs no restart.  With OAuth2 the login uses a token
that was got with the secrets; all connections share it.  Only digests of the last secrets are kept.  They
show that a refused account has a new password, and is worth another try at once.  A new refresh token is
durable before the access token that came with it is used.  A failure to write it is logged, and tried again.
`relay.upstream.oauth.tokens` decides when a token is fetched.

The client's certificate is read for each connection too.  A pair that cannot be used pauses the upstream.
Open connections go on with the pair that they showed.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from relay.clock import SECOND_NS, Clock
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
from relay.sender.throttle_thread import ThrottleThread
from relay.smtp.reply import Phase
from relay.smtp.sasl import BearerToken
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.replacing import put_in_place
from relay.telemetry.metrics import Telemetry
from relay.throttle.admission import Wait
from relay.upstream.connection import Connection, OnStep, UpstreamServer, UpstreamUnavailable, open_connection
from relay.upstream.oauth.token_server import Ask, Denied
from relay.upstream.oauth.token_server import ask as ask_server
from relay.upstream.oauth.tokens import TokenOwner, Tokens
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Judge, Ruling, Scope, Verdict

LARGEST_TOKEN_BYTES = 16 * 1024
OPENING_SECONDS = 1800
"""The longest that opening may take: 5 minutes for the greeting, 5 for EHLO (RFC 5321, 4.5.3.2), and more."""


class NoRoomToConnect(Exception):  # noqa: N818 - a state, not an error of ours
    """A limit on connections has no room now, or the account was paused meanwhile."""

    def __init__(self, why: str, until_ns: int) -> None:
        super().__init__(why)
        self.until_ns = until_ns


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

    async def current_server(self, judge: Judge) -> UpstreamServer:
        """Return the server and login for a new connection.  Raises UpstreamUnavailable."""
        upstream, auth = self.upstream, self.upstream.auth
        mechanism: Mechanism | TokenMechanism = "auto" if auth is None else auth.mechanism
        password, token = None, None
        try:
            pair = await self._read_pair(upstream)
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

    def refused(self, token: BearerToken | None) -> bool:
        """Record a refused login; return whether a second login with another token is worthwhile."""
        return token is not None and self._tokens is not None and self._tokens.refused(token.token)

    def worked(self, token: BearerToken | None) -> None:
        if token is not None and self._tokens is not None:
            self._tokens.worked(token.token)

    async def has_new_password(self) -> bool:
        """Return whether the secrets differ from those last tried."""
        if self.upstream.auth is None or self._last is None:
            return False
        try:
            digest = (await asyncio.to_thread(read_secrets, self.upstream.auth)).digest()
        except SecretError:
            return False
        # With a refresh token that the relay wrote itself they are not new.
        return digest != self._last and (self._tokens is None or digest not in self._tokens.got_with)

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
            path, clock, before = oauth2.refresh_token_file, self._telemetry.clock, self._tokens
            file = None if path is None else RefreshTokenFile(path, self._disk)
            owner = _Owner(self._name, read, file, self._telemetry)
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

    async def _secrets(self, auth: Auth) -> AccountSecrets:
        """Read the secrets.  Raises SecretError."""
        secrets = await asyncio.to_thread(read_secrets, auth)
        self._last = secrets.digest()
        return secrets

    async def _read_pair(self, upstream: Upstream) -> KeyPair | None:
        """Read the client's certificate and key; None without one.  Raises SecretError."""
        pair = None
        if upstream.tls_certificate is not None:
            pair = await asyncio.to_thread(read_key_pair, upstream.tls_certificate, upstream.tls_key)
            if pair != self._pair:
                self._telemetry.events.tell(
                    "client_certificate_loaded", upstream=self._name, certificate=pair.fingerprint
                )
        self._pair = pair
        return pair


class RefreshTokenFile:
    """A refresh token on disk, in a file of mode 0600: replaced whole, and never in the place of a newer one.

    A token that `rotate` or `write` put there is durable when the call returns.  A crash leaves the old token
    or the new one.  Another process may write too (`relay login`, another relay), if it takes PATH.lock.
    """

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path, self._disk = str(path), disk

    def read(self) -> str | None:
        """Return the token, None without a file.  Raises OSError and ValueError."""
        if self._disk.inode(self._path) is None:
            return None
        with opened(self._disk, self._disk.open_read(self._path)) as fd:
            return self._disk.pread(fd, LARGEST_TOKEN_BYTES, 0).decode("utf-8").rstrip("\r\n")

    def rotate(self, old: str, new: str) -> bool:
        """Replace the token `old`, with which `new` was got; durable when this returns.

        Returns False if the file has a third token: that one is newer.  Raises OSError and ValueError.
        """
        with self._locked():
            # The file may have the new token already, from an attempt whose last sync failed.
            if self.read() not in {old, new}:
                return False
            self._put(new)
            return True

    def write(self, token: str) -> None:
        """Put a token in the place of any other, durably.  Raises OSError."""
        with self._locked():
            self._put(token)

    def _locked(self) -> AbstractContextManager[int]:
        fd = self._disk.lock(f"{self._path}.lock", wait=True)
        if fd is None:
            raise AssertionError("lock(wait=True) returned no lock")
        return opened(self._disk, fd)

    def _put(self, token: str) -> None:
        # Crash here: the file has the old token, or the new one.
        self._disk.close(put_in_place(self._disk, self._path, f"{token}\n".encode()))


@dataclass(frozen=True)
class _Owner(TokenOwner):
    """Reads the secrets for the tokens of one `auth`, keeps its refresh tokens, and logs."""

    name: str
    read: Callable[[], Awaitable[AccountSecrets]]
    file: RefreshTokenFile | None
    telemetry: Telemetry

    async def secrets(self) -> AccountSecrets:
        return await self.read()

    async def record_refresh_token(self, old: str, new: str) -> str:
        error = "the policy sets no refresh_token_file" if self.file is None else ""
        if self.file is not None:
            try:
                await asyncio.to_thread(self.file.rotate, old, new)
            except (OSError, ValueError) as failure:
                error = clean(str(failure))
        if error:
            self.telemetry.events.tell("refresh_token_unrecorded", upstream=self.name, error=error)
        return error

    def token_granted(self, life_seconds: int, *, is_rotated: bool) -> None:
        events, metrics, clock = self.telemetry
        metrics.count("relay_token_requests_total", self.name, "granted")
        ends_at_s = clock.wall_ns() / SECOND_NS + life_seconds
        metrics.set("relay_token_end_timestamp_seconds", self.name, to=ends_at_s)
        events.tell("token_granted", upstream=self.name, life_seconds=life_seconds, is_rotated=is_rotated)

    def token_denied(self) -> None:
        self.telemetry.metrics.count("relay_token_requests_total", self.name, "denied")


async def open_with_slot(
    throttle: ThrottleThread,
    logins: Logins,
    judge: Judge,
    clock: Clock,
    *,
    may_begin: Callable[[], bool] = lambda: True,
    on_step: OnStep = lambda _, __: None,
) -> Connection:
    """Return a connection that is ready for MAIL; `on_step` is called as by `open_connection`.

    `may_begin` is asked once the slot is reserved: another host may have been refused meanwhile.  If a
    token that had worked is refused, the login is tried once more with another token.
    Raises UpstreamUnavailable, NoRoomToConnect, and HistoryError before the connection begins.
    """
    # The token comes first: no slot is reserved while it is fetched.
    login, refused = await logins.current_server(judge), None
    if login.token is not None:
        on_step("token", "access token available")
    while True:
        try:
            connection = await _open(throttle, login, clock, may_begin, on_step)
        except UpstreamUnavailable as unavailable:
            answer = unavailable.answer
            is_refused = answer.phase is Phase.AUTH and answer.verdict is Verdict.STOP
            if not (is_refused and logins.refused(login.token)) or refused is not None:
                raise
            refused, login = login, await logins.current_server(judge)
            if login.token == refused.token:
                raise
            on_step("login", f"{answer.text}: retrying with another token")
        else:
            logins.worked(login.token)
            return connection


async def _open(
    throttle: ThrottleThread,
    login: UpstreamServer,
    clock: Clock,
    may_begin: Callable[[], bool],
    on_step: OnStep,
) -> Connection:
    reservation = await throttle.call(
        lambda throttle: throttle.reserve_connection(OPENING_SECONDS * SECOND_NS)
    )
    if isinstance(reservation, Wait):
        raise NoRoomToConnect(reservation.limit.reason, reservation.until_ns)
    if not may_begin():
        throttle.ended(reservation)
        raise NoRoomToConnect("the account is paused", reservation.reserved_at_ns)
    try:
        async with asyncio.timeout(OPENING_SECONDS):
            return await open_connection(login, clock, on_step=on_step)
    except TimeoutError:
        text = f"the connection was not ready for mail within {OPENING_SECONDS} s"
        raise UpstreamUnavailable(Answer(Verdict.PAUSE, Phase.CONNECT, None, text)) from None
    finally:
        throttle.ended(reservation)
