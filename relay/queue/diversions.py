"""Which routes' mail goes elsewhere than they prefer, and when that began and ended.  Pure: no clock.

One `Turn` for each change of a route, never one a message.  Failing over, and having every upstream
down, is a state of the route itself (`relay.queue.routes.choose`).  Spilling is a state of its mail: it
begins with the first part that is moved, and ends when no mail of the route stands there any more.

Assumes: whoever asks for `turns` does so once for each; what is not asked for is kept.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from relay.queue.routes import Because, Choice, Route


class Diversion(NamedTuple):
    upstream: str
    """Through which mail goes; where every upstream is down, for which it waits."""
    because: Because
    """FAILOVER, SPILL or ALL_DOWN."""
    instead_of: str
    """Empty where every upstream is down."""
    since_ns: int


class Turn(NamedTuple):
    """A diversion that has begun, or is over."""

    route: Route
    diversion: Diversion
    back_to: str = ""
    """Where the mail goes again; empty where the diversion has begun."""


class Diversions:
    def __init__(self) -> None:
        self._now: dict[tuple[Route, str], Diversion] = {}
        """By the route, and where its mail is spilled to; empty where all of it is diverted."""
        self._turns: list[Turn] = []

    def turns(self) -> list[Turn]:
        """Return the turns since the last call, in their order."""
        turns, self._turns = self._turns, []
        return turns

    def use(self, routes: Iterable[Route]) -> None:
        """Forget routes that are no more: what diverted their mail is over."""
        known = set(routes)
        for key in [each for each in self._now if each[0] not in known]:
            self._end(key)

    def chose(self, route: Route, choice: Choice, now_ns: int) -> None:
        """Hear where mail of a route goes now."""
        if choice.because is Because.PREFERRED:
            self._end((route, ""), choice.upstream)
        else:
            self._begin((route, ""), choice, now_ns)

    def spilled(self, route: Route, choice: Choice, now_ns: int) -> None:
        """Hear that a part was moved, because it has waited too long."""
        self._begin((route, choice.upstream), choice, now_ns)

    def looked(self, is_there: Callable[[Route, str], bool]) -> None:
        """End what is spilled no more; `is_there` tells whether mail of a route stands in a line."""
        for key in [each for each in self._now if each[1] and not is_there(*each)]:
            self._end(key)

    def of(self, route: Route) -> tuple[Diversion, ...]:
        """Return what diverts mail of a route now: at most one that is no spilling."""
        return tuple(its for (each, _), its in self._now.items() if each == route)

    def _begin(self, key: tuple[Route, str], choice: Choice, now_ns: int) -> None:
        before = self._now.get(key)
        its = Diversion(choice.upstream, choice.because, choice.instead_of, now_ns)
        if before is None or (key[1] == "" and before._replace(since_ns=now_ns) != its):
            self._now[key] = its
            self._turns.append(Turn(key[0], its))

    def _end(self, key: tuple[Route, str], back_to: str = "") -> None:
        if (its := self._now.pop(key, None)) is not None:
            self._turns.append(Turn(key[0], its, back_to or its.instead_of or its.upstream))
