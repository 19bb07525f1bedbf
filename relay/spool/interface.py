"""What any engine of the spool promises, and the values it speaks in.

Two sides that share nothing but the disk: `Intake` for listeners, in any number of processes, and
`Spool` for the one sender that holds the spool's lock.  Both are synchronous and called from
threads; an engine's methods are called by one thread at a time, except `Intake`, whose
drafts are independent of one another.
tests/engines/spool/conformance.py is the suite that every engine passes.
"""

import enum
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from relay.mail.draft import Draft
from relay.mail.dsn import Notify
from relay.mail.envelope import Envelope, QueueId, Shape
from relay.mail.header import NO_NAMES, Names
from relay.queue.lanes import DEFAULT_LANE
from relay.queue.queued import RecipientsLeft
from relay.queue.routes import WHOLE, Part
from relay.queue.sorting import Sorter
from relay.spool.identity import report_id


class SpoolFault(Exception):  # noqa: N818 - a fault of the disk, met by the spool
    """The disk failed us where its state matters: nothing may be sent until a restart has re-read it."""


class SpoolFull(Exception):  # noqa: N818 - a state, not an error of ours
    """No room, descriptor or memory to write down what happened; the same call may be made again later."""


class SpoolBusy(Exception):  # noqa: N818 - a state, not an error of ours
    """Another sender holds the spool; the text says who."""


class Absent(Exception):  # noqa: N818 - a plain answer
    """There is no such message in the queue."""


class Corrupt(Exception):  # noqa: N818 - what the file is
    """The file is torn, foreign or damaged; the text says how.  Never sent, never deleted."""


class Unreadable(OSError):  # noqa: N818 - a state of the disk
    """The disk does not give us a message's bytes now, which says nothing about what they are."""


class Status(enum.Enum):
    """A recipient's one status byte on disk."""

    TODO = b"T"
    RELAYED = b"D"
    BOUNCED = b"F"
    EXPIRED = b"E"
    DELETED = b"X"
    SUCCESS = b"S"
    """Relayed, and the sender, who asked to be told, is told by us: the upstream offered no DSN."""

    @property
    def is_failure(self) -> bool:
        return self in (Status.BOUNCED, Status.EXPIRED)

    @property
    def is_reported(self) -> bool:
        """Whether the sender may be owed a report about it."""
        return self.is_failure or self is Status.SUCCESS


_REPORTED = frozenset(status for status in Status if status.is_reported)
RECIPIENTS_SHOWN = 3
MOST_RUNS = 64


class Entry(NamedTuple):
    """A queued message as the scheduler keeps it in memory: small, no content."""

    queue_id: QueueId
    reverse_path: str
    size_bytes: int
    arrival_at_ns: int
    """Wall clock."""
    recipients_left: int
    next_attempt_at_ns: int | None
    """Wall clock; a hint kept over restarts.  None: never attempted, as far as is known."""
    is_held: bool = False
    is_warned: bool = False
    """The sender was told that it is late."""
    recipients_shown: tuple[str, ...] = ()
    """The first few that are left, for a listing."""
    client: str = ""
    domains: tuple[tuple[str, int], ...] = ()
    """Of the recipients left, in their order: how many of one domain there are in a row; see `runs`."""
    lane: str = DEFAULT_LANE
    """By the sorter that was given when it was read."""
    boot_id: str = ""
    """The boot of its acceptance, and when in that boot, as the envelope has them."""
    boottime_ns: int = 0
    owes_report: bool = False
    """The sender was not told yet of recipients that failed, or whose success it asked for."""
    warns: bool = True
    """Of some recipient left the sender wants to be told that it is late."""
    user: str = ""
    """Who had logged in to hand it over, or nobody."""
    names: Names = NO_NAMES
    """As `Message` has them."""
    parts: tuple["PartEntry", ...] = ()
    """Of a message whose recipients left go by several routes; none of them is empty."""
    whole: Part = WHOLE
    """Its route, where all of its recipients left go by one."""


class PartEntry(NamedTuple):
    part: Part
    recipients_left: int
    left: RecipientsLeft


