"""Which upstream mail of a route goes through now, and why.  Pure: no clock.

A route lists upstreams in the order of preference.  `choose` answers with one of them, the reason, and the
instant at which the answer is another one although nothing happens.

The next upstream is used where the one before has been down for `failover_after`: paused, stopped,
unreachable, paused by an operator, or proving after any of these.  So a pause counts from its first
refusal until something is relayed again.  Where all are down for that long, mail waits for the first.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from relay.mail.rewriting import Rewriting
from relay.verdicts.account import Paused


@dataclass(frozen=True, slots=True)
class Route:
    upstreams: tuple[str, ...]
    """In the order of preference; at least one."""
    failover_after_ns: int | None = None
    """How long an upstream is down before the next one is used; None: for ever."""
    spill_after_ns: int | None = None
    """After so long in an upstream's line a message goes to the next one; None: never."""
    rewriting: Rewriting | None = None
    """Of what goes by it, whichever of the upstreams it goes through; None: sent as it was handed over."""


class Part(NamedTuple):
    """The recipients of one message that go by one route."""

    route: Route | None = None
    """None: the policy has no routes, and its first upstream gets all."""
    indices: frozenset[int] | None = None
    """Of the recipients in the envelope; None: all of them."""

    def left(self, left: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of the recipients left that are in this part."""
        return left if self.indices is None else tuple([each for each in left if each in self.indices])

    @property
    def whole(self) -> "Part":
        """Return the part that all recipients left are in, where all are in this one."""
        return self if self.indices is None else Part(self.route)

    @property
    def rewriting(self) -> Rewriting | None:
        return None if self.route is None else self.route.rewriting


WHOLE = Part()


class Because(enum.StrEnum):
    """Why mail stands for an upstream; `words_of` has the words."""

    PREFERRED = "preferred"
    """Nothing is listed before it, or nothing of that is in the policy any more."""
    FAILOVER = "failover"
    ALL_DOWN = "all_down"
    """Mail waits for the first."""
    SPILL = "spill"
    UNFIT = "unfit"
    PROBE = "probe"
    UNKNOWN = "unknown"


class Availability(NamedTuple):
    """What routing sees of an upstream."""

    down_since_ns: int | None = None
    """None while mail goes."""
    is_proving: bool = False
    """One transaction may go now, to show whether it is well."""
    pauses: tuple[Paused, ...] = ()
    """When nothing was sent through it: no age of what stands for it."""

    @property
    def is_usable(self) -> bool:
        return self.down_since_ns is None or self.is_proving


class Choice(NamedTuple):
    upstream: str
    because: Because = Because.PREFERRED
    instead_of: str = ""
    """The upstream listed before it, which is passed over; of a probe, where it was; empty for none."""
    until_ns: int | None = None
    """When to choose anew though nothing has happened; None: never."""


def choose(route: Route, standings: Mapping[str, Availability], now_ns: int) -> Choice:
    """Return where mail of a route stands now.  `standings` has each upstream of the policy."""
    listed = [name for name in route.upstreams if name in standings]
    before = ""
    for name in listed:
        down_since_ns = standings[name].down_since_ns
        because = Because.FAILOVER if before else Because.PREFERRED
        if down_since_ns is None or route.failover_after_ns is None:
            return Choice(name, because, before)
        if now_ns < (until_ns := down_since_ns + route.failover_after_ns):
            return Choice(name, because, before, until_ns if len(listed) > 1 else None)
        before = name
    # Where an edit took all away the mail waits until it is sorted by that edit.
    return Choice((listed or route.upstreams)[0], Because.PREFERRED if len(listed) == 1 else Because.ALL_DOWN)


def next_listed(route: Route, after: str, standings: Mapping[str, Availability]) -> str | None:
    """Return the first upstream behind one of them through which mail may go; None for none."""
    behind = route.upstreams[route.upstreams.index(after) + 1 :] if after in route.upstreams else ()
    return next((name for name in behind if name in standings and standings[name].is_usable), None)


def is_better(route: Route, name: str, than: str, standings: Mapping[str, Availability]) -> bool:
    """Return whether mail that stands for one upstream should rather go through another, were that well."""
    if name == than or name not in route.upstreams:
        return False
    if than not in route.upstreams or than not in standings or standings[than].down_since_ns is not None:
        return True
    return route.upstreams.index(name) < route.upstreams.index(than)


_WORDS = {
    Because.FAILOVER: "failover: {instead_of} is down",
    Because.SPILL: "spill: it waited too long for {instead_of}",
    Because.UNFIT: "unfit: it can never go through {instead_of}",
    Because.PROBE: "probe: it shows whether {upstream} is well again",
    Because.UNKNOWN: "unknown: {upstream} may have relayed it",
    Because.ALL_DOWN: "all upstreams of its route are down",
}


def words_of(choice: Choice) -> str:
    """Return why mail goes through an upstream that is not the preferred one; empty where it is."""
    return _WORDS.get(choice.because, "").format(upstream=choice.upstream, instead_of=choice.instead_of)
