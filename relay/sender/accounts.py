"""The owner's accounts: what a connection is opened with, and whether its secrets have changed.

They are read for each connection, so that a new one counts from the next connection on; with OAuth2 what
logs in is a token that was got with them.  Only a digest of the last ones is kept, to see that a refused
account has a new password: then it is worth another try at once.  A changed password has to rest first:
half of one that is being written would have the account refused.
"""

import asyncio
from dataclasses import dataclass

from relay.mail.text import clean
from relay.policy.model import Auth, Mechanism, Upstream
from relay.policy.oauth2 import TokenMechanism
from relay.policy.secrets import AccountSecrets, NotLoggedIn, SecretError, read_secrets
from relay.sender.oauth.account_tokens import AccountTokens
from relay.sender.tls.client_certificates import ClientCertificates
from relay.smtp.reply import Phase
from relay.smtp.sasl import BearerToken
from relay.upstream.connection import Account, UpstreamUnavailable
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Judge, Verdict

REST_SECONDS = 1.0
"""How long a changed password must stay as it is."""
MOST_RESTS = 10


class Accounts:
    def __init__(self, hostname: str, tokens: AccountTokens, certificates: ClientCertificates) -> None:
        self._hostname = hostname
        self._tokens = tokens
        self.certificates = certificates
        self._last: dict[str, bytes] = {}
        self._new: dict[str, bytes] = {}
        """Digests of changed secrets, as of the last look."""

    def logins(self, name: str, upstream: Upstream, judge: Judge) -> "UpstreamLogins":
        return UpstreamLogins(self, name, upstream, judge)

    async def account(self, name: str, upstream: Upstream, judge: Judge) -> Account:
        """Return what a connection is opened with now.  Raises UpstreamUnavailable."""
        password, token, pair = None, None, None
        try:
            pair = await self.certificates.pair(name, upstream)
            if upstream.auth is not None and upstream.auth.oauth2 is not None:
                token = await self._token(name, upstream, upstream.auth)
            elif upstream.auth is not None:
                # Empty where a certificate logs in.
                password = (await self._rested_secrets(name, upstream.auth)).password
        except NotLoggedIn as error:
            # A look each second finds the file that `relay login` makes, as it finds a new password.
            self._last[name] = b""
            self._tokens.forget(name)
            text = f"{error}: run `relay login {name}`"
            raise UpstreamUnavailable(Answer(Verdict.STOP, Phase.AUTH, None, clean(text))) from None
        except SecretError as error:
            answer = Answer(Verdict.PAUSE, Phase.AUTH, None, clean(str(error)))
            raise UpstreamUnavailable(answer) from error.__cause__
        return Account(
            upstream.host,
            upstream.port,
            upstream.tls,
            self._hostname,
            ca_file=upstream.ca_file,
            user=upstream.auth.user if upstream.auth else None,
            password=password,
            token=token,
            mechanism=_mechanism(upstream.auth),
            pipelining=upstream.pipelining,
            judge=judge,
            pair=pair,
            source_address=upstream.source_address,
        )

    def refused(self, name: str, account: Account) -> bool:
        """Hear that a login was refused; return whether one with another token is worth it."""
        return account.token is not None and self._tokens.refused(name, account.token)

    def worked(self, name: str, account: Account) -> None:
        """Hear that a login succeeded."""
        if account.token is not None:
            self._tokens.worked(name, account.token)

    async def close(self) -> None:
        await self._tokens.close()

    async def has_new_password(self, name: str, auth: Auth) -> bool:
        """Return whether the secrets differ from those last tried."""
        try:
            secrets = await asyncio.to_thread(read_secrets, auth)
        except SecretError:
            return False
        before, self._new[name] = self._new.get(name), secrets.digest()
        is_at_rest = before == self._new[name]
        is_new = name in self._last and self._last[name] != secrets.digest()
        return is_at_rest and is_new and not self._tokens.is_own(name, secrets)

    async def _token(self, name: str, upstream: Upstream, auth: Auth) -> BearerToken:
        return await self._tokens.token(name, upstream, lambda: self._rested_secrets(name, auth))

    async def _rested_secrets(self, name: str, auth: Auth) -> AccountSecrets:
        """Return the secrets; changed ones, once they rest.  Raises SecretError."""
        before, secrets = None, AccountSecrets()
        for _ in range(MOST_RESTS):
            secrets = await asyncio.to_thread(read_secrets, auth)
            is_known = self._last.get(name) == secrets.digest() or self._tokens.is_own(name, secrets)
            if is_known or name not in self._last or secrets == before:
                break
            before = secrets
            await asyncio.sleep(REST_SECONDS)
        else:
            raise SecretError("the password is being written")
        self._last[name] = secrets.digest()
        return secrets


@dataclass(frozen=True, slots=True)
class UpstreamLogins:
    """What connections of one upstream log in with (`relay.sender.connections.Logins`)."""

    accounts: Accounts
    name: str
    upstream: Upstream
    judge: Judge

    async def account(self) -> Account:
        return await self.accounts.account(self.name, self.upstream, self.judge)

    def refused(self, account: Account) -> bool:
        return self.accounts.refused(self.name, account)

    def worked(self, account: Account) -> None:
        self.accounts.worked(self.name, account)


def _mechanism(auth: Auth | None) -> Mechanism | TokenMechanism:
    if auth is None:
        return Mechanism.AUTO
    return auth.mechanism if auth.oauth2 is None else auth.oauth2.mechanism
