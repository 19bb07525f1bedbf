"""What a refusal for having sent too much teaches, by our own history.  Pure.

The history tells how much was charged in a window that ended at the refusal.  Less what the upstream
refused of it, which is charged too (`Lessons.refused`), so much went well.  `suggest` makes a limit of
it; `tighten` may lower a limit that is in force.  A refusal before which nothing was taken since the
last one is of the same block, and teaches nothing.

Which limit: where the reply names a window ("per hour"), those of that length; else all.  Where it
names its own N too ("50 recipients per hour"), that limit, and that N if it is lower.  Of several,
a limit that held more in an earlier window is cleared: those windows went well.  A limit that was
blamed before is not cleared, since the windows before that refusal prove nothing.  Of the rest, the
limit nearest to its N, since one refusal tells no more.  Where the policy has none, the window that
the reply names, else a minute, an hour and a day.  Connections are compared with limits on
connections, and mail with the others.  Limits `for_each` key are left out: the reply does not say
whose window it was.

Not known, and not claimed:
- what else uses the account; but where the upstream's N is at least all of ours that it may have
  counted, it counted something else too, or otherwise: that is said;
- whether its windows slide or are fixed (the clock hour): a fixed one holds at most what
  ours does, so the suggestion may be too high, and the next refusal says so;
- which of several limits it was, and what in flight it counted already (left out here).

Instants are wall clock, spans nanoseconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from relay.throttle.hint import Hint as Hint  # noqa: PLC0414 - part of the door
from relay.throttle.hint import in_windows
from relay.throttle.limit import Calendar, ForEach, Hours, Limit, Ramp, Unit
from relay.verdicts.pauses import SPAN_NS
from relay.verdicts.verdict import Excess, Ruling, Span

LOOKED_AT_NS = (SPAN_NS[Span.MINUTE], SPAN_NS[Span.HOUR], SPAN_NS[Span.DAY])
"""Windows that limits are usually stated for."""
MARGIN = 20
"""A suggestion is at least this part below what went well: fixed windows, and what was in flight."""
SHORTEST_MONTH_NS = 28 * SPAN_NS[Span.DAY]
MOST_KEPT = 64
AnyLimit = TypeVar("AnyLimit", bound=Limit)


@dataclass(frozen=True, slots=True)
class Tally:
    """How much was charged in a window that ends now, without what is in flight."""

    messages: int = 0
    recipients: int = 0
    connections: int = 0
    since_ns: int = 0
    """How long ago the first of it began."""

    def less(self, refused: "Tally") -> "Tally":
        messages = max(0, self.messages - refused.messages)
        recipients = max(0, self.recipients - refused.recipients)
        return Tally(messages, recipients, max(0, self.connections - refused.connections), self.since_ns)

    def of(self, unit: Unit) -> int:
        return {"messages": self.messages, "recipients": self.recipients, "connections": self.connections}[
            unit
        ]


@dataclass(frozen=True, slots=True)
class Lowered:
    unit: Unit
    per_ns: int
    limit: int
    """The policy's N: once that is another, the owner has decided anew."""
    count: int
    at_ns: int

    @property
    def key(self) -> tuple[Unit, int, int]:
        return (self.unit, self.per_ns, self.limit)

    def is_of(self, limit: Limit) -> bool:
        """Return False once the owner edited the limit."""
        return limit.for_each is None and (limit.unit, limit.per_ns, limit.count) == self.key


@dataclass(frozen=True, slots=True)
class Untaken:
    """What is in the history and was refused for a reason that is about us."""

    at_ns: int
    messages: int
    recipients: int
    connections: int


@dataclass(frozen=True, slots=True)
class Effective:
    """A limit as it is in force; its label stays that of the policy, so that series go on."""

    unit: Unit
    count: int
    per_ns: int
    for_each: ForEach | None
    label: str
    only: str | None = None
    calendar: Calendar | None = None
    open_hours: Hours | None = None
    rise: Ramp | None = None


