"""A brute-force count of what an upstream may have seen. It knows nothing of `relay.throttle`."""

from dataclasses import dataclass


@dataclass
class Seen:
    """One transaction. The upstream counts it at an unknown instant between start and end."""

    started_at_ns: int
    ended_at_ns: int
    messages: int
    recipients: int


def worst_window(seen: list[Seen], unit: str, period_ns: int) -> int:
    """Return the most that any half-open window of this length can have held.

    The worst window for the transactions up to a given one ends just behind its start.
    """
    return max(
        sum(
            each.messages if unit == "messages" else each.recipients
            for each in seen
            if each.started_at_ns <= last.started_at_ns and each.ended_at_ns > last.started_at_ns - period_ns
        )
        for last in seen
    )
