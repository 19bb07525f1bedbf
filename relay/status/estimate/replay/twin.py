"""A copy of a queued message for the estimate to move."""

import enum
from collections.abc import Hashable
from dataclasses import dataclass, fields
from operator import attrgetter

from relay.queue.queued import Queued, State, WaitKind


class Move(enum.Enum):
    TAKE = enum.auto()
    RETURN = enum.auto()
    DEFER = enum.auto()
    SIT_OUT = enum.auto()
    WAKE = enum.auto()
    HOLD = enum.auto()
    RELEASE = enum.auto()
    SEIZE = enum.auto()


_ALL = frozenset(State)
AFTER: dict[Move, tuple[frozenset[State], State]] = {
    Move.TAKE: (frozenset({State.WAITING}), State.ACTIVE),
    Move.RETURN: (frozenset({State.ACTIVE}), State.WAITING),
    Move.DEFER: (frozenset({State.ACTIVE}), State.DEFERRED),
    Move.SIT_OUT: (frozenset({State.WAITING}), State.DEFERRED),
    Move.WAKE: (frozenset({State.DEFERRED}), State.WAITING),
    Move.HOLD: (_ALL, State.HELD),
    Move.RELEASE: (frozenset({State.HELD, State.DEFERRED}), State.WAITING),
    Move.SEIZE: (_ALL - {State.ACTIVE}, State.ACTIVE),
}


@dataclass(slots=True, eq=False)
class Twin(Queued):
    place: Hashable = None
    turn: int = 0

    @property
    def is_sitting_out(self) -> bool:
        return self.state is State.DEFERRED and self.why.kind is WaitKind.SENDER_PAUSE


_VALUES = attrgetter(*(each.name for each in fields(Queued) if each.init))


def twin_of(queued: Queued) -> Twin:
    return Twin(*_VALUES(queued))
