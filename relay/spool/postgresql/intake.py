"""The listener's side of the queue in PostgreSQL, and how a message becomes rows.

Guarantees: `accept` returns None for a message once it is committed; of a batch each message by itself where
one cannot be stored.  A draft that is long waits in a file of this host that has no name, so a listener that
dies leaves nothing.
"""

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, BinaryIO

import psycopg

from relay.clock import Clock
from relay.mail.draft import Draft
from relay.mail.envelope import Envelope, QueueId, Shape
from relay.spool.database.connection import Connection, Database, DatabaseError, commit, in_words
from relay.spool.disk.durable import Disk
from relay.spool.identity import Identities
from relay.spool.interface import INLINE_BYTES, Full, Unavailable
from relay.spool.message import message_file
from relay.spool.postgresql import IN_A_DATABASE
from relay.spool.root.lock import as_intake, prepare_root

ROOM_BYTES = 1 << 40
"""How much may be taken: the server does not say how much room it has."""


def prepare(root: str, disk: Disk) -> None:
    prepare_root(root, disk, IN_A_DATABASE, ())


@dataclass(slots=True)
class Row:
    """A message, in the columns of relay.message."""

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


class PostgresqlDraft:
    def __init__(self, queue_id: QueueId) -> None:
        self.queue_id = queue_id
        self.content_bytes = self.crc = self.buffered_bytes = 0
        self.eight_bit = self.is_given_up = False
        self._buffer: list[bytes] = []
        self._file: BinaryIO | None = None

    def append(self, chunk: bytes) -> None:
        self.content_bytes += len(chunk)
        self.buffered_bytes += len(chunk)
        self.crc = message_file.checksum(chunk, self.crc)
        self.eight_bit = self.eight_bit or not chunk.isascii()
        self._buffer.append(chunk)

    @property
    def is_on_disk(self) -> bool:
        return self._file is not None

    def spill(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `discard`
            self._file.write(b"".join(self._buffer))
        except OSError as error:
            self.discard()
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise (Full if is_full else Unavailable)(str(error.strerror)) from error
        self._buffer, self.buffered_bytes = [], 0

    def discard(self) -> None:
        self.is_given_up = True
        self._buffer, self.buffered_bytes = [], 0
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def chunks(self) -> Iterator[bytes]:
        """Yield the content in pieces of INLINE_BYTES."""
        if self._file is None:
            whole = b"".join(self._buffer)
            yield from (whole[at : at + INLINE_BYTES] for at in range(0, len(whole), INLINE_BYTES))
            return
        self.spill()
        self._file.seek(0)
        while chunk := self._file.read(INLINE_BYTES):
            yield chunk
        self._file.seek(0, os.SEEK_END)


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
        self._disk, self._clock, self._database = disk, clock, database
        self._identities = Identities(clock, random_bytes)
        self._connection: Connection | None = None
        self._turn = Lock()

    def draft(self) -> PostgresqlDraft:
        return PostgresqlDraft(self._identities.next_id())

    def accept(self, drafts: Sequence[tuple[Draft, Envelope]]) -> list[Full | Unavailable | None]:
        rows: list[Row | Unavailable] = []
        for draft, envelope in drafts:
            if not isinstance(draft, PostgresqlDraft):
                raise TypeError("a draft of another store")
            try:
                if draft.is_given_up:
                    raise ValueError("a draft that was given up")
                shape = Shape(draft.content_bytes, draft.eight_bit, envelope.smtputf8)
                rows.append(
                    row_of(draft.queue_id, envelope, shape, draft.crc, draft.chunks(), clock=self._clock)
                )
            except ValueError as error:
                rows.append(Unavailable(f"an envelope that cannot be stored: {error}"))
        failure = self._commit([row for row in rows if isinstance(row, Row)])
        for draft, _ in drafts:
            draft.discard()
        return [row if isinstance(row, Unavailable) else failure for row in rows]

    def room(self) -> int:
        return ROOM_BYTES

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._lock_fd is not None:
            self._disk.close(self._lock_fd)
            self._lock_fd = None

    def _commit(self, rows: Sequence[Row]) -> Full | Unavailable | None:
        with self._turn:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = self._database.connect()
                for row in rows:
                    insert(self._connection, row)
                commit(self._connection)
            except (psycopg.Error, DatabaseError, OSError) as error:
                if self._connection is not None:
                    self._connection.close()
                self._connection = None
                if isinstance(error, psycopg.errors.DiskFull):
                    return Full(in_words(error))
                return Unavailable(f"the database: {in_words(error)}")
        return None


def row_of(
    queue_id: QueueId, envelope: Envelope, shape: Shape, crc: int, chunks: Iterable[bytes], *, clock: Clock
) -> Row:
    """Raise ValueError for what could not be read back."""
    if not envelope.boot_id:
        envelope = replace(envelope, boot_id=clock.boot_id(), boottime_ns=clock.boottime_ns())
    tail = message_file.encode_envelope(queue_id, envelope)
    count = len(envelope.recipients)
    header = message_file.encode_header(shape.size_bytes, tail, count, shape, crc)
    statuses = "T" * count
    if shape.size_bytes <= INLINE_BYTES:
        return Row(queue_id, header, tail, b"".join(chunks), statuses)
    return Row(queue_id, header, tail, None, statuses, chunks=chunks)


@contextlib.contextmanager
def stored(queue_id: QueueId, envelope: Envelope, content: Iterable[bytes], clock: Clock) -> Iterator[Row]:
    """Give a message of ours, or of another spool, as rows."""
    draft = PostgresqlDraft(queue_id)
    try:
        for chunk in content:
            draft.append(chunk)
            if draft.buffered_bytes > INLINE_BYTES:
                draft.spill()
        shape = Shape(draft.content_bytes, draft.eight_bit, envelope.smtputf8)
        yield row_of(queue_id, envelope, shape, draft.crc, draft.chunks(), clock=clock)
    finally:
        draft.discard()


def insert(connection: Connection, row: Row, who: dict[str, Any] | None = None) -> None:
    """Add a message to the present transaction, unless it is there."""
    owner, fence = (None, None) if who is None else (who["owner"], who["fence"])
    added = connection.execute(
        "INSERT INTO relay.message (queue_id, header, envelope, content, statuses, owner, fence)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (queue_id) DO NOTHING RETURNING 1",
        (row.queue_id, row.header, row.envelope, row.content, row.statuses, owner, fence),
        binary=True,
    ).fetchone()
    if added is None:
        return
    for number, chunk in enumerate(row.chunks):
        connection.execute(
            "INSERT INTO relay.chunk VALUES (%s, %s, %s)", (row.queue_id, number, chunk), binary=True
        )
