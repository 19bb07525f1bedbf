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

A reply to EHLO speaks for one host behind the upstream's name, on one day.  So a message that a connection
cannot carry (8BITMIME, SMTPUTF8, SIZE) is deferred.  It bounces only if no connection of the last `LOOKS`
looks could carry it.  Connections opened within `APART_NS` of a look's first belong to that look.  Looks
are lost at a restart, and at an edit that names another server.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from relay.clock import SECOND_NS
from relay.mail.envelope import Shape
from relay.mail.text import clean
from relay.policy.model import Auth, Mechanism, OAuth2, TokenMechanism, Upstream
from relay.policy.secrets import AccountSecrets, NotLoggedIn, SecretError, read_key_pair, read_secrets
from relay.sender.threads import ThrottleThread
from relay.smtp.extensions import Extensions
from relay.smtp.reply import Phase
from relay.smtp.sasl import BearerToken, Credentials
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.replacing import replace_file
from relay.telemetry.metrics import Telemetry
from relay.throttle.admission import Wait
from relay.upstream.connection import Connection, OnStep, UpstreamServer, UpstreamUnavailable, open_connection
from relay.upstream.oauth.token_server import Ask, Denied, TokenAnswer
from relay.upstream.oauth.token_server import ask as ask_server
from relay.upstream.oauth.tokens import Tokens
from relay.upstream.transaction import why_unfit
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Judge, Ruling, Scope, Verdict

LOOKS = 3
APART_NS = 5 * 60 * SECOND_NS
"""Between two looks: a short fault of the upstream, such as a restart, is over by then."""
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
        self.certificate_ends_at_ns: int | None = None
        """Wall clock: when the client's certificate ends; None without one."""

    async def current_server(self, judge: Judge) -> UpstreamServer:
        """Return the server and login for a new connection.  Raises UpstreamUnavailable."""
        upstream, auth = self.upstream, self.upstream.auth
        mechanism: Mechanism | TokenMechanism = "auto" if auth is None else auth.mechanism
        credentials: Credentials | BearerToken | None = None
        try:
            pair = None
            if upstream.tls_certificate is not None:
                pair = await asyncio.to_thread(read_key_pair, upstream.tls_certificate, upstream.tls_key)
            self.certificate_ends_at_ns = None if pair is None else pair.ends_at_ns
            if auth is not None and auth.oauth2 is not None:
                mechanism = auth.oauth2.mechanism
                credentials = await self._token(upstream, auth, auth.oauth2)
            elif auth is not None:
                # Empty if a certificate logs in.
                credentials = Credentials(auth.user, (await self._secrets(auth)).password)
        except NotLoggedIn as error:
            # With this digest, the look each second at passwords finds the file that `relay login` makes.
            self._last = b""
            text = f"{error}: run `relay login {self._name}`"
            raise UpstreamUnavailable(Answer(Verdict.STOP, Phase.AUTH, None, clean(text))) from None
        except SecretError as error:
            answer = Answer(Verdict.PAUSE, Phase.AUTH, None, clean(str(error)))
            raise UpstreamUnavailable(answer) from error.__cause__
        return UpstreamServer(upstream, self._hostname, credentials, mechanism, judge, pair)

    async def open(
        self,
        throttle: ThrottleThread,
        judge: Judge,
        *,
        may_begin: Callable[[], bool] = lambda: True,
        on_step: OnStep = lambda _, __: None,
    ) -> Connection:
        """Return a connection that is ready for MAIL; `on_step` is called as by `open_connection`.

        `may_begin` is asked once the slot is reserved: another host may have been refused meanwhile.
        Raises UpstreamUnavailable, NoRoomToConnect, and HistoryError before the connection begins.
        """
        # The token comes first: no slot is reserved while it is fetched.
        server = await self.current_server(judge)
        token = server.credentials if isinstance(server.credentials, BearerToken) else None
        tokens = self._tokens
        if token is not None:
            on_step("token", "access token available")
        reservation = await throttle.call(lambda it: it.reserve_connection(OPENING_SECONDS * SECOND_NS))
        if isinstance(reservation, Wait):
            raise NoRoomToConnect(reservation.limit.reason, reservation.until_ns)
        try:
            if not may_begin():
                raise NoRoomToConnect("the account is paused", reservation.reserved_at_ns)
            async with asyncio.timeout(OPENING_SECONDS):
                connection = await open_connection(server, self._telemetry.clock, on_step=on_step)
        except TimeoutError:
            text = f"the connection was not ready for mail within {OPENING_SECONDS} s"
            raise UpstreamUnavailable(Answer(Verdict.PAUSE, Phase.CONNECT, None, text)) from None
        except UpstreamUnavailable as unavailable:
            answer = unavailable.answer
            is_refused = answer.phase is Phase.AUTH and answer.verdict is Verdict.STOP
            if is_refused and token is not None and tokens is not None and tokens.refused(token.token):
                # The next login fetches another token, which may work.
                raise UpstreamUnavailable(answer._replace(verdict=Verdict.PAUSE, ruling=None)) from None
            raise
        finally:
            throttle.ended(reservation)
        if token is not None and tokens is not None:
            tokens.worked(token.token)
        return connection

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

    async def close(self) -> None:
        if self._tokens is not None:
            await self._tokens.close()

    async def _token(self, upstream: Upstream, auth: Auth, oauth2: OAuth2) -> BearerToken:
        """Return a token for a login now.  Raises UpstreamUnavailable and SecretError."""
        if self._tokens is None or self._tokens_of != auth:
            self._tokens = Tokens(
                oauth2,
                auth.user,
                self._ask,
                self._telemetry.clock,
                secrets=partial(self._secrets, auth),
                record=partial(self._record, oauth2.refresh_token_file),
                on_answer=self._answered,
                before=self._tokens,
            )
            self._tokens_of = auth
        token = await self._tokens.token()
        if not isinstance(token, Denied):
            return BearerToken(auth.user, token, upstream.host, upstream.port)
        verdict = Verdict.STOP if token.is_final else Verdict.PAUSE
        asked_ns = token.retry_after_seconds * SECOND_NS
        ruling = Ruling(verdict, Scope.UPSTREAM, retry_after_ns=asked_ns) if asked_ns else None
        text = f"no access token: {token.advised(self._name)}"
        raise UpstreamUnavailable(Answer(verdict, Phase.AUTH, None, clean(text), ruling=ruling))

    async def _secrets(self, auth: Auth) -> AccountSecrets:
        """Read the secrets.  Raises SecretError."""
        secrets = await asyncio.to_thread(read_secrets, auth)
        self._last = secrets.digest()
        return secrets

    async def _record(self, path: Path | None, old: str, new: str) -> str:
        error = "the policy sets no refresh_token_file"
        if path is not None:
            try:
                await asyncio.to_thread(write_refresh_token, path, self._disk, new, old=old)
                return ""
            except (OSError, ValueError) as failure:
                error = clean(str(failure))
        self._telemetry.events.tell("refresh_token_unrecorded", upstream=self._name, error=error)
        return error

    def _answered(self, answer: TokenAnswer) -> None:
        events, metrics, name = self._telemetry.events, self._telemetry.metrics, self._name
        if isinstance(answer, Denied):
            metrics.count("relay_token_requests_total", name, "denied")
            return
        metrics.count("relay_token_requests_total", name, "granted")
        life_seconds, is_rotated = answer.life_seconds, answer.refresh_token != ""
        events.tell("token_granted", upstream=name, life_seconds=life_seconds, is_rotated=is_rotated)


