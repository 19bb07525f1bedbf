"""How long an upstream is paused, when it was, and how that is kept on disk.  Pure.

A message's age is the time since its arrival less the time that its upstream was paused since: it may
not grow old because its upstream refuses *us*.  A pause that the next one follows without a success in
between is one with it, the proving transaction included.

Losing the record loses no mail: a restart then knocks at once at an upstream that may extend its block
for that, and ages include pauses.

Instants are boottime of the current boot in nanoseconds; `PauseRecord.moved` brings those of another
boot here.  The wall clock tells when a pause ends: if it was set back meanwhile, the pause is as long
again as it was when it was written, and never longer.  The spans of past pauses move as ages do
(`relay.mail.age`), since they are taken from ages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from relay.clock import SECOND_NS, shift_ns
from relay.mail.age import Here
from relay.verdicts.health import TABLE, Happening, Health
from relay.verdicts.operator_pause import FOREVER_NS, OperatorPause, PauseAsked
from relay.verdicts.retry_after import LONGEST_RETRY_NS
from relay.verdicts.verdict import Ruling, Span

MOST_SPANS = 256
"""The shortest spans are forgotten first, so that ages err by as little as can be."""

Paused = tuple[int, int]
"""From and until, half-open."""
FIRST_NS = 15 * SECOND_NS
LONGEST_NS = 15 * 60 * SECOND_NS
PROBE_NS = 3600 * SECOND_NS
"""Between two looks at an upstream that refused the account, or where a look may make it worse."""
SPAN_NS = {
    Span.SECOND: SECOND_NS,
    Span.MINUTE: 60 * SECOND_NS,
    Span.HOUR: 3600 * SECOND_NS,
    Span.DAY: 24 * 3600 * SECOND_NS,
    Span.MONTH: 31 * 24 * 3600 * SECOND_NS,
}


def rest_ns(
    ruling: Ruling | None,
    in_a_row: int,
    leaves_in_ns: Callable[[int], int | None],
    step: int | None = None,
) -> int:
    """Return how long to rest after a refusal that is about us.

    As long as the upstream, or its rule, asks for.  Where it speaks of a window, until the oldest of
    what our own history has in that window leaves it, as `leaves_in_ns` tells, but for no more than
    two days; or for the whole window where looking earlier makes it worse.
    Else, and at least this once a pause did not help, our own back-off: 15 s, doubled with each of
    `in_a_row` pauses without a success, or `step` times, up to 15 minutes.
    """
    back_off_ns = min(LONGEST_NS, FIRST_NS << min(in_a_row if step is None else step, 10))
    if ruling is None:
        return back_off_ns
    span_ns = window_ns(ruling)
    if ruling.wait_ns is not None:
        asked_ns = ruling.wait_ns
    elif span_ns is None:
        asked_ns = 0 if ruling.may_probe else PROBE_NS
    elif ruling.may_probe:
        asked_ns = min(LONGEST_RETRY_NS, leaves_in_ns(span_ns) or 0)
    else:
        asked_ns = span_ns
    return asked_ns if asked_ns and not in_a_row else max(asked_ns, back_off_ns)


def window_ns(ruling: Ruling) -> int | None:
    if ruling.span is not None:
        return SPAN_NS[ruling.span]
    return None if ruling.named is None else ruling.named.per_ns


class Pauses:
    def __init__(self, spans: tuple[Paused, ...] = ()) -> None:
        self._spans = list(spans)

    def begin(self, at_ns: int, *, goes_on: bool) -> None:
        """Begin a pause; `goes_on` makes it one with the last."""
        if self._spans and (goes_on or self._spans[-1][1] >= at_ns):
            self._spans[-1] = (self._spans[-1][0], FOREVER_NS)
        else:
            self._spans.append((at_ns, FOREVER_NS))
            if len(self._spans) > MOST_SPANS:
                # So what is remembered errs to the small side, and by the least that it can.
                self._spans.remove(min(self._spans[:-1], key=lambda span: span[1] - span[0]))

    def end(self, at_ns: int) -> None:
        """End the pause under way; without one, do nothing."""
        if self._spans and self._spans[-1][1] == FOREVER_NS:
            begun_ns = self._spans[-1][0]
            self._spans[-1] = (begun_ns, max(begun_ns, at_ns))

    def within_ns(self, since_ns: int, until_ns: int, beside: Sequence[Paused] = ()) -> int:
        """Return for how long it was paused between two instants, or one of `beside` was under way."""
        paused_ns, from_ns = 0, since_ns
        for begin, end in sorted((*self._spans, *beside)) if beside else self._spans:
            paused_ns += max(0, min(end, until_ns) - max(begin, from_ns))
            from_ns = max(from_ns, end)
        return paused_ns

    @property
    def last_begun_ns(self) -> int | None:
        """Return when the last pause began; None where there was none."""
        return self._spans[-1][0] if self._spans else None

    @property
    def spans(self) -> tuple[Paused, ...]:
        return tuple(self._spans)


@dataclass(frozen=True, slots=True)
class PauseRecord:
    boot_id: str
    """Of the boot whose instants these are."""
    written_at_ns: int
    wall_ns: int
    """The wall clock at that instant."""
    because: str
    """Empty where a restart does not go on with its rest."""
    until_ns: int
    """When its rest ends, or ended; 0 while the upstream is used."""
    in_a_row: int
    spans: tuple[Paused, ...]
    is_stopped: bool = False
    """No time ends it: an operator has to act."""
    doubts: str = ""
    """Why the shield stopped it, until the upstream proves itself or an operator acts; else empty."""
    doublings: int | None = None
    """How often the back-off was doubled; None in an older record: as often as `in_a_row` says."""
    operator: OperatorPause | None = None

    @property
    def over_ns(self) -> int:
        """When its rest and the operator's pause are over, or were."""
        return max(self.until_ns, 0 if self.operator is None else self.operator.until_ns)

    @property
    def health(self) -> Health:
        if self.because:
            if not self.is_stopped:
                return Health.PAUSED
            return Health.DOUBTED if self.doubts else Health.BARRED
        return Health.PROVING if self.until_ns or self.in_a_row or self.doubts else Health.USED

    def moved(self, boot_id: str, now_ns: int, wall_ns: int, here: Here) -> Self:
        if boot_id == self.boot_id:
            return self
        by_ns = shift_ns(self.written_at_ns, self.wall_ns, now_ns, wall_ns)
        until_ns = self.until_ns and self.until_ns + by_ns

        def moved(at_ns: int) -> int:
            here_ns = here(self.boot_id, at_ns)
            return at_ns + by_ns if here_ns is None else here_ns

        operator = None if self.operator is None else self.operator.moved(by_ns, moved)
        # The one under way is over if it is so by the wall clock; it was under way until then.
        over_ns = max(until_ns, 0 if operator is None else operator.until_ns)
        end_ns = FOREVER_NS if over_ns > now_ns else min(now_ns, moved(self.over_ns))
        return replace(
            self,
            operator=operator,
            boot_id=boot_id,
            written_at_ns=self.written_at_ns + by_ns,
            until_ns=until_ns,
            spans=tuple(
                (moved(begin), max(moved(begin), end_ns) if end == FOREVER_NS else moved(end))
                for begin, end in self.spans
            ),
        )

    def kept_back(self, asked: PauseAsked, now_ns: int, wall_ns: int) -> Self:
        """Return it as of now, by an operator's word; the record is of this boot."""
        pause = asked.begun(now_ns, wall_ns, self.operator)
        pauses = Pauses(self.spans)
        pauses.begin(now_ns, goes_on=self.in_a_row > 0)
        return replace(self, written_at_ns=now_ns, wall_ns=wall_ns, spans=pauses.spans, operator=pause)

    def resumed(self, now_ns: int, wall_ns: int) -> Self | None:
        """Return it as of now, by `relay resume`; None where nothing rested.  The record is of this boot."""
        if self.operator is None and TABLE[self.health, Happening.RESUME].health is self.health:
            return None
        pauses = Pauses(self.spans)
        pauses.end(now_ns)
        return replace(
            self,
            written_at_ns=now_ns,
            wall_ns=wall_ns,
            because="",
            until_ns=now_ns,
            spans=pauses.spans,
            is_stopped=False,
            doubts="",
            doublings=0,
            operator=None,
        )

    def fault(self) -> str:
        """Return what makes no sense in it, or nothing."""
        edges = [edge for span in self.spans for edge in span]
        is_sound = (
            edges == sorted(edges)
            and min(self.in_a_row, self.doublings or 0) >= 0
            and max(self.over_ns, *edges, 0) <= FOREVER_NS
        )
        return "" if is_sound else "its instants are out of order"
