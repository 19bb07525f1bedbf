"""What an edited policy would do to the queue of now, beside what the policy in force will do.  Pure values.

When each line will have gone is by the arithmetic of `relay.status.eta`, on both sides: whatever that leaves
out is left out on both.  Mail stays where it stands: an edit of routes or lanes moves none here.
"""

from dataclasses import dataclass
from typing import Any

from relay.policy.source import Difference
from relay.status.snapshot import as_json


@dataclass(frozen=True, slots=True)
class OverLimit:
    """A limit of all mail, or of a lane, that would hold more than its N at once."""

    upstream: str
    limit: str
    used: int
    count: int
    opens_at_ns: int
    """Wall clock: when there is room again; nothing goes before."""


@dataclass(frozen=True, slots=True)
class PlannedUpstream:
    name: str
    messages: int
    """That wait for it; one in parts counts with each upstream that has one."""
    recipients: int
    drained_at_ns: int | None
    """Wall clock: when they will have gone by the policy in force; None where nobody can tell."""
    edited_drained_at_ns: int | None
    held_by: str
    """What most of the wait is for by the policy in force; empty for nothing."""
    edited_held_by: str


@dataclass(frozen=True, slots=True)
class Plan:
    at_ns: int
    """Wall clock."""
    is_running: bool
    differences: tuple[Difference, ...]
    over: tuple[OverLimit, ...]
    upstreams: tuple[PlannedUpstream, ...]
    """Those for which mail waits."""


def plan_to_json(plan: Plan) -> dict[str, Any]:
    told: dict[str, Any] = as_json(plan)
    for difference, its in zip(plan.differences, told["differences"], strict=True):
        its["words"] = difference.words
    return told
