"""What the demo sets out to show, and whether it did.  Pure.

The judgement rests on the upstream's own ledger alone: what the relay says of itself is
shown while it runs, and counts for nothing.
"""

from dataclasses import dataclass

from relay.clock import SECOND_NS
from relay.policy.limits import LimitSettings
from relay.practice.witness import Witness, Witnessed

PATIENCE_NS = 30 * SECOND_NS
"""How much longer than the ideal the demo may take before it gives up."""


@dataclass(frozen=True, slots=True)
class Plan:
    """So many messages, as fast as they can be handed over, through an upstream with this limit."""

    messages: int
    limit: LimitSettings
    per: str
    """The length of the window, as a policy writes it."""

    @property
    def ideal_ns(self) -> int:
        """Return the least time from the first message to the last that the limit allows anybody."""
        return (-(-self.messages // self.limit.count) - 1) * self.limit.per_ns

    @property
    def latest_ns(self) -> int:
        """Return how long the demo may run."""
        return self.ideal_ns + PATIENCE_NS

    @property
    def longest_delay_ns(self) -> int:
        """Return how late the upstream's replies may be."""
        return self.limit.per_ns // 10


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the upstream saw, next to what was planned."""

    plan: Plan
    most: int
    """In any window."""
    relayed: int
    """Messages, each counted once."""
    repeated: int
    """Relayed again, although nobody crashed."""
    refused: int
    taken_ns: int
    """From the first message to the last, by the instants that counted."""

    @property
    def is_within(self) -> bool:
        """Whether no window held too much."""
        return self.most <= self.plan.limit.count

    @property
    def is_complete(self) -> bool:
        """Whether every message was relayed, and none twice."""
        return self.relayed == self.plan.messages and self.repeated == 0

    @property
    def is_good(self) -> bool:
        """Whether the demo showed what it set out to show."""
        return self.is_within and self.is_complete and self.refused == 0


def judge(plan: Plan, ledger: Witness) -> Judgement:
    """Return what a ledger comes to; every message of the plan has a recipient of its own."""
    recipients = [entry.envelope.recipients for entry in ledger.entries if entry.fate is Witnessed.RELAYED]
    counted_ns = [entry.counted_at_ns for entry in ledger.entries]
    return Judgement(
        plan=plan,
        most=ledger.most_in_any_window(),
        relayed=len(set(recipients)),
        repeated=len(recipients) - len(set(recipients)),
        refused=ledger.refused,
        taken_ns=max(counted_ns, default=0) - min(counted_ns, default=0),
    )


def shown_seconds(span_ns: int) -> str:
    """Return a span to a tenth of a second: `27.3s`."""
    return f"{span_ns / SECOND_NS:.1f}s"


def verdict_lines(judgement: Judgement) -> list[tuple[str, bool | None]]:
    """Return each line of the verdict, and whether it is as it should be; None: it is only told."""
    plan, limit = judgement.plan, judgement.plan.limit
    repeated = f", {judgement.repeated} of them twice" if judgement.repeated else ", each once"
    taken = f"{shown_seconds(judgement.taken_ns)} from first to last"
    return [
        (
            f"most in any {plan.per:<9} {judgement.most} of {limit.count} allowed",
            judgement.is_within,
        ),
        (f"refused               {judgement.refused}", judgement.refused == 0),
        (
            f"relayed               {judgement.relayed} of {plan.messages}{repeated}",
            judgement.is_complete,
        ),
        (
            f"time                  {taken}; the ideal is {shown_seconds(plan.ideal_ns)}",
            None,
        ),
    ]
