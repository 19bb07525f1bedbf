"""The queue in PostgreSQL: the owner's side, for one of several hosts.

Guarantees: one call of `settle` is one transaction: after a crash or a lost connection all of it is there,
or nothing, and a repeated call is safe.  One host at a time claims a message.  The claim has the host's
identity, which its folder keeps, and a fence, which differs for each process.  A message that another host
took over is Absent here, so a suspended host settles nothing.  `claim`, `read`, `settle` and `look` renew the
lease.  After it a claim holds until another host takes the message; a clean stop ends the lease at once.
A wish of an operator on another host stands in the message's row until its owner answers it (`SharedSpool`).
A conversion claims its copies for ever, so that no host sends them; if it fails, they are removed.
Assumes: `home` is this host's own folder; its lock keeps a second process of this host away.
Does not: know the server's free space.  A statement that the server refuses for lack of it is Full.
"""

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, LiteralString, NoReturn

from relay.clock import Clock
from relay.mail.envelope import QueueId
from relay.spool.base import PAGE_BYTES, Failure, as_it_is
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
    SpoolBusy,
    SpoolLook,
    Status,
    Unavailable,
)
from relay.spool.message import message_file, notes
from relay.spool.message.draft import remove_abandoned
from relay.spool.message.message_file import checksum, decode_header
from relay.spool.postgresql import IN_A_DATABASE
from relay.spool.postgresql.intake import (
    ROOM_BYTES,
    MessageRow,
    drafts_of,
    insert,
    prepare,
    rows_for,
    transaction,
)
from relay.spool.root.lock import take_lock
from relay.spool.root.quarantine import OnCorrupt

