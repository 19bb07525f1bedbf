"""How long to rest after a refusal about us, and when there was a rest.  Pure.

A message's age is the time since its arrival less the time that its upstream was paused since: it may
not grow old because its upstream refuses *us*.
"""

from collections.abc import Callable, Sequence

from relay.clock import SECOND_NS
from relay.verdicts.operator_pause import FOREVER_NS
from relay.verdicts.retry_after import LONGEST_RETRY_NS
from relay.verdicts.verdict import Ruling

MOST_SPANS = 256
"""Older ones are forgotten: they count as age."""

Paused = tuple[int, int]
"""From and until, half-open."""
FIRST_NS = 15 * SECOND_NS
LONGEST_NS = 15 * 60 * SECOND_NS
LAST_STEP = 6
"""The step at which the back-off is at its longest."""
PROBE_NS = 3600 * SECOND_NS
"""Between two looks at an upstream that refused the account, or where a look may make it worse."""


def rest_ns(ruling: Ruling | None, step: int, leaves_in_ns: Callable[[int], int | None]) -> int:
    """Return how long to rest after a refusal that is about us.

    As long as the upstream, or its rule, asks for.  Where it speaks of a window, until the oldest of
    what our own history has in that window leaves it, as `leaves_in_ns` tells, but for no more than
    two days; or for the whole window where looking earlier makes it worse.
    Else, and at least this once a pause did not help, our own back-off: 15 s, doubled `step` times, up to
    15 minutes.
    """
    back_off_ns = min(LONGEST_NS, FIRST_NS << min(step, LAST_STEP))
    if ruling is None:
        return back_off_ns
    if ruling.wait_ns is not None:
        asked_ns = ruling.wait_ns
    elif ruling.window_ns is None:
        asked_ns = 0 if ruling.may_probe else PROBE_NS
    elif ruling.may_probe:
        asked_ns = min(LONGEST_RETRY_NS, leaves_in_ns(ruling.window_ns) or 0)
    else:
        asked_ns = ruling.window_ns
    return asked_ns if asked_ns and step == 0 else max(asked_ns, back_off_ns)


def begun(spans: Sequence[Paused], at_ns: int, *, goes_on: bool = False) -> tuple[Paused, ...]:
    """Return the spans with one that begins; `goes_on` makes it one with the last."""
    if spans and (goes_on or spans[-1][1] >= at_ns):
        return (*spans[:-1], (spans[-1][0], FOREVER_NS))
    return (*spans[-MOST_SPANS:], (at_ns, FOREVER_NS))


def ended(spans: Sequence[Paused], at_ns: int) -> tuple[Paused, ...]:
    """Return the spans with the last one ended, if it is under way."""
    if not spans or spans[-1][1] != FOREVER_NS:
        return tuple(spans)
    return (*spans[:-1], (spans[-1][0], max(spans[-1][0], at_ns)))


def within_ns(spans: Sequence[Paused], since_ns: int, until_ns: int) -> int:
    """Return for how long any of these spans, in any order, was under way between two instants."""
    paused_ns, from_ns = 0, since_ns
    for begin, end in sorted(spans):
        paused_ns += max(0, min(end, until_ns) - max(begin, from_ns))
        from_ns = max(from_ns, end)
    return paused_ns
