"""The listener's side of the queue in PostgreSQL, and how a message becomes rows.

Guarantees: `accept` returns None for a message once it is committed.  A batch is one transaction: if it
fails, none of its messages is queued.  Until then a long draft is in a file of this host.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from relay.clock import Clock
from relay.mail.draft import Draft
from relay.mail.envelope import Envelope, QueueId
from relay.spool.database import DatabaseError
from relay.spool.database.connection import Connection, Database, LastingConnection
from relay.spool.disk.durable import Disk
from relay.spool.errors import kernel_errors
from relay.spool.identity import Identities
from relay.spool.interface import INLINE_BYTES, Full, Unavailable
from relay.spool.message.draft import SpoolDraft, ours
from relay.spool.message.message_file import HEADER_BYTES
from relay.spool.postgresql import IN_A_DATABASE
from relay.spool.root.lock import as_intake, prepare_root

ROOM_BYTES = 1 << 40
"""The room that is reported: the server does not say how much it has."""


PIECES = ("drafts",)


def drafts_of(root: str) -> str:
    return f"{root}/drafts"


def prepare(root: str, disk: Disk) -> None:
    prepare_root(root, disk, IN_A_DATABASE, [drafts_of(root)])


@dataclass(slots=True)
class MessageRow:
    """The columns of relay.message, and the content of rows of relay.chunk."""

    queue_id: str
    header: bytes
    envelope: bytes
    content: bytes | None
    statuses: str
    notes: bytes = b""
    is_held: bool = False
    is_warned: bool = False
    next_attempt_at_ns: int | None = None
    chunks: Iterable[bytes] = ()


class PostgresqlIntake:
    """Call `draft` from one thread, the rest from any."""

    def __init__(
        self,
        root: str,
        disk: Disk,
        clock: Clock,
        *,
        database: Database,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._lock_fd: int | None = as_intake(root, disk, IN_A_DATABASE)
        self._root, self._disk, self._clock = root, disk, clock
        self._identities = Identities(clock, random_bytes)
        self._connection = LastingConnection(database)
        self._turn = Lock()

    def draft(self) -> SpoolDraft:
        return _new_draft(self._root, self._disk, self._identities.next_id())

    def accept(self, drafts: Sequence[tuple[Draft, Envelope]]) -> list[Full | Unavailable | None]:
        results: list[Full | Unavailable | None] = [None] * len(drafts)
        rows: list[MessageRow] = []
        for index, (draft, envelope) in enumerate(drafts):
            try:
                with kernel_errors("message"):
                    rows.append(row_of(ours(draft), envelope, self._disk, self._clock))
            except (Full, Unavailable) as error:
                results[index] = error
        failure = self._commit(rows)
        for draft, _ in drafts:
            draft.discard()
        return [each or failure for each in results]

    def room(self) -> int:
        return ROOM_BYTES

    def close(self) -> None:
        self._connection.close()
        if self._lock_fd is not None:
            self._disk.close(self._lock_fd)
            self._lock_fd = None

    def _commit(self, rows: Sequence[MessageRow]) -> Full | Unavailable | None:
        try:
            with self._turn, kernel_errors("message"), transaction(self._connection) as connection:
                for row in rows:
                    if not insert(connection, row):
                        # Not seen so far: two hosts drew the same id within a microsecond.
                        raise DatabaseError(f"the queue id {row.queue_id} is already taken")
        except (Full, Unavailable) as error:
            return error
        return None


@contextlib.contextmanager
def transaction(lasting: LastingConnection) -> Iterator[Connection]:
    """Begin a transaction, and commit it at the end.  Raises Full and Unavailable."""
    try:
        with lasting.begin() as connection:
            yield connection
    except DatabaseError as error:
        raise (Full if error.is_full else Unavailable)(f"the database: {error}") from error


def row_of(draft: SpoolDraft, envelope: Envelope, disk: Disk, clock: Clock) -> MessageRow:
    """Raise OSError for a draft that cannot be read back."""
    header, tail = draft.frame(envelope, clock)
    row = MessageRow(draft.queue_id, header, tail, None, "T" * len(envelope.recipients))
    if draft.content_bytes <= INLINE_BYTES:
        row.content = b"".join(_chunks(draft, disk))
    else:
        row.chunks = _chunks(draft, disk)
    return row


@contextlib.contextmanager
def rows_for(
    queue_id: QueueId, envelope: Envelope, content: Iterable[bytes], *, root: str, disk: Disk, clock: Clock
) -> Iterator[MessageRow]:
    """Give the rows of a report or an adopted message.  Raises Full, Unavailable, and errors of `content`."""
    draft = _new_draft(root, disk, queue_id)
    try:
        with kernel_errors("message"):
            draft.fill(content)
            yield row_of(draft, envelope, disk, clock)
    finally:
        draft.discard()


def _new_draft(root: str, disk: Disk, queue_id: QueueId) -> SpoolDraft:
    return SpoolDraft(queue_id, disk, f"{drafts_of(root)}/{queue_id}", lambda _: None)


def _chunks(draft: SpoolDraft, disk: Disk) -> Iterator[bytes]:
    """Yield the content in chunks of INLINE_BYTES."""
    if draft.fd is not None:
        draft.spill()
        for at in range(0, draft.content_bytes, INLINE_BYTES):
            yield disk.pread(draft.fd, min(INLINE_BYTES, draft.content_bytes - at), HEADER_BYTES + at)
        return
    whole = draft.take_buffer()
    yield from (whole[at : at + INLINE_BYTES] for at in range(0, len(whole), INLINE_BYTES))


def insert(connection: Connection, row: MessageRow, who: dict[str, Any] | None = None) -> bool:
    """Insert a message, claimed by `who` if given, without a commit; return False if its id is taken."""
    owner, fence = (None, None) if who is None else (who["owner"], who["fence"])
    added = connection.execute(
        "INSERT INTO relay.message (queue_id, header, envelope, content, statuses, owner, fence)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (queue_id) DO NOTHING RETURNING 1",
        (row.queue_id, row.header, row.envelope, row.content, row.statuses, owner, fence),
        binary=True,
    ).fetchone()
    if added is None:
        return False
    for number, chunk in enumerate(row.chunks):
        connection.execute(
            "INSERT INTO relay.chunk VALUES (%s, %s, %s)", (row.queue_id, number, chunk), binary=True
        )
    return True
