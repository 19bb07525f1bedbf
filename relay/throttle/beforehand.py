"""What the sender asks ahead of `reserve`, which alone decides: thin readings of the same windows.

Each is advice: what it says may change before a decision, and a wasted try costs nothing but time.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from relay.throttle.admission import Place
from relay.throttle.limit_state import LimitState

MANY = 1 << 30
"""As many messages as one likes."""
Answer = TypeVar("Answer")


def for_all(states: Sequence[LimitState]) -> list[LimitState]:
    """Return the states without keys."""
    return [state for state in states if state.unit != "connections" and state.for_each is None]


def room_of(state: LimitState, key: str | None, now_ns: int) -> int:
    """Return how many messages a limit lets go; of bytes it depends on their sizes: all or none."""
    free = state.room(key, now_ns)
    return MANY if state.unit == "bytes" and free else free


def room_at(states: Sequence[LimitState], place: Place, now_ns: int) -> tuple[int, int]:
    """How many messages may leave a place now, and when the next one may.

    At least one may be tried where it has other recipients, or the limits are gone: only asking tells.
    """
    kind, key = place
    of_place = [state for state in states if state.for_each == kind and state.is_about(key)]
    least = 1 if kind == "recipient_domain" or not of_place else 0
    room = min((room_of(state, key, now_ns) for state in of_place), default=least)
    return max(least, room), max((state.opens_at(key, now_ns) for state in of_place), default=now_ns)


def room_in(states: Sequence[LimitState], lane: str, now_ns: int) -> tuple[int | None, int]:
    """How many messages a lane's ceilings let go now (None: any number), and when one may."""
    ceilings = [state for state in states if state.for_each == "lane" and state.is_about(lane)]
    room = min((room_of(state, lane, now_ns) for state in ceilings), default=None)
    return room, max((state.opens_at(lane, now_ns) for state in ceilings), default=now_ns)


class Asked(Protocol):
    """What a view of an account answers with."""

    def ask(self, question: Callable[[Sequence[LimitState], int], Answer]) -> Answer: ...
    def boottime_of(self, at_ns: int) -> int: ...


class Beforehand:
    """The questions of the dispatcher; every instant is boottime, and a room of None is any number."""

    def room(self: Asked) -> int | None:
        """Of limits without keys; keys may keep the messages back."""
        return self.ask(
            lambda states, now_ns: min((room_of(s, None, now_ns) for s in for_all(states)), default=None)
        )

    def full(self: Asked, place: Place | None = None) -> list[str]:
        """Return the labels of limits without room: of all mail, or of a place."""
        kind, key = (None, None) if place is None else place
        return self.ask(
            lambda states, now_ns: [
                state.label
                for state in states
                if state.unit != "connections" and state.for_each == kind and state.is_about(key)
                if not state.room(key, now_ns)
            ]
        )

    def opens_at_ns(self: Asked) -> int:
        """Return when a message of a byte may go, by limits without keys; now, if it may already."""
        opens_ns = self.ask(
            lambda states, now_ns: max((s.opens_at(None, now_ns) for s in for_all(states)), default=now_ns)
        )
        return self.boottime_of(opens_ns)

    def room_for_connections(self: Asked) -> tuple[int | None, int, str]:
        """How many may be opened now, when the next may, and by which limit."""

        def read(states: Sequence[LimitState], now_ns: int) -> tuple[int | None, int, str]:
            limits = [state for state in states if state.unit == "connections"]
            opens = [(state.opens_at(None, now_ns), state.label) for state in limits]
            free = min((state.room(None, now_ns) for state in limits), default=None)
            return free, *max(opens, default=(now_ns, ""))

        room, opens_ns, label = self.ask(read)
        return room, self.boottime_of(opens_ns), label

    def room_at(self: Asked, place: Place) -> tuple[int, int]:
        room, opens_ns = self.ask(lambda states, now_ns: room_at(states, place, now_ns))
        return room, self.boottime_of(opens_ns)

    def room_in(self: Asked, lane: str) -> tuple[int | None, int]:
        room, opens_ns = self.ask(lambda states, now_ns: room_in(states, lane, now_ns))
        return room, self.boottime_of(opens_ns)