MISMATCH = "the content does not match its checksum"
_BY_LETTER = {status.value.decode(): status for status in Status}
_FACTS = "statuses, notes, is_held, is_warned, next_attempt_at_ns"
_COLUMNS = f"queue_id, header, envelope, content, {_FACTS}"
_LONG_HEAD = (
    f"(SELECT substr(chunk.content, 1, {HEAD_BYTES}) FROM relay.chunk"
    " WHERE chunk.queue_id = message.queue_id AND number = 0)"
)
_BARE = f"queue_id, header, envelope, NULL, {_FACTS}"
"""The columns of a message without content."""
_HEADS = f"{_BARE}, coalesce(substr(content, 1, {HEAD_BYTES}), {_LONG_HEAD})"
_OURS = "owner = %(owner)s AND fence = %(fence)s AND corrupt IS NULL"
_LAPSE: LiteralString = "UPDATE relay.owner SET until = clock_timestamp() WHERE identity = %(owner)s"
_FOR_EVER = "1000 years"
_REMOVE_LEFTOVERS: LiteralString = """
    DELETE FROM relay.message WHERE queue_id IN (
        SELECT queue_id FROM relay.message WHERE owner = %(owner)s AND corrupt IS NULL LIMIT 1000
    )
"""
_END = "~"
"""Sorts after all ids."""
_OTHERS = f"corrupt IS NULL AND ({_OURS}) IS NOT TRUE"
_HOST = "coalesce((SELECT host FROM relay.owner WHERE identity = owner), '')"
_OWN_BEFORE = "corrupt IS NULL AND owner = %(owner)s AND fence < %(fence)s"
_CLAIMABLE = (
    f"corrupt IS NULL AND (owner IS NULL OR ({_OWN_BEFORE})"
    " OR owner IN (SELECT identity FROM relay.owner WHERE until < clock_timestamp() FOR UPDATE SKIP LOCKED))"
)
_RENEW = (
    "UPDATE relay.owner SET until = clock_timestamp() + %(lease)s"
    " WHERE identity = %(owner)s AND fence = %(fence)s"
)
# True if a wish asks to hold or end the message in its state: then it is claimed as held, and not sent first.
_STAYS = """
    coalesce(wish ~ '^(hold|bounce|delete)' AND (wish !~ ' ' OR string_to_array(wish, ' ') @> ARRAY[CASE
        WHEN is_held THEN 'held'
        WHEN next_attempt_at_ns > extract(epoch FROM clock_timestamp()) * 1000000000 THEN 'deferred'
        ELSE 'waiting' END]), false)
"""
_CLAIM = f"""
    WITH free AS (
        SELECT queue_id, coalesce(octet_length(content), {HEAD_BYTES}) AS size FROM relay.message
        WHERE {{}} ORDER BY queue_id LIMIT %(most)s FOR UPDATE {{}}
    ), page AS (
        SELECT queue_id AS id, sum(size) OVER (ORDER BY queue_id) - size AS before FROM free
    )
    UPDATE relay.message SET owner = %(owner)s, fence = %(fence)s,
        is_held = is_held OR {_STAYS}, wish = CASE WHEN {_STAYS} THEN split_part(wish, ' ', 1) ELSE wish END
    FROM page WHERE queue_id = id AND before < {PAGE_BYTES} RETURNING {_COLUMNS}, {_LONG_HEAD}
"""


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
        home: str = "",
    ) -> None:
        """`lease_seconds` is twice the longest transaction: no host takes over a message in flight.

        `home` is the spool's folder in a conversion, and else empty.  If it is `root`, this is the source;
        if not, this is the copy, which never claims other messages than its own.
        Raises SpoolBusy, OSError, ValueError, and Unavailable if the database cannot be asked.
        """
        prepare(root, disk)
        self._drafts = drafts_of(root)
        self._rows_for = partial(rows_for, root=root, disk=disk, clock=clock)
        self._disk, self._on_corrupt = disk, on_corrupt
        self._connection = LastingConnection(database)
        self._lock_fd: int | None = take_lock(root, disk, IN_A_DATABASE)
        self._owner: dict[str, Any] = {}
        self._is_conversion_source, self._keeps_lease = home == root, home not in ("", root)
        self._claimable = _OWN_BEFORE if self._keeps_lease else _CLAIMABLE
        self._after = _END
        try:
            lease = _FOR_EVER if self._keeps_lease else f"{lease_seconds} seconds"
            self._owner |= {"owner": identity(home or root, disk), "host": host, "fence": 0, "lease": lease}
            with transaction(self._connection) as connection:
                (self._owner["fence"],) = one(
                    connection,
                    "INSERT INTO relay.owner VALUES (%(owner)s, %(host)s, 1, clock_timestamp() + %(lease)s)"
                    " ON CONFLICT (identity) DO UPDATE SET host = excluded.host, until = excluded.until,"
                    " fence = relay.owner.fence + 1 RETURNING fence",
                    self._owner,
                )
        except BaseException:
            self.close()
            raise

    def claim(self, most: int) -> list[Message]:
        # If this call fails, its claim may be committed: then the next call returns all that is ours.
        after, self._after = self._after, ""
        which, skips = self._claimable, "SKIP LOCKED"
        if after != _END:
            which, skips = f"({which} OR ({_OURS} AND queue_id > %(after)s))", ""
        with transaction(self._connection) as connection:
            self._renew(connection)
            if self._is_conversion_source:
                self._refuse_others(connection)
            values = self._owner | {"most": most, "after": after}
            rows = sorted(connection.execute(_CLAIM.format(which, skips), values).fetchall())
            messages = [self._decoded(connection, row) for row in rows]
        self._after = rows[-1][0] if rows and after != _END else _END
        return [each for each in messages if isinstance(each, Message)]

    def read(self, queue_ids: Sequence[QueueId]) -> list[Message | Absent | Corrupt | Unavailable]:
        try:
            with transaction(self._connection) as connection:
                # Renew once half the lease is over: the other half covers the longest transaction.
                is_old = "until < clock_timestamp() + %(lease)s::interval / 2"
                connection.execute(f"{_RENEW} AND {is_old}".encode(), self._owner)
                found = self._read(connection, queue_ids)
        except Unavailable as trouble:
            return [trouble] * len(queue_ids)
        return [found.get(each) or Absent(each) for each in queue_ids]

    def content(self, queue_id: QueueId) -> Iterator[bytes]:
        """As in Spool, for the message of any host: the sender has just read it as its own."""
        with transaction(self._connection) as connection:
            message = self._read(connection, [queue_id], "corrupt IS NULL").get(queue_id) or Absent(queue_id)
        if not isinstance(message, Message):
            raise message
        if message.content is not None:
            yield message.content
            return
        checksums: list[int] = []
        for crc, _ in self._chunks(message):
            checksums.append(crc)
            yield b""
        headers = self._rows("SELECT header FROM relay.message WHERE queue_id = %(id)s", id=queue_id)
        if not headers:
            raise Absent(queue_id)
        if checksums[-1] != decode_header(bytes(headers[0][0])).content_crc:
            self._damaged(queue_id)
        for expected, (crc, chunk) in zip(checksums, self._chunks(message), strict=True):
            if crc != expected:
                self._damaged(queue_id)
            yield chunk

    def settle(self, settlements: Sequence[Settlement]) -> list[Failure | None]:
        try:
            return self._settle(settlements)
        except Full as full:
            # Mark relayed recipients all the same, so that a crash does not send to them again.
            with contextlib.suppress(Full, Unavailable):
                self._settle([_relayed_of(each) for each in settlements])
            return [full] * len(settlements)
        except Unavailable as trouble:
            return [trouble] * len(settlements)

    def adopt(self, adopted: Sequence[Adopted]) -> None:
        with transaction(self._connection) as connection:
            for each in adopted:
                message = each.message
                with self._rows_for(message.queue_id, message.envelope, each.content) as row:
                    insert(connection, row, self._owner)
        for failure in self.settle([as_it_is(each.message) for each in adopted]):
            if failure is not None:
                raise failure

    def look(self) -> SpoolLook:
        with transaction(self._connection) as connection:
            self._renew(connection)
            aside, unclaimed = one(
                connection,
                "SELECT count(*) FILTER (WHERE corrupt IS NOT NULL),"
                f" count(*) FILTER (WHERE {self._claimable}) FROM relay.message",
                self._owner,
            )
            return SpoolLook(2 * ROOM_BYTES, None, aside, unclaimed)

    def set_aside(self, most: int) -> list[SetAside]:
        rows = self._rows(
            "SELECT queue_id, coalesce(octet_length(content), 0), corrupt FROM relay.message"
            " WHERE corrupt IS NOT NULL ORDER BY queue_id LIMIT %(most)s",
            most=most,
        )
        return [SetAside(queue_id, size, 0, "", 0, why) for queue_id, size, why in rows]

    def tidy(self) -> int:
        self._rows("DELETE FROM relay.answer WHERE at < clock_timestamp() - interval '1 hour' RETURNING 1")
        with kernel_errors("tidy"):
            return remove_abandoned(self._disk, self._drafts)

    def others(self, first: str, most: int) -> list[tuple[Message, str]]:
        with transaction(self._connection) as connection:
            rows = connection.execute(
                f"SELECT {_HEADS}, {_HOST} FROM relay.message WHERE {_OTHERS} AND queue_id >= %(first)s"
                " ORDER BY queue_id LIMIT %(most)s",
                self._owner | {"first": first, "most": most},
            ).fetchall()
            return [
                (message, row[-1])
                for row in rows
                if isinstance(message := self._decoded(connection, row[:-1]), Message)
            ]

    def ask(self, queue_ids: Sequence[QueueId], wish: str) -> dict[QueueId, str]:
        return dict(
            self._rows(
                "WITH old AS (DELETE FROM relay.answer WHERE queue_id = ANY(%(wanted)s))"
                " UPDATE relay.message SET wish = %(wish)s WHERE queue_id = ANY(%(wanted)s)"
                f" AND {_OTHERS} RETURNING queue_id, {_HOST}",
                wanted=list(queue_ids),
                wish=wish,
            )
        )

    def answers(self, queue_ids: Sequence[QueueId]) -> dict[QueueId, str | None]:
        return dict(
            self._rows(
                "SELECT id, answer FROM unnest(%(wanted)s::text[]) AS id"
                " LEFT JOIN relay.answer ON queue_id = id"
                " WHERE answer IS NOT NULL OR id IN (SELECT queue_id FROM relay.message WHERE queue_id = id)",
                wanted=list(queue_ids),
            )
        )

    def wishes(self) -> dict[str, list[QueueId]]:
        where = f"{_OURS} AND wish IS NOT NULL"
        statement = f"SELECT wish, array_agg(queue_id) FROM relay.message WHERE {where} GROUP BY wish"
        return dict(self._rows(statement))

    def answer(self, wish: str, results: Mapping[QueueId, str]) -> None:
        self._rows(
            "WITH given AS (SELECT * FROM unnest(%(wanted)s::text[], %(results)s::text[]) AS its (id, text)"
            " WHERE NOT EXISTS (SELECT FROM relay.message"
            " WHERE queue_id = id AND wish IS DISTINCT FROM %(wish)s)),"
            " over AS (UPDATE relay.message SET wish = NULL FROM given"
            f" WHERE queue_id = id AND wish = %(wish)s AND {_OURS})"
            " INSERT INTO relay.answer (queue_id, answer) SELECT id, text FROM given"
            " ON CONFLICT (queue_id) DO UPDATE SET answer = excluded.answer, at = excluded.at RETURNING 1",
            wanted=list(results),
            results=list(results.values()),
            wish=wish,
        )

    def keep_claims(self) -> None:
        with transaction(self._connection) as connection:
            self._renew(connection, _FOR_EVER)
        self._keeps_lease = True

    def close(self) -> None:
        """End the lease, unless after `keep_claims` or of a copy: any host may take the claims at once."""
        if self._owner.get("fence") and not self._keeps_lease:
            with contextlib.suppress(Full, Unavailable), transaction(self._connection) as connection:
                connection.execute(f"{_LAPSE} AND fence = %(fence)s", self._owner)
        self._connection.close()
        if self._lock_fd is not None:
            self._disk.close(self._lock_fd)
            self._lock_fd = None

    def _settle(self, settlements: Sequence[Settlement]) -> list[Failure | None]:
        with transaction(self._connection) as connection:
            self._renew(connection)
            wanted = [each.queue_id for each in settlements]
            rows = connection.execute(
                f"SELECT {_BARE}, {_OURS} FROM relay.message WHERE queue_id = ANY(%(wanted)s)"
                " ORDER BY queue_id FOR UPDATE",
                self._owner | {"wanted": wanted},
            ).fetchall()
            there = {row[0]: MessageRow(*row[:-1]) if row[-1] else None for row in rows}
            return [self._settle_one(connection, each, there) for each in settlements]

    def _settle_one(
        self, connection: Connection, each: Settlement, there: Mapping[str, MessageRow | None]
    ) -> Failure | None:
        if (row := there.get(each.queue_id)) is None:
            # A repeated end is done.
            return None if each.ends and each.queue_id not in there else Absent(each.queue_id)
        try:
            self._write(connection, each, row)
        except Corrupt as fault:
            self._set_aside(connection, each.queue_id, str(fault))
            return fault
        return None

    def _write(self, connection: Connection, each: Settlement, row: MessageRow) -> None:
        letters = list(row.statuses)
        # Without marks the envelope may be empty: an operator's hold or release reads no recipients.
        if each.marks and decoded(row).envelope.recipients != each.envelope.recipients:
            raise Corrupt("its recipients changed since it was read")
        for index, status in each.marks.items():
            before = _BY_LETTER[letters[index].upper()]
            if before not in (Status.TODO, status):
                raise Corrupt(f"recipient {index} is already {before.name} and cannot become {status.name}")
            letters[index] = letters[index] if before is status else status.value.decode()
        is_told = bool(each.told) and all(letters[index].islower() for index in each.told)
        if each.report is not None and not is_told and not (each.is_warned and row.is_warned):
            report = each.report
            with self._rows_for(report.queue_id, report.envelope, [report.content]) as new:
                insert(connection, new)
        for index in each.told:
            letters[index] = letters[index].lower()
        if each.ends:
            if Status.TODO.value.decode() in letters:
                raise AssertionError(f"{each.queue_id} cannot be removed: some recipients are not finished")
            connection.execute("DELETE FROM relay.message WHERE queue_id = %s", (row.queue_id,))
            return
        row.statuses, row.is_warned = "".join(letters), row.is_warned or each.is_warned
        # A release cancels an earlier wish.
        facts = (
            row.statuses,
            row.is_warned,
            each.is_held,
            each.next_attempt_at_ns or None,
            each.is_held is False,
        )
        connection.execute(
            "UPDATE relay.message SET statuses = %s, is_warned = %s, is_held = coalesce(%s, is_held),"
            " next_attempt_at_ns = coalesce(%s, next_attempt_at_ns), wish = CASE WHEN %s THEN NULL ELSE wish"
            " END, notes = notes || %s WHERE queue_id = %s",
            (*facts, notes.encode(each.notes) if each.notes else b"", row.queue_id),
        )

    def _read(
        self, connection: Connection, queue_ids: Iterable[str], whose: str = _OURS
    ) -> dict[str, Message | Corrupt]:
        rows = connection.execute(
            f"SELECT {_COLUMNS}, {_LONG_HEAD} FROM relay.message"
            f" WHERE queue_id = ANY(%(wanted)s) AND {whose}",
            self._owner | {"wanted": list(queue_ids)},
        ).fetchall()
        return {row[0]: self._decoded(connection, row) for row in rows}

    def _decoded(self, connection: Connection, row: Sequence[Any]) -> Message | Corrupt:
        try:
            message = decoded(MessageRow(*row[:-1]))
        except Corrupt as fault:
            self._set_aside(connection, row[0], str(fault))
            return fault
        return message if message.content is not None else message._replace(long_head=bytes(row[-1] or b""))

    def _chunks(self, message: Message) -> Iterator[tuple[int, bytes]]:
        """Yield each chunk with the checksum of the content up to the chunk's end."""
        crc = 0
        for number in range(-(-message.shape.size_bytes // INLINE_BYTES)):
            statement = "SELECT content FROM relay.chunk WHERE queue_id = %(id)s AND number = %(number)s"
            rows = self._rows(statement, id=message.queue_id, number=number)
            chunk = bytes(rows[0][0]) if rows else b""
            crc = checksum(chunk, crc)
            yield crc, chunk

    def _damaged(self, queue_id: QueueId) -> NoReturn:
        with transaction(self._connection) as connection:
            self._set_aside(connection, queue_id, MISMATCH)
        raise Corrupt(MISMATCH)

    def _set_aside(self, connection: Connection, queue_id: str, why: str) -> None:
        connection.execute("UPDATE relay.message SET corrupt = %s WHERE queue_id = %s", (why, queue_id))
        self._on_corrupt(queue_id, why)

    def _renew(self, connection: Connection, lease: str = "") -> None:
        values = self._owner | {"lease": lease or self._owner["lease"]}
        if connection.execute(_RENEW + " RETURNING 1", values).fetchone() is None:
            raise Unavailable("another relay owns this host's messages: is its folder a copy?")

    def _refuse_others(self, connection: Connection) -> None:
        (hosts,) = one(
            connection,
            "SELECT string_agg(host, ', ') FROM relay.owner"
            " WHERE until > clock_timestamp() AND identity <> %(owner)s",
            self._owner,
        )
        if hosts is not None:
            what = "stop the relay there, or wait until its lease is over"
            raise SpoolBusy(f"{hosts} may be sending mail of this queue: {what}")

    def _rows(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        with transaction(self._connection) as connection:
            return connection.execute(statement.encode(), self._owner | values).fetchall()


def decoded(row: MessageRow) -> Message:
    """Return the stored message, without long content.  Raises Corrupt."""
    header = decode_header(bytes(row.header))
    facts, *lines = bytes(row.envelope).split(b"\n")
    if len(row.statuses) != len(lines) - 1:
        raise Corrupt("the number of its statuses differs from the number of its recipients")
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


def remove_leftovers(root: str, disk: Disk, *, database: Database) -> None:
    """Remove this host's messages, left by a conversion, 1000 a transaction; then as `release_claims`."""
    who, removed = {"owner": identity(root, disk)}, 1
    with contextlib.closing(LastingConnection(database)) as lasting:
        while removed:
            with transaction(lasting) as connection:
                removed = connection.execute(_REMOVE_LEFTOVERS, who).rowcount
    release_claims(root, disk, database=database)


def release_claims(root: str, disk: Disk, *, database: Database) -> None:
    """End the lease of this folder's host: any host may take its claims.  Raises Full and Unavailable."""
    with contextlib.closing(LastingConnection(database)) as lasting, transaction(lasting) as connection:
        connection.execute(_LAPSE, {"owner": identity(root, disk)})


def identity(root: str, disk: Disk) -> uuid.UUID:
    """Return the host's identity from its folder; create it if there is none.  Raises OSError."""
    path = f"{root}/owner"
    if disk.inode(path) is None:
        replace_file(disk, path, f"{uuid.uuid4()}\n".encode())
    with opened(disk, disk.open_read(path)) as fd:
        return uuid.UUID(disk.pread(fd, disk.size(fd), 0).decode().strip())
