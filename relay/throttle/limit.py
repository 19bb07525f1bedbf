"""A limit: at most N of a unit in any window of length T.  Pure.

The limits of an upstream, the ceilings of its lanes and the cap on reports all have this shape.
"""

from dataclasses import dataclass, replace
from typing import Literal

from relay.mail.formats import period
from relay.policy.lane import ALL_PERCENT, Lanes, LimitSettings, Unit
from relay.policy.model import Upstream

ForEach = Literal["sender", "sender_domain", "recipient_domain", "client", "user", "lane"]
LONGEST_DEFAULT_GUARD_NS = 1_000_000_000
LONGEST_KEY = 96
"""The most characters of a written key.  A longer key loses its beginning; two such may become one."""


@dataclass(frozen=True, slots=True)
class Limit:
    unit: Unit
    count: int
    """N, at least 1."""
    per_ns: int
    """T."""
    label: str
    """Names the limit everywhere: `100 messages per 1h for each sender`, `1G per 24h`."""
    for_each: ForEach | None = None
    """The kind of key that has a window each; None: one window for everything."""
    only: str | None = None
    """The one key that the limit judges; None: every key."""
    guard_ns: int = 0
    """How much longer than T a slot is occupied after its end."""

    @property
    def span_ns(self) -> int:
        return self.per_ns + self.guard_ns

    @property
    def reason(self) -> str:
        """Why a message waits.  The estimates use it too, because reasons are counted by their text."""
        return f"limit {self.label}" if self.only is None else f"ceiling of lane {self.only}"


def limit_of(settings: LimitSettings, guard_ns: int | None = None) -> Limit:
    """Without `guard_ns` the guard is 1 % of T, at most a second."""
    guard_ns = min(settings.per_ns // 100, LONGEST_DEFAULT_GUARD_NS) if guard_ns is None else guard_ns
    its = settings.unit, settings.count, settings.per_ns, settings.label, settings.for_each
    return Limit(*its, guard_ns=guard_ns)


def with_ceilings(upstream: Upstream, lanes: Lanes) -> tuple[Limit, ...]:
    """Return the limits of an upstream, and the ceilings of lanes as limits for their key `lane`.

    Only limits over all mail have ceilings: a limit `for_each` sender has no total to take a part of.
    Limits of bytes have none: a message larger than its lane's part could never go.
    """
    found = [limit_of(each, upstream.guard_ns) for each in upstream.limits]
    for limit in tuple(found):
        for name, lane in lanes.items():
            if limit.for_each is None and limit.unit in ("messages", "recipients") and lane.ceiling:
                count = max(1, limit.count * lane.ceiling // ALL_PERCENT)
                label = f"{count} {limit.unit} per {period(limit.per_ns)} for lane {name}"
                found.append(replace(limit, count=count, label=label, for_each="lane", only=name))
    return tuple(found)