def runs(addresses: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Return the domains of addresses as `@` and the domain, and how many of each there are in a row.

    At most MOST_RUNS: what follows counts to the last, since this is for an estimate.
    """
    counted: list[tuple[str, int]] = []
    for address in addresses:
        domain = "@" + address.rpartition("@")[2].lower()
        if counted and (counted[-1][0] == domain or len(counted) == MOST_RUNS):
            counted[-1] = (counted[-1][0], counted[-1][1] + 1)
        else:
            counted.append((domain, 1))
    return tuple(counted)


@dataclass(frozen=True, slots=True)
class OwedReport:
    """The report that a sender is owed now: of failures, and of successes that it asked for."""

    report_id: QueueId
    indices: tuple[int, ...]
    """Of the recipients that it tells of."""
    statuses: tuple[Status, ...]
    """What became of each of them."""


def owed_report(
    queue_id: QueueId, envelope: Envelope, statuses: Sequence[Status], reported: Container[int]
) -> OwedReport | None:
    """Return the report about recipients that are not `reported`, as far as the sender wants to be told.

    None for nothing to tell, and to `<>`.
    Its id follows from its first recipient, and is that of the last report where no recipient is left.
    """
    if envelope.is_null or _REPORTED.isdisjoint(statuses):
        return None
    indices = tuple(
        i
        for i, status in enumerate(statuses)
        if status in _REPORTED and i not in reported and is_told_of(envelope, i, status)
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
    is_held: bool
    is_warned: bool
    content: bytes | None
    """Checked against its checksum; None when longer than INLINE_BYTES: see `Spool.content`."""
    next_attempt_at_ns: int | None = None
    lane: str = DEFAULT_LANE
    reported: frozenset[int] = frozenset()
    """Recipients whose sender was told what became of them, while others were left."""
    names: Names = NO_NAMES
    """Of its header, as `names_of` finds them there; also of a message whose content is not in memory."""
    parts: tuple[Part, ...] = (WHOLE,)
    """By the sorter that was given when it was read."""

    @property
    def owed_report(self) -> OwedReport | None:
        return owed_report(self.queue_id, self.envelope, self.statuses, self.reported)

    @property
    def left(self) -> tuple[int, ...]:
        """Return the indices of the recipients still to do."""
        return tuple([i for i, status in enumerate(self.statuses) if status is Status.TODO])

    @property
    def entry(self) -> Entry:
        left, envelope = self.left, self.envelope
        parts = [(part, its) for part in self.parts if (its := part.left(left))]
        return Entry(
            self.queue_id,
            envelope.reverse_path,
            self.shape.size_bytes,
            envelope.arrival_at_ns,
            len(left),
            self.next_attempt_at_ns,
            self.is_held,
            self.is_warned,
            self._shown(left),
            envelope.client,
            self._runs(left),
            self.lane,
            boot_id=envelope.boot_id,
            boottime_ns=envelope.boottime_ns,
            owes_report=self.owed_report is not None,
            warns=_is_any_told_of_delay(envelope, left),
            user=envelope.user or "",
            names=self.names,
            parts=() if len(parts) < 2 else tuple([self._part_entry(part, its) for part, its in parts]),
            whole=parts[0][0].whole if len(parts) == 1 else WHOLE,
        )

    def _part_entry(self, part: Part, left: Sequence[int]) -> PartEntry:
        return PartEntry(part, len(left), RecipientsLeft(self._runs(left), self._shown(left)))

    def _shown(self, left: Sequence[int]) -> tuple[str, ...]:
        return tuple([self.envelope.recipients[index] for index in left[:RECIPIENTS_SHOWN]])

    def _runs(self, left: Iterable[int]) -> tuple[tuple[str, int], ...]:
        recipients = self.envelope.recipients
        return runs([recipients[index] for index in left])


def _is_any_told_of_delay(envelope: Envelope, indices: Sequence[int]) -> bool:
    if not envelope.dsn.recipients:
        # Asked alike for all: of a long list the first says it.
        indices = indices[:1]
    for index in indices:  # noqa: SIM110 - asked of each message that comes: no generator
        if envelope.tells_of(index, Notify.DELAY):
            return True
    return False


INLINE_BYTES = 256 * 1024
"""Content up to here is read at once; longer content is streamed in chunks of this size."""


DEFERRED = "deferred"


@dataclass(frozen=True, slots=True)
class Note:
    """Why one recipient failed, or by what it was relayed: durable before its status byte says so.

    Or why it is deferred: a hint.
    """

    index: int
    """Which recipient of the envelope."""
    status: str
    """Enhanced status code, RFC 3463."""
    reason: str
    """`bounced`, `expired`, `operator`, `relayed`, or DEFERRED."""
    diagnostic: str | None
    """The upstream's reply, or what else there is to say; printable ASCII."""
    remote: str | None
    """The upstream, as `host`."""
    at_ns: int
    """Wall clock."""
    attempts: int = field(default=1, compare=False)
    """How often the recipient was tried by then, as far as is known; counted when notes are read."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Recipients that ever came in, and what became of them; kept over restarts."""

    accepted: int = 0
    relayed: int = 0
    bounced: int = 0
    expired: int = 0
    deleted: int = 0
    queued: int = 0
    """Those to do, counted from the message files themselves, not from the account."""

    @property
    def imbalance(self) -> int:
        """Return how many are unaccounted for; anything but 0 is a fault of ours."""
        return self.accepted - self.relayed - self.bounced - self.expired - self.deleted - self.queued


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a start found."""

    corrupt: int
    """Files in corrupt/, old and new, and those that had to be left where they are."""
    abandoned: int
    """Drafts of dead listeners that were removed; nobody was promised anything."""
    missing_recipients: int
    """Recipients that the ledger knows as queued and the disk does not: must be 0."""
    corrupt_recipients: int
    """Recipients of known messages that are set aside: still on disk, for a human being."""
    accepted: int
    """Messages that no sender had taken yet."""
    held: int
    resumed: int
    """Queued messages of which some recipients are done and some are not."""
    finished: int
    """Those with no recipient left, of which only the end was missing."""
    set_aside: int
    """Files that this start moved to corrupt/."""
    removed_recipients: int
    """Recipients of messages that somebody removed from corrupt/: counted as deleted now."""
    damaged_lines: int
    """Of the account."""

    @property
    def audit(self) -> dict[str, int]:
        return {
            "held": self.held,
            "taken": self.accepted,
            "resumed": self.resumed,
            "finished": self.finished,
            "abandoned": self.abandoned,
            "set_aside": self.set_aside,
            "corrupt": self.corrupt,
            "removed_recipients": self.removed_recipients,
            "missing_recipients": self.missing_recipients,
            "damaged_ledger_lines": self.damaged_lines,
        }


@dataclass(frozen=True, slots=True)
class SetAside:
    """A file in corrupt/, or one that had to be left where it is, as a listing shows it."""

    name: str
    """Printable ASCII; in general no queue id."""
    size_bytes: int
    arrival_at_ns: int
    """Wall clock; of a message that can be read when it arrived, else when the file was last written."""
    reverse_path: str
    recipients_left: int
    reason: str
    """What is wrong with it; of what can be read whole, that it can."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """A message on its way from one spool into another, with all that is known of it."""

    message: Message
    notes: Sequence[Note]
    """The last word on each recipient, with its attempts."""
    content: Iterable[bytes]
    """In chunks; Corrupt and Unreadable are raised before the last one."""


@dataclass(frozen=True, slots=True)
class LedgerAccount:
    """What a spool knows besides its messages, on its way into another."""

    ended: Totals
    """Of the recipients whose messages are gone: what came in, and what became of them."""
    reports_gone: frozenset[QueueId]
    """Reports about messages still queued that were relayed or ended: not to be published again."""
    aside: Mapping[QueueId, int]
    """Messages in corrupt/ that count as queued, with how many recipients."""


class Intake(Protocol):
    """The listener's side.  It takes the drafts that it gave, and no others: TypeError."""

    def draft(self) -> Draft:
        """Begin a message; no I/O."""

    def spill(self, draft: Draft) -> None:
        """Write what is buffered to disk.  Raises OSError; the draft is discarded then."""

    def is_on_disk(self, draft: Draft) -> bool:
        """Whether something of a draft is written; else to discard it is no I/O."""

    def discard(self, draft: Draft) -> None:
        """Forget a draft and what it wrote; never raises."""

    def accept(self, drafts: Sequence[tuple[Draft, Envelope]]) -> list[OSError | None]:
        """Publish messages durably as one batch; an error, and nothing queued, or None, for each."""

    def free(self) -> tuple[int, int | None]:
        """Return free bytes and free inodes where messages are stored."""


class Spool(Protocol):
    """The sender's side.

    Methods raise SpoolFault when the disk fails, SpoolFull when it has no room, Absent for
    unknown ids.  What changes state may be called again with the same arguments.

    What `note`, `mark`, `mark_warned`, `mark_reported`, `publish_report`, `finish`, `hold` and `release`
    change is seen by every read at once, and durable when `commit` returns; an engine may make each durable
    earlier.  What `recover` returns is durable.
    """

    def commit(self) -> None:
        """Make durable what was called since the last commit, in the order of the calls and as one group.

        Hints (`postpone`, `keep_replies`) go along; for them alone an engine need not wait for the disk.
        Raises SpoolFull: then this made nothing of it durable; it stays called, reads go on seeing
        it, and `commit` may be called again, also with more behind it.
        """

    def recover(
        self, sorter: Sorter | None = None, on_step: Callable[[], None] = lambda: None
    ) -> Generator[list[Entry], None, Recovery]:
        """Read everything there is, finish what can be finished, set aside what is damaged.

        Yields everything queued, also held, some messages at a time, the oldest first as far as their ids
        tell; with `recipients_left == 0` where only the end is missing.  Between two batches every other
        method may be called, with the messages that were yielded or taken; what came in that way is
        yielded no more, what ended comes not back.  An empty batch: descriptors or memory are lacking now,
        and the next may be asked for a little later; before the first one that is an error.
        Until the end, `totals` has of what is not read yet what the account says.
        `on_step` is called for each file or folder that was dealt with: the disk still answers.
        """

    def unread_count(self) -> int:
        """Return how many messages `recover` has yet to read, about; 0 before it began and at its end."""

    def take(self, most: int, sorter: Sorter | None = None) -> list[Entry]:
        """Take up to `most` messages into the queue: newly accepted, or left by the start."""

    def sort(self, queue_ids: Sequence[QueueId], sorter: Sorter) -> dict[QueueId, Entry]:
        """Return each message by another sorter; one that cannot be read is met when its turn comes."""

    def at_hand(self, queue_id: QueueId) -> Message | None:
        """Return a message that `take` left in memory and that has not changed since, or None.

        No I/O; the one method that may be called from any thread.
        """

    def load(self, queue_id: QueueId) -> Message:
        """Read a message.  Raises Corrupt after setting it aside."""

    def content(self, queue_id: QueueId, *, is_checked: bool = True) -> Generator[bytes, None, None]:
        """Stream the content; raises Corrupt before the first octet if any is wrong.

        All of it is read twice for that; an empty chunk comes for each that is checked.  What is not
        checked is for a report to quote the beginning of, and for nothing else.
        """

    def note(self, notes: Mapping[QueueId, Sequence[Note]]) -> None:
        """Keep notes, durably by `commit`."""

    def keep_replies(self, queue_id: QueueId, replies: Sequence[Note]) -> None:
        """Keep what DEFERRED recipients were told as hints: not durable, bounded in size, raises nothing."""

    def notes(self, queue_id: QueueId) -> list[Note]:
        """Return the last note about each recipient; some may be missing after damage."""

    def mark(self, marks: Mapping[QueueId, Mapping[int, Status]]) -> None:
        """Set status bytes, each verified to be TODO and of that recipient; durable by `commit`.

        Raises Absent or Corrupt about one message after those of all others were set.
        """

    def mark_warned(self, queue_id: QueueId) -> None:
        """Remember that the sender was told of the delay; durable by `commit`."""

    def owed_report(self, queue_id: QueueId) -> OwedReport | None:
        """Return the report that is owed now by what is marked; None where none is."""

    def mark_reported(self, queue_id: QueueId, told: Sequence[int]) -> None:
        """Remember that the sender was told of these recipients, by one report; durable by `commit`.

        A crash between the report and this leaves the report: `recover` and `take` do the rest by its id,
        before another recipient is marked.
        """

    def postpone(self, queue_id: QueueId, next_attempt_at_ns: int) -> None:
        """Keep the next attempt as a hint; not durable, never raises SpoolFault."""

    def publish_report(self, queue_id: QueueId, envelope: Envelope, content: bytes) -> bool:
        """Queue a report under its derived id, durably by `commit`; return False if it is there already.

        Raises SpoolFull where there is no room for it; the message that it is about must stay then.
        """

    def make_room(self) -> bool:
        """Give up the room that is kept for a full disk; return whether there was any."""

    def finish(self, queue_ids: Sequence[QueueId]) -> None:
        """Remove messages with nothing left to do, counting them in the ledger first."""

    def hold(self, *queue_ids: QueueId) -> None:
        """Set messages aside, durably by `commit`; one that is held stays so.

        Raises Absent about one after all others were moved.
        """

    def release(self, *queue_ids: QueueId) -> None:
        """Bring held messages back, durably by `commit`; the others stay so.  Raises as `hold` does."""

    def is_held(self, queue_id: QueueId) -> bool:
        """Return whether a message is set aside now; no I/O."""

    def account(self) -> LedgerAccount:
        """Return what another spool has to know beside the messages."""

    def adopt(self, adopted: Sequence[Adopted], account: LedgerAccount | None = None) -> None:
        """Put messages of another spool into the queue under their ids, as they are there.

        And go on with its account, once.  Durable by `commit`.  What is here already stays as it is.
        Raises what `content` raises.
        """

    def clean_up(self) -> int:
        """Remove what dead listeners left; return how much.  Run hourly.

        The next calls of `take` read again what a start had to leave.
        """

    def totals(self) -> Totals:
        """Return what ever came in and went, messages still queued included as far as they got."""

    def corrupt_count(self) -> int: ...

    def set_aside_files(self, most: int) -> list[SetAside]:
        """Return what is left or set aside, the first `most`, with why; damage never raises."""

    def accepted_count(self) -> int:
        """Return how many accepted messages no sender has taken yet."""

    def free(self) -> tuple[int, int | None]:
        """Return free bytes and free inodes where messages are stored."""

    def close(self) -> None:
        """Let another sender have the spool.  What was not committed is as lost as by a crash."""
