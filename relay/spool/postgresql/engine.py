"""The queue in PostgreSQL: the owner's side, one of several hosts.

Guarantees: what a call of `settle` did is one transaction, so of a crash or a lost connection all of it is
there or nothing, and to ask again is safe.  A message is claimed by one host at a time: by its identity,
which its folder keeps, and by a fence, which is another one for each process.  What another host took over
is absent here: a host that was stopped settles nothing.  A claim holds for its lease after each call,
and from then on until another host takes the message; a clean stop ends the lease.
Assumes: the folder of `root` is this host's own; its lock keeps a second process of this host away.
Does not: know how much room the server has; where a statement says that there is none, it is Full.
"""

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

from relay.clock import Clock
from relay.mail.envelope import QueueId
from relay.spool.base import PAGE_BYTES, Failure, as_it_is
from relay.spool.database import DatabaseError
from relay.spool.database.connection import Connection, Database, LastingConnection, one
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.replacing import replace_file
from relay.spool.errors import kernel_errors
from relay.spool.interface import (
    HEAD_BYTES,
    INLINE_BYTES,
    Absent,
    Adopted,
    Corrupt,
    Full,
    Message,
    SetAside,
    Settlement,
    SpoolLook,
    Status,
    Unavailable,
)
from relay.spool.message import message_file, notes
from relay.spool.message.draft import remove_abandoned
from relay.spool.message.message_file import checksum, decode_header
from relay.spool.postgresql import IN_A_DATABASE
from relay.spool.postgresql.intake import ROOM_BYTES, MessageRow, drafts_of, insert, prepare, refusal, stored
from relay.spool.root.lock import take_lock
from relay.spool.root.quarantine import OnCorrupt

MISMATCH = "the content does not match its checksum"
_BY_LETTER = {status.value.decode(): status for status in Status}
_COLUMNS = "queue_id, header, envelope, content, statuses, notes, is_held, is_warned, next_attempt_at_ns"
_OURS = "owner = %(owner)s AND fence = %(fence)s AND corrupt IS NULL"
_FREE = (
    "corrupt IS NULL AND (owner IS NULL OR (owner = %(owner)s AND fence < %(fence)s)"
    " OR owner IN (SELECT identity FROM relay.owner WHERE until < clock_timestamp()))"
)


