"""What an upstream may have seen, counted the slow way; knows nothing of `relay.throttle`.

An upstream counts a transaction at an instant somewhere between its start and its end that
nobody else knows.  The worst case is what matters, and each may be counted anywhere
independently of the others: a window can hold exactly those whose span touches it.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class Seen:
    """One transaction in true time."""

    started_at_ns: int
    ended_at_ns: int | None
    """None while it is in flight."""
    messages: int
    recipients: int


def most_in_a_window(seen: Iterable[Seen], unit: str, period_ns: int, *, last: Seen) -> int:
    """Return the most that a half-open window can hold that holds `last`, the one that started last.

    The window of integer instants [w, w + T) that is best for that ends just behind its start.
    """
    first_ns = last.started_at_ns - period_ns + 1
    return sum(
        each.messages if unit == "messages" else each.recipients
        for each in seen
        if each.started_at_ns <= last.started_at_ns
        and (each.ended_at_ns is None or each.ended_at_ns >= first_ns)
    )


def worst_window(seen: list[Seen], unit: str, period_ns: int) -> int:
    """Return the most that any half-open window of this length can have held."""
    return max((most_in_a_window(seen, unit, period_ns, last=last) for last in seen), default=0)
