"""The owner's accounts: what a connection is opened with, and whether its password has changed.

The password is read for each connection, so that a new one counts from the next one on.
Of the last one only a digest is kept, to see that an account which was refused has a new
password: then it is worth another try at once.
"""

import asyncio
import hashlib

from relay.outcome import Answer
from relay.policy.model import Auth, Mechanism, Upstream
from relay.policy.secrets import SecretError, read_password
from relay.reply import Phase, clean
from relay.service.redaction import Redaction
from relay.upstream.connection import Account, UpstreamUnavailable
from relay.verdict import Judge, Verdict


class Accounts:
    """What connections to all upstreams are opened with."""

    def __init__(self, hostname: str, redaction: Redaction) -> None:
        self._hostname = hostname
        self._redaction = redaction
        self._last: dict[str, bytes] = {}

    async def account(self, name: str, upstream: Upstream, judge: Judge) -> Account:
        """Return what a connection to an upstream is opened with now.  Raises UpstreamUnavailable."""
        password = None
        if upstream.auth is not None:
            try:
                password = await asyncio.to_thread(read_password, upstream.auth)
            except SecretError as error:
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
        """Return whether the password is another than the one that was last tried."""
        try:
            password = await asyncio.to_thread(read_password, auth)
        except SecretError:
            return False
        return name in self._last and self._last[name] != _digest(password)


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode("utf-8", "surrogateescape")).digest()
