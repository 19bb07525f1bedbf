"""Queue ids: unique for ever without a lock, short enough to read out, sorted by time.

Sixteen characters of Crockford's base 32 (no i, l, o, u): ten for the microseconds since 2024, which
no process uses twice, and six random ones, which tell apart processes, boots and a clock that was set
back.  Never an inode number: the kernel reuses those, and the status bytes of one message would mark the
recipients of another.

Two ids could only meet if one of 2**30 were drawn twice within the same microsecond.  A maildir, publishing
by link(2), would refuse the second, and its client would get 451.  A log would not notice: its listeners do
not see each other's streams, and its sender would take the second message for a copy of the first.
"""

import struct
from collections.abc import Callable

from relay.clock import Clock
from relay.mail.envelope import QUEUE_ID_PATTERN, QueueId

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_EPOCH_US = 1_704_067_200_000_000  # 2024-01-01T00:00:00Z; ten characters last until 2059
_TIME_CHARACTERS = 10
_RANDOM_CHARACTERS = 6
_DRAWN_AT_ONCE = 64
"""Of the random parts: each draw asks the kernel."""
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]

REPORT_SUFFIX = "r"
WARNING_SUFFIX = "w"


class Identities:
    """Hands out queue ids.  One for each process; not for several threads at once."""

    def __init__(self, clock: Clock, random_bytes: Callable[[int], bytes]) -> None:
        self._clock = clock
        self._random_bytes = random_bytes
        self._last_us = 0
        self._chances: list[int] = []

    def next_id(self) -> QueueId:
        """Return an id that was never returned before, here or anywhere."""
        self._last_us = max(self._last_us + 1, self._clock.wall_ns() // 1000 - _EPOCH_US)
        number = self._last_us & ((1 << 5 * _TIME_CHARACTERS) - 1)
        if not self._chances:
            drawn = struct.iter_unpack(">I", self._random_bytes(4 * _DRAWN_AT_ONCE))
            self._chances = [chance & ((1 << 5 * _RANDOM_CHARACTERS) - 1) for (chance,) in drawn]
        both = number << 5 * _RANDOM_CHARACTERS | self._chances.pop()
        return QueueId("".join([_PAIRS[both >> shift & 1023] for shift in range(70, -1, -10)]))


def report_id(queue_id: QueueId, first_failed: int | None = None) -> QueueId:
    """Return the id of a report about a message: always the same, so that it exists once.

    The last report, when no recipient is left, has no number.  One before that has the number of its first
    recipient, counted from 1: no recipient is reported twice.
    """
    number = "" if first_failed is None else str(first_failed + 1)
    return QueueId(f"{queue_id[:16]}{REPORT_SUFFIX}{number}")


def warning_id(queue_id: QueueId) -> QueueId:
    return QueueId(queue_id[:16] + WARNING_SUFFIX)


def is_queue_id(name: str) -> bool:
    """Return whether a file's name is one that we give; checked before it becomes a path."""
    return QUEUE_ID_PATTERN.match(name) is not None
