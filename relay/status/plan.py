"""How the present queue drains under an edited policy, and under the policy in force.  Pure values.

Both sides use the arithmetic of `relay.status.eta`, so both leave out the same things.  Mail stays in the
line where it stands: the plan moves none for an edit of routes or lanes.
"""

from dataclasses import dataclass

from relay.policy.source import Difference


@dataclass(frozen=True, slots=True)
class OverLimit:
    """A limit of the edited policy whose slots that count for all mail, or for a lane, exceed its N."""

    upstream: str
    limit: str
    used: int
    count: int
    opens_at_ns: int
    """Wall clock: when the limit has room again.  Nothing goes before."""


@dataclass(frozen=True, slots=True)
class PlannedUpstream:
    name: str
    messages: int
    """Waiting messages.  A message in parts counts with each upstream that has a part."""
    recipients: int
    drained_at_ns: int | None
    """Wall clock: when they will have gone under the policy in force; None if that is unknown."""
    edited_drained_at_ns: int | None
    held_by: str
    """The cause of most of the wait under the policy in force; empty without a wait."""
    edited_held_by: str


@dataclass(frozen=True, slots=True)
class Plan:
    at_ns: int
    """Wall clock."""
    differences: tuple[Difference, ...]
    over: tuple[OverLimit, ...]
    upstreams: tuple[PlannedUpstream, ...]
    """The upstreams for which mail waits."""
