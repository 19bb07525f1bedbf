"""Checks passwords, and slows down guessing.

Guarantees: a wrong password and an unknown user cost the same hash and give the same answer.  At most
`_THREADS` hashes run at once (argon2id takes 64 MiB each), never on the event loop.  No name or password of
a client is kept after the call, or shown in any text.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError

from relay.clock import SECOND_NS, Clock
from relay.smtp.sasl import PasswordCheck

_THREADS = 2


class Users:
    def __init__(self, hashes: Mapping[str, str], hasher: PasswordHasher | None = None) -> None:
        """`hashes` are from `policy.secrets.read_users`.  Without users AUTH is not offered."""
        self.use(hashes)
        self._hasher = hasher or PasswordHasher()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="relay-auth")

    def use(self, hashes: Mapping[str, str]) -> None:
        """Replace the users, also for checks that are running."""
        self._hashes = dict(hashes)
        # An unknown name is checked against this hash, so that it takes as long as a known one.
        self._decoy = next(iter(self._hashes.values()), "")

    def hash_of(self, name: str) -> str | None:
        return self._hashes.get(name)

    async def verify(self, name: str, password: str) -> bool:
        """Return whether the password is right.  Raises any error that prevents the check."""
        known = self._hashes.get(name)
        loop = asyncio.get_running_loop()
        matches = await loop.run_in_executor(self._threads, self._matches, known or self._decoy, password)
        return matches and known is not None and self._hashes.get(name) == known

    def _matches(self, password_hash: str, password: str) -> bool:
        try:
            return self._hasher.verify(password_hash, password)
        except VerifyMismatchError:
            # The base class, VerificationError, also means a lack of memory or threads.
            return False

    def close(self) -> None:
        """End the threads, and cancel checks that have not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class LoginLockouts:
    """Locks an origin out after wrong passwords: 2 s after its third failure, then double each time.

    Failures count across sessions, and an origin's checks run one after the other.  A success, or an hour
    without a failure, forgives all.  Above `MAX_ORIGINS` the origin that failed longest ago is forgotten.
    """

    FREE_FAILURES = 3
    FIRST_NS = 2 * SECOND_NS
    LONGEST_NS = 15 * 60 * SECOND_NS
    MEMORY_NS = 3600 * SECOND_NS
    MAX_ORIGINS = 10_000

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """By origin: the number of failures, and the boottime of the last; the oldest first."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One lock for each origin; it exists while a check uses it."""

    def is_locked_out(self, origin: str) -> bool:
        count, last_at_ns = self._failures.get(origin, (0, 0))
        if count < self.FREE_FAILURES:
            return False
        doublings = min(count - self.FREE_FAILURES, 30)
        return self._clock.boottime_ns() < last_at_ns + min(self.FIRST_NS << doublings, self.LONGEST_NS)

    async def check(self, origin: str, verify: Callable[[], Awaitable[bool]]) -> PasswordCheck:
        """Call `verify` unless the origin is locked out.  If it raises, nothing is counted."""
        async with self._turns.setdefault(origin, asyncio.Lock()):
            if self.is_locked_out(origin):
                return PasswordCheck.LATER
            if await verify():
                self._failures.pop(origin, None)
                return PasswordCheck.RIGHT
            count, last_at_ns = self._failures.pop(origin, (0, 0))
            now_ns = self._clock.boottime_ns()
            self._failures[origin] = (1 if now_ns - last_at_ns >= self.MEMORY_NS else count + 1, now_ns)
            if len(self._failures) > self.MAX_ORIGINS:
                self._failures.popitem(last=False)
            return PasswordCheck.WRONG
