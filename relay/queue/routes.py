"""Which upstream the mail of a route goes through now, and why.  Pure: no clock.

A route lists upstreams in order of preference.  `choose` returns one of them, the reason, and the instant at
which the choice changes although nothing happens.

The next upstream is used when the one before it has been down for `failover_after`.  Down means paused,
stopped, unreachable, paused by an operator, or proving after any of these.  So a pause counts from its first
refusal until something is relayed again.  If all upstreams are down for that long, mail waits for the first.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from relay.mail.rewriting import Rewriting
from relay.verdicts.account import PauseSpan


@dataclass(frozen=True, slots=True)
class Route:
    upstreams: tuple[str, ...]
    """In order of preference; at least one."""
    failover_after_ns: int | None = None
    """How long an upstream is down before the next one is used; None: the next one is never used."""
    spill_after_ns: int | None = None
    """After this time in the line of an upstream a message goes to the next one; None: never."""
    rewriting: Rewriting | None = None
    """Applied to all mail of the route, on any of its upstreams; None: mail is sent as it was accepted."""


class Part(NamedTuple):
    """The recipients of one message that go by one route."""

    route: Route | None = None
    """None: the policy has no routes, and all mail goes to its first upstream."""
    indices: frozenset[int] | None = None
    """Indices of the recipients in the envelope; None: all recipients."""

    def left(self, left: tuple[int, ...]) -> tuple[int, ...]:
        """Return the recipients of `left` that are in this part."""
        return left if self.indices is None else tuple([each for each in left if each in self.indices])

    @property
    def whole(self) -> "Part":
        """Return this part without indices, for a message whose recipients left are all in it."""
        return self if self.indices is None else Part(self.route)

    @property
    def rewriting(self) -> Rewriting | None:
        return None if self.route is None else self.route.rewriting


WHOLE = Part()


class Because(enum.StrEnum):
    """Why mail stands in the line of an upstream; `reason_of` puts it into words."""

    PREFERRED = "preferred"
    """No upstream listed before this one is in the policy."""
    FAILOVER = "failover"
    ALL_DOWN = "all_down"
    """Mail waits for the first upstream."""
    SPILL = "spill"
    UNFIT = "unfit"
    PROBE = "probe"


class Availability(NamedTuple):
    """What routing knows of an upstream."""

    down_since_ns: int | None = None
    """None while mail goes."""
    is_proving: bool = False
    """One transaction may go now, to prove that the upstream is well."""
    pauses: tuple[PauseSpan, ...] = ()
    """The spans in which nothing was sent through it; they do not age the mail in its line."""

    @property
    def is_usable(self) -> bool:
        return self.down_since_ns is None or self.is_proving


class Choice(NamedTuple):
    upstream: str
    because: Because = Because.PREFERRED
    instead_of: str = ""
    """The upstream that is passed over, listed before it; for a probe, where the message was; else empty."""
    until_ns: int | None = None
    """When to choose again although nothing has happened; None: never."""
    since_ns: int = 0
    """Since when mail of the route goes there; not known of a single part."""


def choose(route: Route, availabilities: Mapping[str, Availability], now_ns: int) -> Choice:
    """Return where mail of a route goes now.  `availabilities` has every upstream of the policy."""
    listed = [name for name in route.upstreams if name in availabilities]
    before = ""
    for name in listed:
        down_since_ns = availabilities[name].down_since_ns
        because = Because.FAILOVER if before else Because.PREFERRED
        if down_since_ns is None or route.failover_after_ns is None:
            return Choice(name, because, before)
        if now_ns < (until_ns := down_since_ns + route.failover_after_ns):
            return Choice(name, because, before, until_ns if len(listed) > 1 else None)
        before = name
    # If an edit removed all upstreams of the route, its mail waits until the edit has sorted it anew.
    return Choice((listed or route.upstreams)[0], Because.PREFERRED if len(listed) == 1 else Because.ALL_DOWN)


def next_listed(route: Route, after: str, availabilities: Mapping[str, Availability]) -> str | None:
    """Return the first usable upstream that the route lists behind `after`; None without one."""
    behind = route.upstreams[route.upstreams.index(after) + 1 :] if after in route.upstreams else ()
    return next((name for name in behind if name in availabilities and availabilities[name].is_usable), None)


def is_better(route: Route, name: str, than: str, availabilities: Mapping[str, Availability]) -> bool:
    """Return whether mail in the line of `than` should go through `name` instead, if `name` were well."""
    if name == than or name not in route.upstreams:
        return False
    is_down = than not in availabilities or availabilities[than].down_since_ns is not None
    return is_down or route.upstreams.index(name) < route.upstreams.index(than)


_WORDS = {
    Because.FAILOVER: "failover: {instead_of} is down",
    Because.SPILL: "spill: it waited too long for {instead_of}",
    Because.UNFIT: "unfit: {instead_of} cannot relay this message",
    Because.PROBE: "probe: it tests whether {upstream} is well again",
    Because.ALL_DOWN: "all upstreams of its route are down",
}


def reason_of(choice: Choice) -> str:
    """Return why mail does not go through the preferred upstream; empty if it does."""
    return _WORDS.get(choice.because, "").format(upstream=choice.upstream, instead_of=choice.instead_of)
