"""Who may authenticate, and the brake on guessing.

Guarantees: a wrong password and an unknown user cost the same hash and give the same
answer; at most `_THREADS` hashes run at once (argon2id takes 64 MiB each), never on the
event loop; no name and no password is kept after the call or shown in any text.
"""

import asyncio
import enum
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError

from relay.clock import SECOND_NS, Clock
from relay.smtp.sasl import PasswordCheck

_THREADS = 2


class Users:
    """`close` ends its threads."""

    def __init__(self, hashes: Mapping[str, str], hasher: PasswordHasher | None = None) -> None:
        """Take what `policy.secrets.read_users` returned, of at least one user."""
        self.use(hashes)
        self._hasher = hasher or PasswordHasher()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="relay-auth")

    def use(self, hashes: Mapping[str, str]) -> None:
        """Go by these from now on, for checks under way too."""
        self._hashes = dict(hashes)
        # What an unknown name is checked against, so that it takes as long as a known one.
        self._decoy = next(iter(self._hashes.values()))

    def hash_of(self, name: str) -> str | None:
        return self._hashes.get(name)

    async def verify(self, name: str, password: str) -> bool:
        """Raise what keeps the answer from being known."""
        known = self._hashes.get(name)
        loop = asyncio.get_running_loop()
        matches = await loop.run_in_executor(self._threads, self._matches, known or self._decoy, password)
        return matches and known is not None and self._hashes.get(name) == known

    def _matches(self, password_hash: str, password: str) -> bool:
        try:
            return self._hasher.verify(password_hash, password)
        except VerifyMismatchError:
            # Its base, VerificationError, is raised for a lack of memory or threads too.
            return False

    def close(self) -> None:
        """Drop the checks that wait."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class Admittance(enum.Enum):
    NOW = enum.auto()
    AFTER_OTHERS = enum.auto()
    """After a guess that is being looked at has its verdict."""
    LATER = enum.auto()


class BackOff:
    """Makes origins that guess wait, across sessions: 2 s after the third failure, then double.  Pure.

    A guess is counted from `begin` on, so that sessions at once have no more guesses than
    sessions one after the other.  Bounded: an origin without a failure for an hour is forgotten,
    and of more than `MAX_ORIGINS` the one whose last failure is longest ago.
    """

    FREE_FAILURES = 3
    FIRST_NS = 2 * SECOND_NS
    LONGEST_NS = 15 * 60 * SECOND_NS
    MEMORY_NS = 3600 * SECOND_NS
    MAX_ORIGINS = 10_000

    def __init__(self, most_origins: int = MAX_ORIGINS) -> None:
        self._most_origins = most_origins
        # origin: (failures, instant of the last one); oldest failure first.
        self._failures: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._begun: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def is_blocked(self, origin: str, now_ns: int) -> bool:
        self._forget_old(now_ns)
        count, last_at_ns = self._failures.get(origin, (0, 0))
        if count < self.FREE_FAILURES:
            return False
        doublings = min(count - self.FREE_FAILURES, 30)
        return now_ns < last_at_ns + min(self.FIRST_NS << doublings, self.LONGEST_NS)

    def begin(self, origin: str, now_ns: int) -> Admittance:
        """Count a guess; only after NOW, and then call one of the three below once."""
        if self.is_blocked(origin, now_ns):
            return Admittance.LATER
        begun = self._begun.get(origin, 0)
        failures, _ = self._failures.get(origin, (0, 0))
        # As if all guesses under way had failed; the first after a wait has none to wait for.
        if begun and failures + begun >= self.FREE_FAILURES:
            return Admittance.AFTER_OTHERS
        self._begun[origin] = begun + 1
        return Admittance.NOW

    def failed(self, origin: str, now_ns: int) -> None:
        self._end(origin)
        self._forget_old(now_ns)
        count, _ = self._failures.pop(origin, (0, 0))
        self._failures[origin] = (count + 1, now_ns)
        if len(self._failures) > self._most_origins:
            self._failures.popitem(last=False)

    def succeeded(self, origin: str) -> None:
        """Forget the failures of a client that knew a password."""
        self._end(origin)
        self._failures.pop(origin, None)

    def unanswered(self, origin: str) -> None:
        self._end(origin)

    def _end(self, origin: str) -> None:
        left = self._begun.pop(origin) - 1
        if left:
            self._begun[origin] = left

    def _forget_old(self, now_ns: int) -> None:
        while self._failures:
            origin, (_, last_at_ns) = next(iter(self._failures.items()))
            if now_ns - last_at_ns < self.MEMORY_NS:
                return
            del self._failures[origin]


class Guesses:
    """Judge as many guesses of an origin at once as `BackOff` has room for; others wait."""

    def __init__(self, clock: Clock) -> None:
        self.back_off = BackOff()
        self._clock = clock
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    async def judge(self, origin: str, verify: Callable[[], Awaitable[bool]]) -> PasswordCheck:
        while (admittance := self.back_off.begin(origin, self._clock.boottime_ns())) is not Admittance.NOW:
            if admittance is Admittance.LATER:
                return PasswordCheck.LATER
            verdict_of_another = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(origin, []).append(verdict_of_another)
            await verdict_of_another
        try:
            is_right = await verify()
        except BaseException:
            self.back_off.unanswered(origin)
            raise
        else:
            if is_right:
                self.back_off.succeeded(origin)
            else:
                self.back_off.failed(origin, self._clock.boottime_ns())
        finally:
            for waiting in self._waiting.pop(origin, []):
                if not waiting.done():
                    waiting.set_result(None)
        return PasswordCheck.RIGHT if is_right else PasswordCheck.WRONG