def read_refresh_token(path: Path, disk: Disk) -> str | None:
    """Return the token in a file, None without a file.  Raises OSError and ValueError."""
    if disk.inode(str(path)) is None:
        return None
    with opened(disk, disk.open_read(str(path))) as fd:
        return disk.pread(fd, LARGEST_TOKEN_BYTES, 0).decode("utf-8").rstrip("\r\n")


def write_refresh_token(path: Path, disk: Disk, new: str, *, old: str | None = None) -> bool:
    """Make a token durable, in a file of mode 0600 that is replaced whole.  Raises OSError and ValueError.

    If `new` was got with `old`, and the file has a third token, that one is newer: return False.
    Another process may write too (`relay login`, another relay), if it takes PATH.lock.
    """
    lock = disk.lock(f"{path}.lock", wait=True)
    if lock is None:
        raise AssertionError("lock(wait=True) returned no lock")
    with opened(disk, lock):
        # The file may have the new token already, from an attempt whose last sync failed.
        if old is not None and read_refresh_token(path, disk) not in {old, new}:
            return False
        # Crash here: the file has the old token, or the new one.
        replace_file(disk, str(path), f"{new}\n".encode())
        return True


class OfferedExtensions:
    """The extensions that one server offered on its last connections."""

    def __init__(self) -> None:
        self.is_dsn_refused = False
        """The upstream refused DSN parameters (RFC 3461) that it had offered: the relay reports success."""
        self.certificate_ends_at_ns: int | None = None
        """Wall clock: when the server's certificate ends, as of the last connection."""
        self._looks: deque[tuple[int, set[Extensions]]] = deque(maxlen=LOOKS)
        """When each look began (boottime), and what was offered in it."""

    def add(self, connection: Connection) -> None:
        self.certificate_ends_at_ns = connection.certificate_ends_at_ns
        at_ns = connection.opened_at_ns
        if not self._looks or at_ns - self._looks[-1][0] >= APART_NS:
            self._looks.append((at_ns, set()))
        self._looks[-1][1].add(connection.extensions)

    def judge(self, lack: Answer, shape: Shape) -> Answer:
        """Return `lack`, as a BOUNCE if no connection of the last `LOOKS` looks could carry the message."""
        offers = [each for _, offered in self._looks for each in offered]
        if len(self._looks) == LOOKS and all(why_unfit(each, shape) is not None for each in offers):
            return lack._replace(verdict=Verdict.BOUNCE)
        return lack._replace(text=f"{lack.text}; another connection may accept it")