@dataclass(frozen=True, slots=True)
class Lessons:
    findings: tuple[Hint, ...] = ()
    """Of the last refusal that could be compared."""
    lowered: tuple[Lowered, ...] = ()
    cut_off_at_ns: int = 0
    """When it was."""
    refused: tuple[Untaken, ...] = ()
    """In their order; of more than MOST_KEPT the oldest are one, of the latest instant of its parts."""

    def and_refused(self, at_ns: int, more: Tally) -> "Lessons":
        refused = [*self.refused, Untaken(at_ns, more.messages, more.recipients, more.connections)]
        if len(refused) > MOST_KEPT:
            first, second, *later = refused
            refused = [_added(first, second), *later]
        return replace(self, refused=tuple(refused))

    def refused_within(self, after_ns: int, until_ns: int | None = None) -> Tally:
        """Return what was refused after an instant, and not after another; None: until now."""
        found = [
            each
            for each in self.refused
            if after_ns < each.at_ns and (until_ns is None or each.at_ns <= until_ns)
        ]
        return Tally(
            sum(each.messages for each in found),
            sum(each.recipients for each in found),
            sum(each.connections for each in found),
        )

    def under(self, limits: Sequence[Limit], *, adapts: bool) -> "Lessons":
        """Return what still holds under a policy: the owner's edit ends the rest."""
        return replace(
            self,
            findings=tuple(each.beside(limits) for each in self.findings if not each.is_met_by(limits)),
            lowered=tuple(each for each in self.lowered if adapts and any(map(each.is_of, limits))),
        )

    def fault(self) -> str:
        """Return what makes no sense in it, or nothing."""
        # Nothing need have been sent where the upstream named its own N: something else used the account.
        counts = [number for each in self.findings for number in (each.suggested, each.sent + 1, each.per_ns)]
        counts += [each.charged + 1 for each in self.findings if each.charged is not None]
        counts += [each.named for each in self.findings if each.named is not None]
        counts += [number for each in self.lowered for number in (each.count, each.per_ns)]
        is_raised = any(each.count > each.limit for each in self.lowered)
        refused = [n for each in self.refused for n in (each.messages, each.recipients, each.connections)]
        is_long = len(counts) > 3 * MOST_KEPT or len(self.refused) > MOST_KEPT
        is_wrong = min(counts, default=1) < 1 or min(refused, default=0) < 0 or is_raised or is_long
        return "its numbers make no sense" if is_wrong else ""


def compare(
    ruling: Ruling,
    limits: Sequence[Limit],
    tally: Callable[[int], Tally],
    at_ns: int,
    *,
    peak: Callable[[int], Tally] | None = None,
    before: Iterable[Hint] = (),
    charged: Mapping[str, int] | None = None,
) -> tuple[Hint, ...]:
    """Return what a refusal says about our limits; nothing where it is not about how much was sent.

    `limits` are the policy's, `tally` tells of a window that ends now, without what was
    refused, `peak` of the most that windows of a length held that were over before it
    began (None: not known), `before` are earlier findings, and `charged` says by the label
    of a limit all that occupies it now.
    """
    if ruling.excess is None:
        return ()
    units: tuple[Unit, ...] = ("messages", "recipients")
    if ruling.excess is Excess.CONNECTIONS:
        units = ("connections",)
    named_ns = None if ruling.span is None else SPAN_NS[ruling.span]
    named = ruling.named
    # A reply that names its own N says which limit it is.
    if named is not None and (its := in_windows(limits, named.unit, named.per_ns or named_ns)):
        found_named = _as_named(min(its, key=lambda limit: limit.count), named.slots, tally, at_ns)
        return (replace(found_named, charged=(charged or {}).get(found_named.label)),)
    suspects = [
        limit
        for limit in limits
        if limit.unit in units and limit.for_each is None and _is_as_long(limit.per_ns, named_ns)
    ]
    found: list[tuple[Unit, int, int | None]]
    if suspects:
        if peak is not None:
            suspects = _not_cleared(suspects, tally, peak, before) or suspects
        nearest = max(suspects, key=lambda limit: tally(limit.per_ns).of(limit.unit) / limit.count)
        found = [(nearest.unit, nearest.per_ns, nearest.count)]
    else:
        spans_ns = LOOKED_AT_NS if named_ns is None else (named_ns,)
        found = [(unit, span_ns, None) for span_ns in spans_ns for unit in units]
    return tuple(
        Hint(at_ns, unit, per_ns, sent, known.since_ns, count, suggest(sent, count))
        for unit, per_ns, count in found
        if (sent := (known := tally(per_ns)).of(unit)) > 0
    )


