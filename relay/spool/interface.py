"""What any engine of the spool promises, and the values it speaks in.

Two sides that share nothing but the store: `Intake` for listeners, in any number of processes, and `Spool`
for the one who owns the queue.  Both are synchronous.  An engine's methods are called by one thread at a
time, but for `Intake`, whose drafts are independent of one another.

Guarantees: what a call returned for is durable, but for hints (`Settlement.next_attempt_at_ns`).  Every call
may be made again with the same arguments, also after a crash in it or an error of it.
Does not: sort, cache or count anything (the sender's), or decide what becomes of a message.
tests/engines/spool/conformance.py is the suite that every engine passes.
"""

import enum
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from relay.mail.draft import Draft
from relay.mail.dsn import Notify
from relay.mail.envelope import Envelope, QueueId, Shape
from relay.spool.identity import report_id


class SpoolError(Exception):
    """Why a call, or its part about one message, could not be done."""


class SpoolBusy(SpoolError):  # noqa: N818 - a state, not an error of ours
    """Somebody else owns the queue; the text says who."""


class Full(SpoolError):  # noqa: N818 - a state of the store
    """No room for it: nothing of it is done, and it may be asked again later."""


class Unavailable(SpoolError):  # noqa: N818 - a state of the store
    """The store fails, or does not answer, now: whether it is done is unknown, and it may be asked again."""


class Absent(SpoolError):  # noqa: N818 - a plain answer
    """There is no such message in the queue."""


class Corrupt(SpoolError):  # noqa: N818 - what is stored
    """What is stored is torn, foreign or damaged; the text says how.  Never sent, never deleted."""


class Status(enum.Enum):
    """A recipient's one status byte in the store."""

    TODO = b"T"
    RELAYED = b"D"
    BOUNCED = b"F"
    EXPIRED = b"E"
    DELETED = b"X"
    SUCCESS = b"S"
    """Relayed, and the sender, who asked to be told, is told by us: the upstream offered no DSN."""

    @property
    def is_relayed(self) -> bool:
        return self in (Status.RELAYED, Status.SUCCESS)

    @property
    def is_failure(self) -> bool:
        return self in (Status.BOUNCED, Status.EXPIRED)

    @property
    def is_reported(self) -> bool:
        """Whether the sender may be owed a report about it."""
        return self.is_failure or self is Status.SUCCESS


_REPORTED = frozenset(status for status in Status if status.is_reported)

INLINE_BYTES = 256 * 1024
"""Content up to here comes with its message; longer content is streamed in chunks of this size."""
HEAD_BYTES = 64 * 1024
"""So much of the beginning of longer content comes with its message."""


@dataclass(frozen=True, slots=True)
class Note:
    """Why one recipient failed, or by what it was relayed: durable before its status says so."""

    index: int
    """Which recipient of the envelope."""
    status: str
    """Enhanced status code, RFC 3463."""
    reason: str
    """`bounced`, `expired`, `operator` or `relayed`."""
    diagnostic: str | None
    """The upstream's reply, or what else there is to say; printable ASCII."""
    remote: str | None
    """The upstream, as `host`."""
    at_ns: int
    """Wall clock."""


@dataclass(frozen=True, slots=True)
class OwedReport:
    """The report that a sender is owed now: of failures, and of successes that it asked for."""

    report_id: QueueId
    indices: tuple[int, ...]
    """Of the recipients that it tells of."""
    statuses: tuple[Status, ...]
    """What became of each of them."""


def owed_report(
    queue_id: QueueId, envelope: Envelope, statuses: Sequence[Status], told: Container[int]
) -> OwedReport | None:
    """Return the report about recipients not `told` of, as far as the sender wants to be told.

    None where there is nothing to tell, or the sender is `<>`.
    Its id follows from its first recipient, and is that of the last report where no recipient is left.
    """
    if envelope.is_null or _REPORTED.isdisjoint(statuses):
        return None
    indices = tuple(
        i
        for i, status in enumerate(statuses)
        if status in _REPORTED and i not in told and is_told_of(envelope, i, status)
    )
    if not indices:
        return None
    own = report_id(queue_id, indices[0] if Status.TODO in statuses else None)
    return OwedReport(own, indices, tuple(statuses[index] for index in indices))


