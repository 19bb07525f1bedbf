"""How much was charged in a window that ends now, for comparing with a refusal.  Pure."""

from collections import deque
from collections.abc import Iterable, Sequence

from relay.throttle.history_format import Charged
from relay.throttle.limit_hints import Tally


def tally_of(charges: Iterable[Charged], now_ns: int) -> Tally:
    """Add up what ended."""
    messages = recipients = connections = 0
    first_ns = now_ns
    for charged in charges:
        messages += charged.messages
        recipients += charged.recipients
        connections += charged.connections
        started_at_ns = charged.ended_at_ns if charged.started_at_ns is None else charged.started_at_ns
        first_ns = min(first_ns, started_at_ns)
    return Tally(messages, recipients, connections, now_ns - first_ns)


def peak_of(charges: Sequence[Charged], span_ns: int) -> Tally:
    """Return the most, of each unit, that ended within any `span_ns`; by what is known one by one.

    `charges` ascend.  What was merged may have ended at any time before, and is left out.
    """
    most = [0, 0, 0]
    held = [0, 0, 0]
    inside: deque[Charged] = deque()
    for charged in charges:
        if charged.is_merged:
            continue
        inside.append(charged)
        _add(held, charged, 1)
        while inside[0].ended_at_ns <= charged.ended_at_ns - span_ns:
            _add(held, inside.popleft(), -1)
        most = [max(pair) for pair in zip(most, held, strict=True)]
    return Tally(*most)


def _add(held: list[int], charged: Charged, sign: int) -> None:
    for index, weight in enumerate((charged.messages, charged.recipients, charged.connections)):
        held[index] += sign * weight
