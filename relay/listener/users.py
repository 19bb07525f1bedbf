"""Who may authenticate, and the brake on guessing.

Guarantees: a wrong password and an unknown user cost the same hash and give the same
answer; at most `_THREADS` hashes run at once (argon2id takes 64 MiB each), never on the
event loop; no name and no password is kept after the call or shown in any text.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from relay.clock import SECOND_NS

_THREADS = 2


class Users:
    """The users of one listener.  `close` ends its threads."""

    def __init__(self, hashes: Mapping[str, str]) -> None:
        """Take what `policy.secrets.read_users` returned, of at least one user."""
        self._hashes = dict(hashes)
        # What an unknown name is checked against, so that it takes as long as a known one.
        self._decoy = next(iter(self._hashes.values()))
        self._hasher = PasswordHasher()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="relay-auth")

    async def verify(self, name: str, password: str) -> bool:
        """Return whether the user exists and this is the password."""
        known = self._hashes.get(name)
        loop = asyncio.get_running_loop()
        matches = await loop.run_in_executor(self._threads, self._matches, known or self._decoy, password)
        return matches and known is not None

    def _matches(self, password_hash: str, password: str) -> bool:
        try:
            return self._hasher.verify(password_hash, password)
        except (VerificationError, InvalidHashError):
            return False

    def close(self) -> None:
        """Let go of the threads; checks that wait are dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class BackOff:
    """Makes who guesses passwords wait, across sessions: 2 s after the third failure, then double.

    Bounded: who has not failed for an hour is forgotten, and of more than `MAX_ORIGINS`
    the one whose last failure is longest ago.
    """

    FREE_FAILURES = 3
    FIRST_NS = 2 * SECOND_NS
    LONGEST_NS = 15 * 60 * SECOND_NS
    MEMORY_NS = 3600 * SECOND_NS
    MAX_ORIGINS = 10_000

    def __init__(self) -> None:
        # origin: (failures, instant of the last one); oldest failure first.
        self._failures: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def is_blocked(self, origin: str, now_ns: int) -> bool:
        """Return whether this client has to wait before it may try again."""
        self._forget_old(now_ns)
        count, last_at_ns = self._failures.get(origin, (0, 0))
        if count < self.FREE_FAILURES:
            return False
        doublings = min(count - self.FREE_FAILURES, 30)
        return now_ns < last_at_ns + min(self.FIRST_NS << doublings, self.LONGEST_NS)

    def failed(self, origin: str, now_ns: int) -> None:
        """Count a failure."""
        self._forget_old(now_ns)
        count, _ = self._failures.pop(origin, (0, 0))
        self._failures[origin] = (count + 1, now_ns)
        if len(self._failures) > self.MAX_ORIGINS:
            self._failures.popitem(last=False)

    def succeeded(self, origin: str) -> None:
        """Forget the failures of a client that knew a password."""
        self._failures.pop(origin, None)

    def _forget_old(self, now_ns: int) -> None:
        while self._failures:
            origin, (_, last_at_ns) = next(iter(self._failures.items()))
            if now_ns - last_at_ns < self.MEMORY_NS:
                return
            del self._failures[origin]