def is_told_of(envelope: Envelope, index: int, status: Status) -> bool:
    """Whether the sender is to be told by us what became of a recipient (RFC 3461, 4.1)."""
    return status is Status.SUCCESS or (status.is_failure and envelope.tells_of(index, Notify.FAILURE))


class Message(NamedTuple):
    queue_id: QueueId
    envelope: Envelope
    shape: Shape
    statuses: tuple[Status, ...]
    """One for each recipient of the envelope, in its order."""
    told: frozenset[int] = frozenset()
    """Recipients whose sender was told by a report what became of them."""
    is_held: bool = False
    is_warned: bool = False
    """The sender was told that it is late."""
    next_attempt_at_ns: int | None = None
    """Wall clock; a hint kept over restarts.  None: none was ever given."""
    content: bytes | None = None
    """Checked against its checksum; None when longer than INLINE_BYTES: see `Spool.content`."""
    long_head: bytes = b""
    """The first HEAD_BYTES of content that is longer than INLINE_BYTES; not checked."""
    notes: tuple[Note, ...] = ()
    """The last one about each recipient of which a report is owed; some may be missing after damage."""

    @property
    def owed_report(self) -> OwedReport | None:
        return owed_report(self.queue_id, self.envelope, self.statuses, self.told)

    @property
    def left(self) -> tuple[int, ...]:
        """Return the indices of the recipients still to do."""
        return tuple([i for i, status in enumerate(self.statuses) if status is Status.TODO])

    @property
    def head(self) -> bytes:
        """Return the content, or the beginning of it where it is long."""
        return self.long_head if self.content is None else self.content

    def with_notes(self, notes: Iterable[Note]) -> "Message":
        """Return it with those notes of which a report is owed."""
        owed = self.owed_report
        kept = tuple([note for note in notes if owed is not None and note.index in owed.indices])
        return self._replace(notes=kept)

    def after(self, marks: Mapping[int, Status], notes: Sequence[Note] = ()) -> "Message":
        """Return it with marks and notes that a settlement made durable."""
        if not marks:
            return self
        statuses = tuple([marks.get(index, status) for index, status in enumerate(self.statuses)])
        return self._replace(statuses=statuses, notes=(*self.notes, *notes))


class Report(NamedTuple):
    """A message of ours about another one: a report of what became of recipients, or a warning of a delay."""

    queue_id: QueueId
    """Derived from its subject's (`relay.spool.identity`), so that it exists once."""
    envelope: Envelope
    content: bytes


@dataclass(slots=True)
class Settlement:
    """What to write down about one message, in this order, so that a crash between two steps loses nothing.

    notes, marks, report, told and warned, next attempt, held or released, end.
    """

    queue_id: QueueId
    envelope: Envelope
    """As the message was read: no recipient is marked but by this address."""
    marks: Mapping[int, Status] = field(default_factory=dict)
    notes: Sequence[Note] = ()
    """Of recipients that are marked with it, and of which the sender may be told."""
    report: Report | None = None
    """Published unless it is there already, or was."""
    told: Sequence[int] = ()
    """The recipients of which `report` tells."""
    is_warned: bool = False
    """`report` warns of a delay."""
    next_attempt_at_ns: int | None = None
    """Wall clock.  A hint: no disk is waited for on its account."""
    is_held: bool | None = None
    """Hold it, or release it; None: neither."""
    ends: bool = False
    """Remove it: no recipient is left, and no report is owed but `report`."""


