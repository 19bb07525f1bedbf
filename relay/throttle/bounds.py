"""How much of an account's past is kept as it was, and when a history is written anew.  Pure."""

from dataclasses import dataclass

from relay.throttle.history_format import ALIKE_NS
from relay.throttle.window import BUCKETS, EXACT_SLOTS


@dataclass(frozen=True, slots=True)
class HistoryBounds:
    compact_above_bytes: int = 256 * 1024
    """A shorter history is never written anew."""
    record_bytes: int = 72
    """A line with two instants of a year and six-digit weights, and some to spare; apart from its shares."""
    exact_ends: int = 2 * EXACT_SLOTS
    """What an exact window admits in two spans, so that rounding what is older cannot reach into it."""
    merged_at_once: int = EXACT_SLOTS
    """So many ends more than that wait to be merged."""
    parts: int = BUCKETS
    """What is merged is rounded up by less than such a part of its age."""
    most_shares: int = 262_144
    """Shares of what has ended that are kept as they are, some 40 MB at most; see `compaction`."""
    most_entries: int = 1_000_000
    """Instants that the windows of one limit keep, some 55 MB; with the coarse ones 150 MB at worst."""
    most_readings: int = 64
    """Of more readings of the wall clock, the oldest are taken together."""
    alike_ns: int = ALIKE_NS
    """Readings of the wall clock that differ by no more are one."""


BOUNDS = HistoryBounds()
