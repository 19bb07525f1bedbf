"""What every engine of the spool guarantees, and the types of its arguments and results.

Two sides share only the store: `Intake` for listeners, in any number of processes, and `Spool` for the owner
of the queue.  Both are synchronous.  One thread at a time calls an engine, except that the drafts of an
`Intake` are independent of one another.

Guarantees: when a call returns, its effect is durable, except for hints (`Settlement.next_attempt_at_ns`).
Every call may be repeated with the same arguments, also after a crash or an error in it.  In a queue that
hosts share, the message of a repeated end is Absent: this host or another one may have ended it.
Does not: sort, cache or count (the sender does), or decide what becomes of a message.
tests/engines/spool/conformance.py is the suite that every engine passes.
"""

import enum
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from relay.mail.dsn import Note, Notify
from relay.mail.envelope import Draft, Envelope, QueueId, Shape
from relay.spool.identity import report_id


class SpoolError(Exception):
    """Why a call, or its part about one message, failed."""


class SpoolBusy(SpoolError):  # noqa: N818 - a state, not an error of ours
    """Another process or host uses the spool; the text says which."""


class WrongSpool(ValueError):  # noqa: N818 - a state, not an error of ours
    """The policy and the spool do not fit: another engine, another version, or others may write to it."""


class Full(SpoolError):  # noqa: N818 - a state of the store
    """The store has no room; the call may be repeated later."""


class Unavailable(SpoolError):  # noqa: N818 - a state of the store
    """The store fails or does not answer.  The call may have taken effect, and may be repeated."""


class Absent(SpoolError):  # noqa: N818 - a plain answer
    """The queue has no such message."""


class Corrupt(SpoolError):  # noqa: N818 - what is stored
    """A stored message is torn, foreign or damaged; the text says how.  Never sent, never deleted."""


StatusWord = Literal["to do", "relayed", "bounced", "expired", "deleted"]


class Status(enum.Enum):
    """The status of a recipient; the value is its byte in the store."""

    TODO = b"T"
    RELAYED = b"D"
    BOUNCED = b"F"
    EXPIRED = b"E"
    DELETED = b"X"
    SUCCESS = b"S"
    """Relayed, and the sender asked to be told of it.  The relay tells it, as the upstream offered no DSN."""

    @property
    def is_relayed(self) -> bool:
        return self in (Status.RELAYED, Status.SUCCESS)

    @property
    def is_failure(self) -> bool:
        return self in (Status.BOUNCED, Status.EXPIRED)

    @property
    def is_reported(self) -> bool:
        """Whether the sender may be owed a report about the recipient."""
        return self.is_failure or self is Status.SUCCESS

    @property
    def word(self) -> StatusWord:
        """Return what became of the recipient, for listings and metrics."""
        return _WORDS[self]


_WORDS: Mapping[Status, StatusWord] = {
    Status.TODO: "to do",
    Status.RELAYED: "relayed",
    Status.SUCCESS: "relayed",
    Status.BOUNCED: "bounced",
    Status.EXPIRED: "expired",
    Status.DELETED: "deleted",
}
_REPORTED = frozenset(status for status in Status if status.is_reported)

INLINE_BYTES = 256 * 1024
"""A `Message` includes content up to this size; longer content is streamed in chunks of this size."""
HEAD_BYTES = 64 * 1024
"""A `Message` with longer content includes this much of the beginning."""


@dataclass(frozen=True, slots=True)
class OwedReport:
    """The report that the sender is owed now: of failures, and of successes that it asked to be told of."""

    report_id: QueueId
    indices: tuple[int, ...]
    """Indices of the recipients that the report tells of."""


def owed_report(
    queue_id: QueueId, envelope: Envelope, statuses: Sequence[Status], told: Container[int]
) -> OwedReport | None:
    """Return the report about the recipients that are not in `told`, as far as the sender asked to be told.

    Return None if there is nothing to report, or the sender is `<>`.  The report's id comes from the first
    recipient in it; if no recipient is left to do, it is the id of the last report.
    """
    if not envelope.reverse_path or _REPORTED.isdisjoint(statuses):
        return None
    indices = tuple(
        i
        for i, status in enumerate(statuses)
        # A success has this status only if the sender asked to be told of it (RFC 3461, 4.1).
        if status in _REPORTED
        and i not in told
        and (status is Status.SUCCESS or envelope.tells_of(i, Notify.FAILURE))
    )
    if not indices:
        return None
    return OwedReport(report_id(queue_id, indices[0] if Status.TODO in statuses else None), indices)


