"""One lane, as an operator sees it.  Pure."""

from dataclasses import dataclass
from typing import Any

from relay.clock import SECOND_NS


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """A lane of the policy and what waits in it."""

    name: str
    share_percent: float
    """Of what goes, while every lane has mail."""
    ceiling_percent: int | None
    """Of each limit's N, the most that it may hold; None: all."""
    waiting_messages: int = 0
    waiting_recipients: int = 0
    oldest_age_ns: int = 0
    """Of what waits, since acceptance; 0 where nothing does."""


def lane_json(lane: LaneStatus) -> dict[str, Any]:
    """Return a lane as `relay status --json` and /status.json show it."""
    return {
        "name": lane.name,
        "share_percent": round(lane.share_percent, 3),
        "ceiling_percent": lane.ceiling_percent,
        "waiting_messages": lane.waiting_messages,
        "waiting_recipients": lane.waiting_recipients,
        "oldest_age_seconds": lane.oldest_age_ns / SECOND_NS,
    }