@dataclass(frozen=True, slots=True)
class SpoolLook:
    """What there is to see of a store."""

    free_bytes: int = 0
    free_inodes: int | None = None
    """None where the store counts none."""
    corrupt: int = 0
    """How much was set aside, or is damaged or unreadable and was left in its place."""
    unclaimed: int = 0
    """Messages that `claim` has yet to return, about."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """What was set aside, as a listing shows it."""

    name: str
    """Printable ASCII; in general no queue id."""
    size_bytes: int
    arrival_at_ns: int
    """Wall clock; of a message that can be read when it arrived, else when the file was last written."""
    reverse_path: str
    recipients_left: int
    reason: str
    """What is wrong with it, or that it can be read."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """A message on its way from one spool into another, with all that is known of it."""

    message: Message
    content: Iterable[bytes]
    """In chunks; Corrupt and Unavailable are raised before the last one."""


class Intake(Protocol):
    """The listener's side.  It takes the drafts that it gave, and no others: TypeError."""

    def draft(self) -> Draft:
        """Begin a message; no I/O.  It writes and removes by itself what does not stay in memory."""

    def accept(self, drafts: Sequence[tuple[Draft, Envelope]]) -> list[Full | Unavailable | None]:
        """Publish messages durably as one batch; an error, and nothing queued, or None, for each."""

    def room(self) -> int:
        """Return how many bytes new mail may still take; 0: no message at all.  Raises Unavailable."""

    def close(self) -> None: ...


class Spool(Protocol):
    """The side of who owns the queue."""

    is_shared: bool
    """Another host may take over what was claimed: each message is read just before it is sent."""

    def claim(self, most: int) -> list[Message]:
        """Return messages that this owner has not had yet, the oldest first; empty: none is there now.

        At a start that is everything queued, held too, a page at a time, and then what listeners accept.
        So a message comes before the reports about it.  No more than some megabytes of content at once.
        What is damaged is set aside, told of and left out.  Raises Unavailable.
        """

    def read(self, queue_ids: Sequence[QueueId]) -> list[Message | Absent | Corrupt | Unavailable]:
        """Return claimed messages as they are now; a damaged one was set aside."""

    def content(self, queue_id: QueueId) -> Iterator[bytes]:
        """Stream the content; Corrupt is raised before the first octet if any is wrong.

        All of it is read twice for that; an empty chunk comes for each that is checked.
        Raises Absent and Unavailable too.
        """

    def settle(self, settlements: Sequence[Settlement]) -> list[Full | Absent | Corrupt | Unavailable | None]:
        """Write down what became of messages, as one group; for each why it is not done, or None.

        A settlement that is not done may be done in part, in the order of `Settlement`.  Where one finds no
        room, relayed recipients are marked all the same: a crash must not send to them again.  It is asked
        again, as it was, before anything else is asked about that message.
        """

    def adopt(self, adopted: Sequence[Adopted]) -> None:
        """Put messages of another spool into the queue under their ids, durably, as they are there.

        What is here already stays as it is.  Raises Full, Unavailable, and what reading their content raises.
        """

    def look(self) -> SpoolLook:
        """Raise Unavailable."""

    def set_aside(self, most: int) -> list[SetAside]:
        """Return the first `most` of what was set aside, with why.  Raises Unavailable."""

    def tidy(self) -> int:
        """Remove what dead listeners left; return how much.  Called hourly.  Raises Unavailable."""

    def close(self) -> None:
        """Let another own the queue."""


class SharedSpool(Spool, Protocol):
    """What hosts with one queue have beside it: messages that are not claimed here, to see and to ask for.

    A wish is a verb, and the states in which it counts.  It stands with the message until its owner, whoever
    that is then, has answered it or released the message.  All raise Full and Unavailable.
    """

    def others(self, first: str, most: int) -> list[tuple[Message, str]]:
        """Return messages from an id on, in order, without content, each with the host that has it, or ``."""

    def ask(self, queue_ids: Sequence[QueueId], wish: str) -> dict[QueueId, str]:
        """Write a wish down in place of any other; return of which messages, and who has each."""

    def answers(self, queue_ids: Sequence[QueueId]) -> dict[QueueId, str | None]:
        """Return what came of wishes, None where nothing has yet; nothing of what ended otherwise."""

    def wishes(self) -> dict[str, list[QueueId]]:
        """Return what others want of messages that are claimed here."""

    def answer(self, wish: str, results: Mapping[QueueId, str]) -> None: ...

    def leave(self) -> None:
        """Keep what is claimed here from all other hosts, also once this is closed: it counts elsewhere."""
