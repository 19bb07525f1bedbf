"""The practice smarthost: the address, and all its connections.

Guarantees: one account, one limit, enforced exactly by its own clock; nothing that it
takes goes anywhere but into the folder `keep`.
Assumes: one event loop, the standard library's or uvloop.
"""

import asyncio
import random
import ssl
from collections.abc import Callable
from pathlib import Path

from relay.clock import Clock, SystemClock
from relay.policy.limits import LimitSettings
from relay.policy.units import HostPort
from relay.practice.account import Counting, PracticeAccount
from relay.practice.conversation import PracticeSession, PracticeTerms
from relay.practice.witness import Witness
from relay.smtp.sasl import Credentials

REMEMBERED_ENTRIES = 100_000


class PracticeSmarthost:
    """A smarthost that cuts off whoever exceeds its limit."""

    def __init__(
        self,
        address: HostPort,
        user: str,
        password: str,
        limit: LimitSettings,
        cut_off_ns: int,
        *,
        keep: Path | None = None,
        counting: Counting = Counting.AT_RANDOM,
        longest_delay_ns: int = 0,
        remember: int = REMEMBERED_ENTRIES,
        tls: ssl.SSLContext | None = None,
        rng: random.Random | None = None,
        clock: Clock | None = None,
        why_refused: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        """Set up, but do not listen yet.

        `longest_delay_ns` is how late a reply to a final dot may be, at random; `remember`
        is how many entries the ledger keeps; `why_refused` returns the reply to a recipient
        that it does not take, or None.  Raises OSError if `keep` cannot be made, and
        ValueError for an address that others reach without TLS.
        """
        if tls is None and not address.is_loopback:
            raise ValueError(f"{address}: without TLS a practice smarthost listens on loopback only")
        self.ledger = Witness(limit, cut_off_ns, remember=remember)
        account = PracticeAccount(
            self.ledger,
            counting=counting,
            longest_delay_ns=longest_delay_ns,
            keep=keep,
            rng=rng or random.Random(),  # noqa: S311 - lateness and counting, not secrets
            clock=clock or SystemClock(),
            why_refused=why_refused,
        )
        self._terms = PracticeTerms(account, Credentials(user, password), tls)
        self._address = address
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """Return the port that it listens on, also where the address said 0."""
        if self._server is None:
            raise RuntimeError("the practice smarthost was not started")
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Listen.  Raises OSError if the address is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: PracticeSession(self._terms), self._address.host, self._address.port
        )

    async def close(self) -> None:
        """Stop listening and end every connection at once."""
        if self._server is None:
            return
        self._server.close()
        sessions = list(self._terms.open)
        for session in sessions:
            session.abort()
        await asyncio.gather(*(session.ended for session in sessions))
        await self._server.wait_closed()
        self._server = None
