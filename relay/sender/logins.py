"""What connections of one upstream log in with and show: read while the relay runs, no restart needed.

Secrets are read for each connection, so that a new password counts from the next one on; with OAuth2 what
logs in is a token that was got with them.  Only a digest of the last ones is kept, to see that a refused
account has a new password: then it is worth another try at once.  A changed password has to rest first:
half of one that is being written would have the account refused.

The client's certificate is the last pair that was whole and fit for use; files that are replaced count once
they rest (`WatchedFiles`).  What is loaded and refused is told.  Connections that showed the pair of before
go on.
"""

import asyncio
import functools

from relay.mail.text import clean
from relay.policy.model import Auth, Mechanism, OAuth2, TokenMechanism, Upstream
from relay.policy.named_file import FileChange, WatchedFiles
from relay.policy.secrets import (
    AccountSecrets,
    KeyPair,
    NotLoggedIn,
    SecretError,
    read_key_pair,
    read_secrets,
)
from relay.sender.held_token import HeldToken
from relay.smtp.reply import Phase
from relay.smtp.sasl import BearerToken
from relay.spool.disk.durable import Disk
from relay.telemetry.metrics import Telemetry
from relay.upstream.connection import UpstreamServer, UpstreamUnavailable
from relay.upstream.oauth.token_server import Ask
from relay.upstream.oauth.token_server import ask as ask_server
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Judge, Verdict

REST_SECONDS = 1.0
"""How long a changed password must stay as it is."""
MOST_LOOKS = 10
"""At one that changes at each: then no connection is opened for now."""


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
        """Digest of the secrets that were used last."""
        self._seen: bytes | None = None
        """Digest of the secrets as of the last look."""
        self._held: HeldToken | None = None
        self._closing: set[asyncio.Task[None]] = set()
        """Former tokens with a request under way, which may rotate the refresh token."""
        self._pair: WatchedFiles[KeyPair] | None = None
        self._pair_turn = asyncio.Lock()

    async def account(self, judge: Judge) -> UpstreamServer:
        """Return what a connection is opened with now.  Raises UpstreamUnavailable."""
        upstream, auth = self.upstream, self.upstream.auth
        oauth2 = None if auth is None else auth.oauth2
        password, token = None, None
        try:
            async with self._pair_turn:
                watched = await self._watched(upstream)
            if auth is not None and oauth2 is not None:
                token = await self._token(upstream, auth, oauth2)
            elif auth is not None:
                # Empty where a certificate logs in.
                password = (await self._rested_secrets(auth)).password
        except NotLoggedIn as error:
            # A look each second finds the file that `relay login` makes, as it finds a new password.
            self._last = b""
            self._forget_token()
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
            mechanism=_mechanism(auth),
            pipelining=upstream.pipelining,
            judge=judge,
            pair=None if watched is None else watched.in_force,
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

    async def look(self) -> None:
        """See whether the certificate was replaced; call it each second."""
        async with self._pair_turn:
            try:
                watched = await self._watched(self.upstream)
            except SecretError:
                return  # a connection tells why
            change = FileChange.NOTHING if watched is None else await asyncio.to_thread(watched.look)
        if watched is not None and change is FileChange.REFUSED:
            self._telemetry.events.tell(
                "client_certificate_refused", upstream=self._name, error=watched.error
            )
        elif watched is not None and change is FileChange.CHANGED:
            self._tell_loaded(watched.in_force)

    @property
    def certificate_ends_at_ns(self) -> int | None:
        """Wall clock: when the client's certificate ends; None without one."""
        return None if self._pair is None else self._pair.in_force.ends_at_ns

    async def close(self) -> None:
        self._forget_token()
        await asyncio.gather(*self._closing)

    def _forget_token(self) -> None:
        """Forget what was got with secrets that are gone, or with another account's."""
        if (held := self._held) is not None:
            self._held = None
            closing = asyncio.create_task(held.tokens.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _token(self, upstream: Upstream, auth: Auth, oauth2: OAuth2) -> BearerToken:
        if (held := self._held) is None or held.auth != auth:
            self._forget_token()
            held = self._held = HeldToken(
                self._name,
                auth,
                oauth2,
                functools.partial(self._rested_secrets, auth),
                disk=self._disk,
                telemetry=self._telemetry,
                ask=self._ask,
            )
        while self._closing:
            # A former one may be about to rotate the refresh token that this one would send.
            await asyncio.wait(self._closing)
        return await held.token(upstream)

    def _is_known(self, secrets: AccountSecrets) -> bool:
        """Whether secrets are the last ones, or what the relay itself made of them."""
        digest = secrets.digest()
        return digest == self._last or (self._held is not None and digest in self._held.got_with)

    async def _rested_secrets(self, auth: Auth) -> AccountSecrets:
        """Return the secrets; changed ones, once they rest.  Raises SecretError."""
        secrets = await asyncio.to_thread(read_secrets, auth)
        looks = 0
        while self._last is not None and not self._is_known(secrets):
            if (looks := looks + 1) > MOST_LOOKS:
                raise SecretError(f"the secrets of {self._name} do not rest")
            before = secrets
            await asyncio.sleep(REST_SECONDS)
            secrets = await asyncio.to_thread(read_secrets, auth)
            if secrets == before:
                break
        self._last = secrets.digest()
        return secrets

    async def _watched(self, upstream: Upstream) -> WatchedFiles[KeyPair] | None:
        """Return the files of the certificate that is shown; None without one.  Raises SecretError."""
        certificate, key = upstream.tls_certificate, upstream.tls_key
        paths = tuple(path for path in (certificate, key) if path is not None)
        if certificate is None or (self._pair is not None and self._pair.paths != paths):
            self._pair = None
        if certificate is not None and self._pair is None:
            read = functools.partial(read_key_pair, certificate, key)
            begun: WatchedFiles[KeyPair] = await asyncio.to_thread(WatchedFiles, paths, read)
            self._pair = begun
            self._tell_loaded(begun.in_force)
        return self._pair

    def _tell_loaded(self, pair: KeyPair) -> None:
        self._telemetry.events.tell(
            "client_certificate_loaded", upstream=self._name, certificate=pair.fingerprint
        )


def _mechanism(auth: Auth | None) -> Mechanism | TokenMechanism:
    if auth is None:
        return Mechanism.AUTO
    return auth.mechanism if auth.oauth2 is None else auth.oauth2.mechanism
