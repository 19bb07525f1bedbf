"""The listener's side of the queue in PostgreSQL, and how a message becomes rows.

Guarantees: `accept` returns None for a message once it is committed.  A batch is one transaction: if it
fails, none of its messages is queued.  Until then a long draft is in a file of this host.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from threading import Lock
from typing import NamedTuple

from relay.clock import Clock
from relay.mail.envelope import Draft, Envelope, QueueId
from relay.spool.database import DatabaseError
from relay.spool.database.connection import Connection, Database, LastingConnection
from relay.spool.disk.durable import Disk
from relay.spool.errors import kernel_errors
from relay.spool.identity import Identities
from relay.spool.interface import INLINE_BYTES, Full, Unavailable
from relay.spool.message.draft import SpoolDraft, ours
from relay.spool.message.message_file import HEADER_BYTES
from relay.spool.postgresql import IN_A_DATABASE
from relay.spool.root.lock import prepare_root, take_intake_lock

ROOM_BYTES = 1 << 40
"""The room that is reported: the server does not say how much it has."""
PIECES = ("drafts",)


def drafts_of(root: str) -> str:
    return f"{root}/drafts"


def prepare(root: str, disk: Disk) -> None:
    prepare_root(root, disk, IN_A_DATABASE, [drafts_of(root)])


class NewRow(NamedTuple):
    """The columns of a new row of relay.message, and the content of its rows of relay.chunk."""

    queue_id: str
    header: bytes
    envelope: bytes
    statuses: str
    chunks: Iterator[bytes]


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
        self._lock = ExitStack()
        self._lock.callback(disk.close, take_intake_lock(root, disk, IN_A_DATABASE))
        self._root, self._disk, self._clock = root, disk, clock
        self._identities = Identities(clock, random_bytes)
        self._connection = LastingConnection(database)
        self._turn = Lock()

    def draft(self) -> SpoolDraft:
        return new_draft(self._root, self._disk, self._identities.next_id())

    def accept(self, drafts: Sequence[tuple[Draft, Envelope]]) -> list[Full | Unavailable | None]:
        results: list[Full | Unavailable | None] = [None] * len(drafts)
        rows: list[NewRow] = []
        for index, (draft, envelope) in enumerate(drafts):
            try:
                with kernel_errors("message"):
                    rows.append(row_of(ours(draft), envelope, self._disk, self._clock))
            except (Full, Unavailable) as error:
                results[index] = error
        try:
            with self._turn, kernel_errors("message"), self._connection.begin() as connection:
                for row in rows:
                    if not insert(connection, row):
                        # Not seen so far: two hosts drew the same id within a microsecond.
                        raise DatabaseError(f"the queue id {row.queue_id} is already taken")
        except (Full, Unavailable) as error:
            results = [each or error for each in results]
        for draft, _ in drafts:
            draft.discard()
        return results

    def room(self) -> int:
        return ROOM_BYTES

    def close(self) -> None:
        self._connection.close()
        self._lock.close()


def new_draft(root: str, disk: Disk, queue_id: QueueId) -> SpoolDraft:
    return SpoolDraft(queue_id, disk, f"{drafts_of(root)}/{queue_id}", lambda _: None)


def row_of(draft: SpoolDraft, envelope: Envelope, disk: Disk, clock: Clock) -> NewRow:
    """Raise OSError for a draft that cannot be read back."""
    header, tail = draft.frame(envelope, clock)
    return NewRow(draft.queue_id, header, tail, "T" * len(envelope.recipients), _chunks(draft, disk))


def _chunks(draft: SpoolDraft, disk: Disk) -> Iterator[bytes]:
    """Yield the content in chunks of INLINE_BYTES.  Raises OSError, Full and Unavailable."""
    if draft.is_on_disk or draft.content_bytes > INLINE_BYTES:
        draft.spill()
    if draft.fd is None:
        yield draft.take_buffer()
        return
    for at in range(0, draft.content_bytes, INLINE_BYTES):
        yield disk.pread(draft.fd, min(INLINE_BYTES, draft.content_bytes - at), HEADER_BYTES + at)


def insert(connection: Connection, row: NewRow, owner: object = None, fence: int | None = None) -> bool:
    """Insert a message, claimed if it has an owner, without a commit; return False if its id is taken."""
    added = connection.execute(
        "WITH added AS (INSERT INTO relay.message (queue_id, header, envelope, statuses, owner, fence)"
        " VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (queue_id) DO NOTHING RETURNING queue_id)"
        " INSERT INTO relay.chunk SELECT queue_id, 0, %s FROM added RETURNING 1",
        (*row[:4], owner, fence, next(row.chunks, b"")),
        binary=True,
    ).fetchone()
    for number, chunk in enumerate(row.chunks if added else (), start=1):
        statement = "INSERT INTO relay.chunk VALUES (%s, %s, %s)"
        connection.execute(statement, (row.queue_id, number, chunk), binary=True)
    return added is not None
