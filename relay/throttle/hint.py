"""What a refusal for having sent too much says of one limit, in numbers and in words.  Pure.

`relay.throttle.limit_hints` finds it.  Apart from that, since the command line shows it, and loads no rules.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from relay.clock import SECOND_NS
from relay.mail.formats import elapsed, in_seconds, period
from relay.throttle.limit import Limit, Unit


@dataclass(frozen=True, slots=True)
class Hint:
    at_ns: int
    unit: Unit
    per_ns: int
    sent: int
    """Charged within `per_ns` before the refusal, in the unit."""
    over_ns: int
    """Since the first of that."""
    limit: int | None
    """The policy's N; None where it has no such limit."""
    suggested: int
    named: int | None = None
    """The N that the upstream itself named."""
    charged: int | None = None
    """All of ours that it may have counted, what was refused and what is in flight too; None: not known."""

    @property
    def is_explained(self) -> bool:
        """False only where our own history cannot be what was too much."""
        return self.named is None or self.charged is None or self.charged > self.named

    @property
    def label(self) -> str:
        count = "" if self.limit is None else f"{self.limit} "
        return f"{count}{self.unit} per {in_seconds(self.per_ns)}"

    def is_met_by(self, limits: Iterable[Limit]) -> bool:
        alike = [limit for limit in limits if limit.unit == self.unit and limit.for_each is None]
        return any(limit.count <= self.suggested and limit.per_ns >= self.per_ns for limit in alike)

    def beside(self, limits: Iterable[Limit]) -> "Hint":
        counts = [limit.count for limit in in_windows(limits, self.unit, self.per_ns)]
        return replace(self, limit=min(counts, default=None))

    def __str__(self) -> str:
        window = period(self.per_ns)
        says = f"says {self.limit} per {window}" if self.limit is not None else f"has no limit per {window}"
        named = "" if self.named is None else f"the upstream says {self.named}; "
        return f"cut off {self._after(window)}; policy {says}; {named}suggested {self.suggested}"

    def _after(self, window: str) -> str:
        if not self.is_explained:
            return (
                f"at {self.charged} {self.unit} of ours in {window}, the refused ones included: our own "
                "history does not explain it; something else uses the account, or the upstream counts "
                "otherwise"
            )
        if self.sent == 0 and self.charged is not None:
            return f"at {self.charged} {self.unit} at once"
        return f"after {self.sent} {self.unit} in {elapsed(self.over_ns)}"


def in_windows(limits: Iterable[Limit], unit: Unit, per_ns: int | None) -> list[Limit]:
    return [each for each in limits if each.for_each is None and (each.unit, each.per_ns) == (unit, per_ns)]


def finding_to_json(finding: Hint) -> dict[str, int | float | str | None]:
    return {
        "text": str(finding),
        "limit": finding.label,
        "unit": finding.unit,
        "period_seconds": finding.per_ns / SECOND_NS,
        "sent": finding.sent,
        "over_seconds": finding.over_ns / SECOND_NS,
        "count": finding.limit,
        "named": finding.named,
        "charged": finding.charged,
        "suggested": finding.suggested,
    }
