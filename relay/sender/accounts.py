"""The owner's accounts: what a connection is opened with, and whether its password has changed.

The password is read for each connection, so that a new one counts from the next connection on.
Only a digest of the last one is kept, to see that a refused account has a new password: then it is
worth another try at once.  A changed password has to rest first: half of one that is being written
would have the account refused.
"""

import asyncio
import hashlib

from relay.mail.text import clean
from relay.policy.model import Auth, Mechanism, Upstream
from relay.policy.secrets import SecretError, is_being_written, read_password
from relay.smtp.reply import Phase
from relay.telemetry.redaction import Redaction
from relay.upstream.connection import Account, NoMeans, UpstreamUnavailable
from relay.verdicts.outcome import Answer
from relay.verdicts.shortage import is_lack_of_means
from relay.verdicts.verdict import Judge, Verdict

REST_SECONDS = 1.0
"""How long a changed password must stay as it is."""
MOST_RESTS = 10


class Accounts:
    def __init__(self, hostname: str, redaction: Redaction) -> None:
        self._hostname = hostname
        self._redaction = redaction
        self._last: dict[str, bytes] = {}
        self._new: dict[str, bytes] = {}
        """Digests of changed passwords, as of the last look."""

    async def account(self, name: str, upstream: Upstream, judge: Judge) -> Account:
        """Return what a connection is opened with now.  Raises UpstreamUnavailable and NoMeans."""
        password = None
        if upstream.auth is not None:
            try:
                password = await self._rested_password(name, upstream.auth)
            except SecretError as error:
                if is_lack_of_means(error.__cause__):
                    raise NoMeans(str(error)) from error
                answer = Answer(Verdict.PAUSE, Phase.AUTH, None, clean(str(error)))
                raise UpstreamUnavailable(answer) from None
            self._redaction.add(upstream.auth.user, password)
            self._last[name] = _digest(password)
        return Account(
            upstream.host,
            upstream.port,
            upstream.tls,
            self._hostname,
            ca_file=upstream.ca_file,
            user=upstream.auth.user if upstream.auth else None,
            password=password,
            mechanism=upstream.auth.mechanism if upstream.auth else Mechanism.AUTO,
            pipelining=upstream.pipelining,
            judge=judge,
        )

    async def has_new_password(self, name: str, auth: Auth) -> bool:
        """Return whether the password differs from the one last tried."""
        try:
            password, is_written = await asyncio.to_thread(_look_at, auth)
        except SecretError:
            return False
        before, self._new[name] = self._new.get(name), _digest(password)
        is_at_rest = before == self._new[name] and not is_written
        return is_at_rest and name in self._last and self._last[name] != _digest(password)

    async def _rested_password(self, name: str, auth: Auth) -> str:
        """Return the password; a changed one, once it rests.  Raises SecretError."""
        before, rests = "", 0
        for _ in range(MOST_RESTS):
            password, is_written = await asyncio.to_thread(_look_at, auth)
            last = self._last.get(name)
            if last == _digest(password) or (not is_written and (last is None or password == before)):
                return password
            rests = rests + 1 if password == before else 1
            before = password
            await asyncio.sleep(REST_SECONDS)
        if rests == MOST_RESTS:
            # A program that keeps the file open, and writes nothing.
            return before
        raise SecretError("the password is being written")


def _look_at(auth: Auth) -> tuple[str, bool]:
    """Return the password and whether a program is writing it.  Raises SecretError."""
    return read_password(auth), is_being_written(auth)


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode("utf-8", "surrogateescape")).digest()