class Message(NamedTuple):
    queue_id: QueueId
    envelope: Envelope
    shape: Shape
    statuses: tuple[Status, ...]
    """One for each recipient of the envelope, in its order."""
    told: frozenset[int] = frozenset()
    """Indices of the recipients of which a report told the sender."""
    is_held: bool = False
    is_warned: bool = False
    """The sender was warned of the delay."""
    next_attempt_at_ns: int | None = None
    """Wall clock; a hint that survives a restart.  None if none was ever set."""
    content: bytes | None = None
    """Compared with its checksum; None if longer than INLINE_BYTES (see `Spool.content`)."""
    long_head: bytes = b""
    """The first HEAD_BYTES of content longer than INLINE_BYTES; not compared with the checksum."""
    notes: tuple[Note, ...] = ()
    """The last note about each recipient of the owed report; some may be missing after damage."""

    @property
    def owed_report(self) -> OwedReport | None:
        return owed_report(self.queue_id, self.envelope, self.statuses, self.told)

    @property
    def left(self) -> tuple[int, ...]:
        """Return the indices of the recipients still to do."""
        return tuple([i for i, status in enumerate(self.statuses) if status is Status.TODO])

    @property
    def head(self) -> bytes:
        """Return the content, or its beginning if it is long."""
        return self.long_head if self.content is None else self.content

    def with_notes(self, notes: Iterable[Note]) -> "Message":
        """Return the message with those of `notes` that are about recipients of the owed report."""
        owed = self.owed_report
        kept = tuple([note for note in notes if owed is not None and note.index in owed.indices])
        return self._replace(notes=kept)

    def after(self, marks: Mapping[int, Status], notes: Sequence[Note] = ()) -> "Message":
        """Return the message as it is after a settlement wrote these marks and notes."""
        if not marks:
            return self
        statuses = tuple([marks.get(index, status) for index, status in enumerate(self.statuses)])
        return self._replace(statuses=statuses, notes=(*self.notes, *notes))


class Report(NamedTuple):
    """A message by the relay about another one: a report (DSN) about recipients, or a warning of a delay."""

    queue_id: QueueId
    """Derived from the other message's id (`relay.spool.identity`), so that the report exists once."""
    envelope: Envelope
    content: bytes


@dataclass(slots=True)
class Settlement:
    """What to write about one message, in this order, so that a crash between two steps loses nothing.

    notes, marks, report, told and warned, next attempt, held or released, end.
    """

    queue_id: QueueId
    envelope: Envelope
    """As it was read.  A recipient is marked only if its stored address is the one in here."""
    marks: Mapping[int, Status] = field(default_factory=dict)
    notes: Sequence[Note] = ()
    """Notes about recipients in `marks` of which the sender may be told."""
    report: Report | None = None
    """Published, unless an earlier call published it."""
    told: Sequence[int] = ()
    """Indices of the recipients of which `report` tells."""
    is_warned: bool = False
    """`report` is a warning of a delay."""
    next_attempt_at_ns: int | None = None
    """Wall clock.  A hint: the engine makes no sync for it."""
    is_held: bool | None = None
    """True holds the message, False releases it, None changes nothing."""
    ends: bool = False
    """Remove the message: no recipient is left, and no report is owed except `report`."""


