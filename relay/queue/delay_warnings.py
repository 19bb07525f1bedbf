"""Whether the sender of a message is to be told that it is late.  Pure.

A warning is for what the sender can do something about: call, or send it another way.  So
it tells of a message that is late already *and* will be for long enough to matter, by our
estimate.  One whose turn comes in minutes gives none.

The estimate, for a message that
- waits for room or for its turn: its ETA;
- waits while its upstream is paused: its ETA, but at least as long again as the upstream
  has rested so far, pause after pause, since the next one may be as useless;
- sits out a back-off: its next attempt, which will tell more;
- was refused just now: as long again as it is old, the rule that back-offs follow (before
  `retry.max` cuts them), so that one that is late is told of in any case.
Where nobody can tell (its upstream is stopped, or refuses its sender) it may take any time.
A held message is its operator's matter.

Late is counted from acceptance, pauses included: who waits does not care whose fault it is.
"""

from relay.clock import SECOND_NS

LONGEST_SOON_NS = 3600 * SECOND_NS


def soon_ns(warn_after_ns: int) -> int:
    """Return what is too short to be told of: a quarter of `retry.warn_after`, an hour at most."""
    return min(warn_after_ns // 4, LONGEST_SOON_NS)


def is_to_be_told(*, late_ns: int, left_ns: int | None, warn_after_ns: int | None) -> bool:
    """Return whether a warning is due.

    `late_ns` is how long ago the message was accepted, `left_ns` how long it will still be
    here, by estimate; None where nobody can tell.
    """
    if warn_after_ns is None or late_ns < warn_after_ns:
        return False
    return left_ns is None or left_ns >= soon_ns(warn_after_ns)