def _as_named(limit: Limit, named: int, tally: Callable[[int], Tally], at_ns: int) -> Hint:
    known = tally(limit.per_ns)
    sent = known.of(limit.unit)
    # Where ours is as strict, something else uses the account too, or counts in other windows: leave room.
    suggested = named if named < limit.count else suggest(limit.count)
    return Hint(at_ns, limit.unit, limit.per_ns, sent, known.since_ns, limit.count, suggested, named)


def suggest(sent: int, limit: int | None = None) -> int:
    """Return the limit to try after so many went well: 90 after 97.

    A twentieth less, and one at least; then down to a round number, by a tenth at most.
    Never above the limit that there is, never below 1.
    """
    less = sent - max(1, -(-sent // MARGIN))
    power = int(10 ** max(0, len(str(less)) - 2))
    step = max(power * each for each in (1, 2, 5) if each == 1 or power * each * 10 <= less)
    return max(1, min(less - less % step, less if limit is None else limit))


def tighten(finding: Hint, limits: Sequence[Limit], lowered: Sequence[Lowered]) -> Lowered | None:
    """Lower the limit of a finding, or return None to leave it.

    To the suggestion, but to no less than half of what is in force, and once in its window:
    a block that has another reason refuses again and again, after ever fewer.
    """
    limit = next((each for each in limits if _is_about(finding, each)), None)
    if limit is None:
        return None
    before = next((each for each in lowered if each.is_of(limit)), None)
    in_force = limit.count if before is None else before.count
    count = max(finding.suggested, -(-in_force // 2))
    is_too_soon = before is not None and abs(finding.at_ns - before.at_ns) < limit.per_ns
    if count >= in_force or is_too_soon:
        return None
    return Lowered(limit.unit, limit.per_ns, limit.count, count, finding.at_ns)


def in_force(limits: Iterable[AnyLimit], lowered: Sequence[Lowered]) -> list[AnyLimit | Effective]:
    found: list[AnyLimit | Effective] = []
    for limit in limits:
        count = min([limit.count, *(each.count for each in lowered if each.is_of(limit))])
        effective = Effective(
            limit.unit,
            count,
            limit.per_ns,
            limit.for_each,
            limit.label,
            calendar=limit.calendar,
            open_hours=limit.open_hours,
            rise=limit.rise,
        )
        found.append(effective if count < limit.count else limit)
    return found


def _not_cleared(
    suspects: Sequence[Limit],
    tally: Callable[[int], Tally],
    peak: Callable[[int], Tally],
    before: Iterable[Hint],
) -> list[Limit]:
    """Limits that held no more in any earlier window, or were blamed then."""
    blamed = {(finding.unit, finding.per_ns) for finding in before if finding.limit is not None}
    return [
        limit
        for limit in suspects
        if (limit.unit, limit.per_ns) in blamed
        or peak(limit.per_ns).of(limit.unit) <= tally(limit.per_ns).of(limit.unit)
    ]


def _added(earlier: Untaken, later: Untaken) -> Untaken:
    return Untaken(
        max(earlier.at_ns, later.at_ns),
        earlier.messages + later.messages,
        earlier.recipients + later.recipients,
        earlier.connections + later.connections,
    )


def _is_as_long(per_ns: int, named_ns: int | None) -> bool:
    if named_ns == SPAN_NS[Span.MONTH]:
        return SHORTEST_MONTH_NS <= per_ns <= named_ns
    return named_ns is None or per_ns == named_ns


def _is_about(finding: Hint, limit: Limit) -> bool:
    known = (limit.unit, limit.per_ns, limit.count, limit.for_each)
    return known == (finding.unit, finding.per_ns, finding.limit, None)