class PostgresqlSpool:
    is_shared = True

    def __init__(
        self,
        root: str,
        disk: Disk,
        clock: Clock,
        on_corrupt: OnCorrupt,
        *,
        database: Database,
        host: str,
        lease_seconds: int,
    ) -> None:
        """`lease_seconds`: twice the longest transaction, so that nobody takes over what is in flight.

        Raise SpoolBusy, OSError, ValueError, and Unavailable where the database cannot be asked.
        """
        prepare(root, disk)
        self._drafts = drafts_of(root)
        self._stored = partial(stored, root=root, disk=disk, clock=clock)
        self._disk, self._on_corrupt = disk, on_corrupt
        self._connection = LastingConnection(database)
        self._lock_fd: int | None = take_lock(root, disk, IN_A_DATABASE)
        self._who: dict[str, Any] = {}
        try:
            lease = f"{lease_seconds} seconds"
            self._who |= {"owner": _identity(root, disk), "host": host, "fence": 0, "lease": lease}
            with self._asking() as connection:
                (self._who["fence"],) = one(
                    connection,
                    "INSERT INTO relay.owner VALUES (%(owner)s, %(host)s, 1, clock_timestamp() + %(lease)s)"
                    " ON CONFLICT (identity) DO UPDATE SET host = excluded.host, until = excluded.until,"
                    " fence = relay.owner.fence + 1 RETURNING fence",
                    self._who,
                )
        except BaseException:
            self.close()
            raise

    def claim(self, most: int) -> list[Message]:
        with self._asking() as connection:
            self._renew(connection)
            found = connection.execute(
                f"SELECT queue_id, octet_length(content) FROM relay.message WHERE {_FREE}"
                " ORDER BY queue_id LIMIT %(most)s FOR UPDATE SKIP LOCKED",
                self._who | {"most": most},
            ).fetchall()
            page, size_bytes = [], 0
            for queue_id, content_bytes in found:
                if size_bytes >= PAGE_BYTES:
                    break
                page.append(queue_id)
                size_bytes += HEAD_BYTES if content_bytes is None else content_bytes
            connection.execute(
                "UPDATE relay.message SET owner = %(owner)s, fence = %(fence)s"
                " WHERE queue_id = ANY(%(page)s)",
                self._who | {"page": page},
            )
            messages = self._read(connection, page)
        found_now = [messages.get(each) for each in page]
        return [each for each in found_now if isinstance(each, Message)]

    def read(self, queue_ids: Sequence[QueueId]) -> list[Message | Absent | Corrupt | Unavailable]:
        try:
            with self._asking() as connection:
                found = self._read(connection, queue_ids)
        except Unavailable as trouble:
            return [trouble] * len(queue_ids)
        return [found.get(each) or Absent(each) for each in queue_ids]

    def content(self, queue_id: QueueId) -> Iterator[bytes]:
        (message,) = self.read([queue_id])
        if not isinstance(message, Message):
            raise message
        if message.content is not None:
            yield message.content
            return
        checksums: list[int] = []
        for crc, _ in self._chunks(message):
            checksums.append(crc)
            yield b""
        with self._asking() as connection:
            (header,) = one(connection, "SELECT header FROM relay.message WHERE queue_id = %s", (queue_id,))
        if checksums[-1] != decode_header(bytes(header)).content_crc:
            self._damaged(queue_id)
        for expected, (crc, chunk) in zip(checksums, self._chunks(message), strict=True):
            if crc != expected:
                self._damaged(queue_id)
            yield chunk

    def settle(self, settlements: Sequence[Settlement]) -> list[Failure | None]:
        try:
            return self._settle(settlements)
        except Full as full:
            # Relayed recipients are marked all the same: a crash must not send to them again.
            with contextlib.suppress(Full, Unavailable):
                self._settle([_relayed_of(each) for each in settlements])
            return [full] * len(settlements)
        except Unavailable as trouble:
            return [trouble] * len(settlements)

    def adopt(self, adopted: Sequence[Adopted]) -> None:
        with self._asking() as connection:
            for each in adopted:
                message = each.message
                with self._stored(message.queue_id, message.envelope, each.content) as row:
                    insert(connection, row, self._who)
        for failure in self.settle([as_it_is(each.message) for each in adopted]):
            if failure is not None:
                raise failure

    def look(self) -> SpoolLook:
        with self._asking() as connection:
            self._renew(connection)
            aside, unclaimed = one(
                connection,
                f"SELECT count(*) FILTER (WHERE corrupt IS NOT NULL), count(*) FILTER (WHERE {_FREE})"
                " FROM relay.message",
                self._who,
            )
            return SpoolLook(2 * ROOM_BYTES, None, aside, unclaimed)

    def set_aside(self, most: int) -> list[SetAside]:
        with self._asking() as connection:
            rows = connection.execute(
                "SELECT queue_id, octet_length(content), corrupt FROM relay.message"
                " WHERE corrupt IS NOT NULL ORDER BY queue_id LIMIT %s",
                (most,),
            ).fetchall()
        return [SetAside(queue_id, size or 0, 0, "", 0, why) for queue_id, size, why in rows]

    def tidy(self) -> int:
        with kernel_errors("tidy"):
            return remove_abandoned(self._disk, self._drafts)

    def close(self) -> None:
        """Let any host take over what is claimed here, at once."""
        if self._who.get("fence"):
            with contextlib.suppress(Full, Unavailable), self._asking() as connection:
                connection.execute(
                    "UPDATE relay.owner SET until = clock_timestamp()"
                    " WHERE identity = %(owner)s AND fence = %(fence)s",
                    self._who,
                )
        self._connection.close()
        if self._lock_fd is not None:
            self._disk.close(self._lock_fd)
            self._lock_fd = None

    def _settle(self, settlements: Sequence[Settlement]) -> list[Failure | None]:
        with self._asking() as connection:
            self._renew(connection)
            wanted = [each.queue_id for each in settlements]
            rows = connection.execute(
                f"SELECT {_COLUMNS}, {_OURS} FROM relay.message WHERE queue_id = ANY(%(wanted)s)"
                " ORDER BY queue_id FOR UPDATE",
                self._who | {"wanted": wanted},
            ).fetchall()
            there = {row[0]: MessageRow(*row[:-1]) if row[-1] else None for row in rows}
            results: list[Failure | None] = []
            for each in settlements:
                row = there.get(each.queue_id)
                if row is None:
                    # What ended before is ended.
                    is_done = each.ends and each.queue_id not in there
                    results.append(None if is_done else Absent(each.queue_id))
                    continue
                try:
                    self._settle_one(connection, each, row)
                    results.append(None)
                except Corrupt as fault:
                    self._set_aside(connection, each.queue_id, str(fault))
                    results.append(fault)
            ended = [
                each.queue_id
                for each, result in zip(settlements, results, strict=True)
                if each.ends and result is None
            ]
            connection.execute("DELETE FROM relay.message WHERE queue_id = ANY(%s)", (ended,))
        return results

    def _settle_one(self, connection: Connection, each: Settlement, row: MessageRow) -> None:
        letters = list(row.statuses)
        # Of a message that is only moved nobody read the recipients.
        if each.marks and decoded(row).envelope.recipients != each.envelope.recipients:
            raise Corrupt("its recipients are not those that it was read with")
        for index, status in each.marks.items():
            before = _BY_LETTER[letters[index].upper()]
            if before not in (Status.TODO, status):
                raise Corrupt(f"recipient {index} is {before.name} already, and not {status.name}")
            letters[index] = letters[index] if before is status else status.value.decode()
        is_told = bool(each.told) and all(letters[index].islower() for index in each.told)
        if each.report is not None and not is_told and not (each.is_warned and row.is_warned):
            report = each.report
            with self._stored(report.queue_id, report.envelope, [report.content]) as new:
                insert(connection, new)
        for index in each.told:
            letters[index] = letters[index].lower()
        if each.ends and Status.TODO.value.decode() in letters:
            raise AssertionError(f"{each.queue_id} is to be removed with recipients to do")
        row.statuses = "".join(letters)
        row.notes = bytes(row.notes) + (notes.encode(each.notes) if each.notes else b"")
        row.is_warned = row.is_warned or each.is_warned
        row.is_held = row.is_held if each.is_held is None else each.is_held
        row.next_attempt_at_ns = each.next_attempt_at_ns or row.next_attempt_at_ns
        connection.execute(
            "UPDATE relay.message SET statuses = %s, notes = %s, is_held = %s, is_warned = %s,"
            " next_attempt_at_ns = %s WHERE queue_id = %s",
            (row.statuses, row.notes, row.is_held, row.is_warned, row.next_attempt_at_ns, row.queue_id),
        )

    def _read(self, connection: Connection, queue_ids: Iterable[str]) -> dict[str, Message | Corrupt]:
        rows = connection.execute(
            f"SELECT {_COLUMNS} FROM relay.message WHERE queue_id = ANY(%(wanted)s) AND {_OURS}",
            self._who | {"wanted": list(queue_ids)},
        ).fetchall()
        found: dict[str, Message | Corrupt] = {}
        for row in rows:
            try:
                message = decoded(MessageRow(*row))
                if message.content is None:
                    first = connection.execute(
                        "SELECT substr(content, 1, %s) FROM relay.chunk WHERE queue_id = %s AND number = 0",
                        (HEAD_BYTES, message.queue_id),
                    ).fetchone()
                    message = message._replace(long_head=b"" if first is None else bytes(first[0]))
                found[row[0]] = message
            except Corrupt as fault:
                self._set_aside(connection, row[0], str(fault))
                found[row[0]] = fault
        return found

    def _chunks(self, message: Message) -> Iterator[tuple[int, bytes]]:
        """Yield each chunk behind the checksum of the content up to its end."""
        crc = 0
        for number in range(-(-message.shape.size_bytes // INLINE_BYTES)):
            with self._asking() as connection:
                row = connection.execute(
                    "SELECT content FROM relay.chunk WHERE queue_id = %s AND number = %s",
                    (message.queue_id, number),
                ).fetchone()
            chunk = b"" if row is None else bytes(row[0])
            crc = checksum(chunk, crc)
            yield crc, chunk

    def _damaged(self, queue_id: QueueId) -> NoReturn:
        with self._asking() as connection:
            self._set_aside(connection, queue_id, MISMATCH)
        raise Corrupt(MISMATCH)

    def _set_aside(self, connection: Connection, queue_id: str, why: str) -> None:
        connection.execute("UPDATE relay.message SET corrupt = %s WHERE queue_id = %s", (why, queue_id))
        self._on_corrupt(queue_id, why)

    def _renew(self, connection: Connection) -> None:
        row = connection.execute(
            "UPDATE relay.owner SET until = clock_timestamp() + %(lease)s"
            " WHERE identity = %(owner)s AND fence = %(fence)s RETURNING 1",
            self._who,
        ).fetchone()
        if row is None:
            raise Unavailable("another relay owns this host's messages: is its folder a copy?")

    @contextlib.contextmanager
    def _asking(self) -> Iterator[Connection]:
        """Ask in one transaction.  Raises Full and Unavailable."""
        try:
            with self._connection.begin() as connection:
                yield connection
        except DatabaseError as error:
            raise refusal(error) from error


def decoded(row: MessageRow) -> Message:
    """Return a message as it is stored, but for long content.  Raises Corrupt."""
    header = decode_header(bytes(row.header))
    facts, *lines = bytes(row.envelope).split(b"\n")
    if len(row.statuses) != len(lines) - 1:
        raise Corrupt("it has not one status for each recipient")
    marked = [letter.encode() + line[1:] for letter, line in zip(row.statuses, lines, strict=False)]
    message = message_file.decode(QueueId(row.queue_id), header, b"\n".join([facts, *marked, b""]))
    content = None if row.content is None else bytes(row.content)
    if content is not None and (len(content), checksum(content)) != (
        header.content_bytes,
        header.content_crc,
    ):
        raise Corrupt(MISMATCH)
    message = message._replace(
        is_held=row.is_held,
        is_warned=row.is_warned,
        next_attempt_at_ns=row.next_attempt_at_ns,
        content=content,
    )
    return message.with_notes(notes.latest(bytes(row.notes)))


def _relayed_of(each: Settlement) -> Settlement:
    marks = {index: status for index, status in each.marks.items() if status.is_relayed}
    return Settlement(each.queue_id, each.envelope, marks)


def _identity(root: str, disk: Disk) -> uuid.UUID:
    """Return who this host is, by its folder."""
    path = f"{root}/owner"
    if disk.inode(path) is None:
        replace_file(disk, path, f"{uuid.uuid4()}\n".encode())
    with opened(disk, disk.open_read(path)) as fd:
        return uuid.UUID(disk.pread(fd, disk.size(fd), 0).decode().strip())
