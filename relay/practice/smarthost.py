"""The practice smarthost: the address, and all its connections.

Guarantees: one account, one limit, enforced exactly by its own clock; nothing that it
takes goes anywhere but into the folder `keep`.
Assumes: one event loop, the standard library's or uvloop.
"""

import asyncio
import random
import ssl

from relay.clock import Clock, SystemClock
from relay.policy.units import HostPort
from relay.practice.account import PracticeAccount, PracticeBehaviour
from relay.practice.conversation import PracticeSession, PracticeTerms
from relay.practice.dialogue import TokenCheck
from relay.smtp.sasl import Credentials


class PracticeSmarthost:
    def __init__(
        self,
        address: HostPort,
        user: str,
        password: str,
        behaviour: PracticeBehaviour,
        *,
        tls: ssl.SSLContext | None = None,
        rng: random.Random | None = None,
        clock: Clock | None = None,
        is_token: TokenCheck | None = None,
    ) -> None:
        """With `is_token` access tokens log in, too.  Raise OSError if the folder `keep` cannot be made.

        Raises ValueError for an address that others reach without TLS.
        """
        if tls is None and not address.is_loopback:
            raise ValueError(f"{address}: without TLS a practice smarthost listens on loopback only")
        rng = rng or random.Random()  # noqa: S311 - lateness and counting, not secrets
        account = PracticeAccount(behaviour, rng, clock or SystemClock())
        self.ledger = account.ledger
        self._terms = PracticeTerms(account, Credentials(user, password), tls, is_token)
        self._address = address
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The kernel's choice where the address said 0."""
        if self._server is None:
            raise RuntimeError("the practice smarthost was not started")
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Raise OSError if the address is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: PracticeSession(self._terms), self._address.host, self._address.port
        )

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        sessions = list(self._terms.open)
        for session in sessions:
            session.abort()
        await asyncio.gather(*(session.ended for session in sessions))
        await self._server.wait_closed()
        self._server = None
