"""What an operator may ask for: of a running relay, or of its spool while it is down.

`Operations` is the one interface: the service implements it for the control socket
(`control`), and `offline` implements it on the spool itself; the command line takes
whichever there is.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, Protocol, get_args

from relay.mail.envelope import QueueId
from relay.spool.interface import SpoolBusy
from relay.status.snapshot import MessageDetail, QueuedMessage, Snapshot

__all__ = [
    "ABSENT",
    "BUSY",
    "OK",
    "VERBS",
    "Operations",
    "Results",
    "Session",
    "SpoolBusy",
    "Unreachable",
    "Verb",
    "act",
]

OK = "ok"
ABSENT = "absent"
"""There is no such message."""
BUSY = "busy"
"""It is in a transaction, or the relay is; try again later."""

Verb = Literal["hold", "release", "retry", "bounce", "delete"]
VERBS: tuple[Verb, ...] = get_args(Verb)

Results = Mapping[QueueId, str]
"""For each id: OK, ABSENT, BUSY, or the text of what went wrong."""


class Unreachable(Exception):  # noqa: N818 - a state, not an error of ours
    """The relay did not answer, or not properly; the text says how."""


class Operations(Protocol):
    """What can be asked.  Ids passed QUEUE_ID_PATTERN; every result names every id."""

    async def snapshot(self) -> Snapshot:
        """Return what can be seen now."""
        ...

    async def queue(self) -> Sequence[QueuedMessage]:
        """Return the queue, oldest first; of each message's recipients only the first ones."""
        ...

    async def show(self, queue_id: QueueId) -> MessageDetail | str:
        """Return one message with all its recipients, or ABSENT, or what went wrong."""
        ...

    async def hold(self, queue_ids: Sequence[QueueId]) -> Results:
        """Set messages aside until they are released."""
        ...

    async def release(self, queue_ids: Sequence[QueueId]) -> Results:
        """Let held messages go on."""
        ...

    async def retry(self, queue_ids: Sequence[QueueId]) -> Results:
        """Let deferred messages go now instead of when their back-off ends; limits still hold."""
        ...

    async def bounce(self, queue_ids: Sequence[QueueId]) -> Results:
        """End messages and report their remaining recipients to their senders."""
        ...

    async def delete(self, queue_ids: Sequence[QueueId]) -> Results:
        """End messages and tell nobody."""
        ...

    async def resume(self, upstream: str, *, believes: bool = False) -> str:
        """Use an upstream that rests again, with one transaction first; OK, ABSENT, or what is in the way.

        `believes` bounces what it refused and the shield doubts; else all of that is tried again.
        """
        ...


class Session(Operations, Protocol):
    """Operations that somebody opened, and has to close."""

    async def close(self) -> None:
        """Let go of the socket or the spool."""
        ...


def act(operations: Operations, verb: Verb) -> Callable[[Sequence[QueueId]], Awaitable[Results]]:
    """Return the method of a verb."""
    methods: dict[Verb, Callable[[Sequence[QueueId]], Awaitable[Results]]] = {
        "hold": operations.hold,
        "release": operations.release,
        "retry": operations.retry,
        "bounce": operations.bounce,
        "delete": operations.delete,
    }
    return methods[verb]
