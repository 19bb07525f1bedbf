"""What an upstream may have seen, counted the slow way; knows nothing of `relay.throttle`."""

from dataclasses import dataclass


@dataclass
class Seen:
    """One transaction, which an upstream counts at an instant that nobody else knows."""

    started_at_ns: int
    ended_at_ns: int
    messages: int
    recipients: int


def worst_window(seen: list[Seen], unit: str, period_ns: int) -> int:
    """Return the most that any half-open window of this length can have held, counted the slow way.

    The one that is best for those up to a transaction ends just behind its start.
    """
    return max(
        sum(
            each.messages if unit == "messages" else each.recipients
            for each in seen
            if each.started_at_ns <= last.started_at_ns and each.ended_at_ns > last.started_at_ns - period_ns
        )
        for last in seen
    )
