"""Queue ids: unique for ever without a lock, short enough to read aloud, sorted by time.

An id has sixteen characters of Crockford's base 32 (no i, l, o, u).  Ten are the microseconds since 2024,
which no process uses twice.  Six are random: they tell apart processes, boots and a clock that was set back.
An id is never an inode number: the kernel reuses those, and the status bytes of one message would mark the
recipients of another.

Two ids are equal only if the same one of 2**30 numbers is drawn twice within one microsecond.  A maildir
publishes by link(2), which refuses the second id, and its client gets 451.  A log does not notice: its
listeners do not see each other's streams, and its sender takes the second message for a copy of the first.
"""

from collections.abc import Callable

from relay.clock import Clock
from relay.mail.envelope import QUEUE_ID_PATTERN, QueueId

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_EPOCH_US = 1_704_067_200_000_000  # 2024-01-01T00:00:00Z; ten characters last until 2059
_TIME_CHARACTERS = 10
_RANDOM_CHARACTERS = 6
_DRAWN_BYTES = 256
"""Random bytes asked from the kernel at once, for 64 ids."""
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]

REPORT_SUFFIX = "r"
WARNING_SUFFIX = "w"


class Identities:
    """Makes queue ids.  A process has one instance; one thread at a time may call it."""

    def __init__(self, clock: Clock, random_bytes: Callable[[int], bytes]) -> None:
        self._clock = clock
        self._random_bytes = random_bytes
        self._last_us = 0
        self._drawn = b""

    def next_id(self) -> QueueId:
        """Return an id that no process has returned before."""
        self._last_us = max(self._last_us + 1, self._clock.wall_ns() // 1000 - _EPOCH_US)
        number = self._last_us & ((1 << 5 * _TIME_CHARACTERS) - 1)
        drawn = self._drawn or self._random_bytes(_DRAWN_BYTES)
        self._drawn = drawn[4:]
        chance = int.from_bytes(drawn[:4], "big") & ((1 << 5 * _RANDOM_CHARACTERS) - 1)
        both = number << 5 * _RANDOM_CHARACTERS | chance
        return QueueId("".join([_PAIRS[both >> shift & 1023] for shift in range(70, -1, -10)]))


def report_id(queue_id: QueueId, first_failed: int | None = None) -> QueueId:
    """Return the id of a report about a message.  It is always the same, so that the report exists once.

    The last report, when no recipient is left, has no number.  An earlier report has the number of its first
    recipient, counted from 1; it is unique, because no recipient is reported twice.
    """
    number = "" if first_failed is None else str(first_failed + 1)
    return QueueId(f"{queue_id[:16]}{REPORT_SUFFIX}{number}")


def warning_id(queue_id: QueueId) -> QueueId:
    return QueueId(queue_id[:16] + WARNING_SUFFIX)


def is_queue_id(name: str) -> bool:
    """Return whether a name has the form of a queue id; check it before it becomes part of a path."""
    return QUEUE_ID_PATTERN.match(name) is not None
