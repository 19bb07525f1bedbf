"""What the limit on reports asks ahead of `reserve`, which alone decides: thin readings of the same windows.

Each is advice: what it says may change before a decision, and a wasted try costs nothing but time.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

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


class Asked(Protocol):
    """What a view of an account answers with."""

    def ask(self, question: Callable[[Sequence[LimitState], int], Answer]) -> Answer: ...
    def boottime_of(self, at_ns: int) -> int: ...


class Beforehand:
    """What the limit on reports asks; every instant is boottime, and a room of None is any number."""

    def room(self: Asked) -> int | None:
        """Of limits without keys; keys may keep the messages back."""
        return self.ask(
            lambda states, now_ns: min((room_of(s, None, now_ns) for s in for_all(states)), default=None)
        )

    def opens_at_ns(self: Asked) -> int:
        """Return when a message of a byte may go, by limits without keys; now, if it may already."""
        opens_ns = self.ask(
            lambda states, now_ns: max((s.opens_at(None, now_ns) for s in for_all(states)), default=now_ns)
        )
        return self.boottime_of(opens_ns)