@dataclass(frozen=True, slots=True)
class SpoolCounts:
    """Free room of a store, and counts of what is in it."""

    free_bytes: int = 0
    free_inodes: int | None = None
    """None if the store does not count inodes."""
    corrupt: int = 0
    """Entries that were set aside, or are damaged or unreadable and were left in place."""
    unclaimed: int = 0
    """About how many messages `claim` has yet to return."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """An entry of the listing of what was set aside."""

    name: str
    """Printable ASCII; not always a queue id."""
    size_bytes: int
    arrival_at_ns: int
    """Wall clock: when a readable message arrived, else when the file was last written; 0 if unknown."""
    reverse_path: str
    recipients_left: int
    reason: str
    """What is wrong with the entry, or that it can be read."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """A message to copy from one spool into another."""

    message: Message
    content: Iterable[bytes]
    """In chunks.  Reading raises Corrupt or Unavailable before the last chunk."""


class Intake(Protocol):
    """The listener's side.  It accepts only its own drafts, and raises TypeError for others."""

    def draft(self) -> Draft:
        """Begin a message, without I/O.  The draft writes and removes its own file, if it needs one."""

    def accept(self, drafts: Sequence[tuple[Draft, Envelope]]) -> list[Full | Unavailable | None]:
        """Publish messages durably as one batch; return for each None, or the error if it is not queued."""

    def room(self) -> int:
        """Return how many bytes new mail may still take; 0 if no message fits.  Raises Unavailable."""

    def close(self) -> None: ...


class Spool(Protocol):
    """The side of the owner of the queue."""

    is_shared: bool
    """Another host may take over a claimed message, so the sender reads each just before it sends it."""

    def claim(self, most: int) -> list[Message]:
        """Return messages that this owner has not claimed yet, oldest first; empty if there is none now.

        After a start these are all queued messages, also held ones, page by page; then what listeners accept.
        So a message comes before the reports about it.  A page has some megabytes of content at most.
        Damaged messages are set aside, reported to `on_corrupt` and left out.  Raises Unavailable.
        """

    def read(self, queue_ids: Sequence[QueueId]) -> list[Message | Absent | Corrupt | Unavailable]:
        """Return claimed messages as they are now.  A message returned as Corrupt was set aside."""

    def content(self, queue_id: QueueId) -> Iterator[bytes]:
        """Yield the content in chunks.  Raises Corrupt before the first octet if the checksum does not match.

        For that, content is read twice; the first reading yields empty chunks.  Raises Corrupt later if the
        second reading differs from the first.  Also raises Absent and Unavailable.
        """

    def settle(self, settlements: Sequence[Settlement]) -> list[Full | Absent | Corrupt | Unavailable | None]:
        """Write what became of messages, as one group; return for each None, or why it failed.

        A failed settlement may be done in part, in the order of `Settlement`.  If it finds no room, its
        relayed recipients are marked all the same: a crash must not send to them again.  The caller repeats
        it unchanged before it asks anything else about that message.
        """

    def adopt(self, adopted: Sequence[Adopted]) -> None:
        """Copy messages of another spool durably into the queue, with their ids, statuses and facts.

        Skips content that is here already.  Raises Full, Unavailable, and what reading the content raises.
        """

    def look(self) -> SpoolCounts:
        """Return free room and counts.  Raises Unavailable."""

    def set_aside(self, most: int) -> list[SetAside]:
        """Return the first `most` entries that were set aside.  Raises Unavailable."""

    def tidy(self) -> int:
        """Remove the files of dead listeners; return how many.  Called hourly.  Raises Unavailable."""

    def close(self) -> None:
        """Release the queue, so that another process may own it."""


class SharedSpool(Spool, Protocol):
    """The queue of several hosts: adds access to messages that are not claimed here.

    A wish is an operator's verb and the states of a message in which it applies.  It is stored with the
    message until the message's owner answers it or releases the message.  All raise Full and Unavailable.
    """

    def others(self, first: str, most: int) -> list[tuple[Message, str]]:
        """Return messages not claimed here from an id on, in order, without content; each with host or ``."""

    def ask(self, queue_ids: Sequence[QueueId], wish: str) -> dict[QueueId, str]:
        """Store a wish in place of any other; return the messages that have it now, with their hosts."""

    def answers(self, queue_ids: Sequence[QueueId]) -> dict[QueueId, str | None]:
        """Return the answers to wishes: None if none came yet, no entry if the message ended without one."""

    def wishes(self) -> dict[str, list[QueueId]]:
        """Return the wishes of other hosts, with the messages claimed here that have them."""

    def answer(self, wish: str, results: Mapping[QueueId, str]) -> None: ...

    def keep_claims(self) -> None:
        """Keep other hosts from claiming what is claimed here, even after `close`: it is copied elsewhere."""
