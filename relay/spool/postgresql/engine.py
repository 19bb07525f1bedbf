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
import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, LiteralString, NoReturn

from relay.clock import Clock
from relay.mail.envelope import Envelope, QueueId
from relay.spool.base import PAGE_BYTES, Failure, adopting_settlement
from relay.spool.database.connection import Database, LastingConnection, once
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
    SpoolCounts,
    Status,
    Unavailable,
)
from relay.spool.message import message_file, notes
from relay.spool.message.draft import remove_abandoned
from relay.spool.message.message_file import checksum, decode_header, mark_of
from relay.spool.postgresql import IN_A_DATABASE
from relay.spool.postgresql.intake import ROOM_BYTES, drafts_of, insert, new_draft, prepare, row_of
from relay.spool.root.lock import take_lock
from relay.spool.root.quarantine import OnCorrupt

_Found = Message | Absent | Corrupt
MISMATCH = "the content does not match its checksum"
_CHUNK = "(SELECT {} FROM relay.chunk WHERE chunk.queue_id = message.queue_id AND number = 0)"
_ROW = "queue_id, header, envelope, statuses, notes, is_held, is_warned, next_attempt_at_ns, {}"
_WITH_CONTENT = _ROW.format(_CHUNK.format("content"))
_OURS = "owner = %(owner)s AND fence = %(fence)s AND corrupt IS NULL"
_LAPSE: LiteralString = "UPDATE relay.owner SET until = clock_timestamp() WHERE identity = %(owner)s"
_FOR_EVER = "1000 years"
_END = "~"
"""Sorts after all ids."""
_OTHERS = f"corrupt IS NULL AND ({_OURS}) IS NOT TRUE"
_HOST = "coalesce((SELECT host FROM relay.owner WHERE identity = owner), '')"
_OWN_BEFORE = "corrupt IS NULL AND owner = %(owner)s AND fence < %(fence)s"
_CLAIMABLE = (
    f"corrupt IS NULL AND (owner IS NULL OR ({_OWN_BEFORE})"
    " OR owner IN (SELECT identity FROM relay.owner WHERE until < clock_timestamp() FOR UPDATE SKIP LOCKED))"
)
_OWN = """
    INSERT INTO relay.owner VALUES (%(owner)s, %(host)s, 1, clock_timestamp() + %(lease)s)
    ON CONFLICT (identity) DO UPDATE SET host = excluded.host, until = excluded.until,
        fence = relay.owner.fence + 1 RETURNING fence
"""
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
        SELECT queue_id AS id FROM relay.message WHERE {{}} ORDER BY queue_id LIMIT %(most)s FOR UPDATE {{}}
    ), page AS (
        SELECT id, sum(octet_length(content)) OVER (
            ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before FROM free LEFT JOIN relay.chunk ON queue_id = id AND number = 0
    )
    UPDATE relay.message SET owner = %(owner)s, fence = %(fence)s,
        is_held = is_held OR {_STAYS}, wish = CASE WHEN {_STAYS} THEN split_part(wish, ' ', 1) ELSE wish END
    FROM page WHERE queue_id = id AND coalesce(before, 0) < {PAGE_BYTES} RETURNING {_WITH_CONTENT}
"""
_READ = f"SELECT {_WITH_CONTENT} FROM relay.message WHERE queue_id = ANY(%(wanted)s) AND {_OURS}"
_LOCK = f"""
    SELECT {_ROW.format("NULL")}, {_OURS} FROM relay.message WHERE queue_id = ANY(%(wanted)s)
    ORDER BY queue_id FOR UPDATE
"""
# A release cancels an earlier wish.
_SETTLE = """
    UPDATE relay.message SET statuses = %(statuses)s, is_warned = %(is_warned)s,
        is_held = coalesce(%(is_held)s, is_held), notes = notes || %(notes)s,
        next_attempt_at_ns = coalesce(%(next_ns)s, next_attempt_at_ns),
        wish = CASE WHEN %(is_held)s IS FALSE THEN NULL ELSE wish END WHERE queue_id = %(id)s
"""
_LIST_OTHERS = f"""
    SELECT {_ROW.format(_CHUNK.format(f"substr(content, 1, {HEAD_BYTES})"))}, {_HOST} FROM relay.message
    WHERE {_OTHERS} AND queue_id >= %(first)s ORDER BY queue_id LIMIT %(most)s
"""
_ASK = f"""
    WITH old AS (DELETE FROM relay.answer WHERE queue_id = ANY(%(wanted)s))
    UPDATE relay.message SET wish = %(wish)s WHERE queue_id = ANY(%(wanted)s) AND {_OTHERS}
    RETURNING queue_id, {_HOST}
"""
_ANSWERS = """
    SELECT id, answer FROM unnest(%(wanted)s::text[]) AS id LEFT JOIN relay.answer ON queue_id = id
    WHERE answer IS NOT NULL OR id IN (SELECT queue_id FROM relay.message WHERE queue_id = id)
"""
_WISHES = f"""
    SELECT wish, array_agg(queue_id) FROM relay.message WHERE {_OURS} AND wish IS NOT NULL GROUP BY wish
"""
_ANSWER = f"""
    WITH given AS (
        SELECT * FROM unnest(%(wanted)s::text[], %(results)s::text[]) AS its (id, text)
        WHERE NOT EXISTS (
            SELECT FROM relay.message WHERE queue_id = id AND wish IS DISTINCT FROM %(wish)s)
    ), over AS (
        UPDATE relay.message SET wish = NULL FROM given WHERE queue_id = id AND wish = %(wish)s AND {_OURS}
    )
    INSERT INTO relay.answer (queue_id, answer) SELECT id, text FROM given
    ON CONFLICT (queue_id) DO UPDATE SET answer = excluded.answer, at = excluded.at
"""


def decoded(row: Sequence[Any]) -> Message:
    """Return the message of a `_ROW` with the beginning of its content, unchecked.  Raises Corrupt."""
    queue_id, header, envelope, letters, raw_notes, is_held, is_warned, next_ns, chunk = row
    facts, *lines = bytes(envelope).split(b"\n")
    if len(letters) != len(lines) - 1:
        raise Corrupt("the number of its statuses differs from the number of its recipients")
    marked = [letter.encode() + line[1:] for letter, line in zip(letters, lines, strict=False)]
    raw = b"\n".join([facts, *marked, b""])
    message = message_file.decode(QueueId(queue_id), decode_header(bytes(header)), raw)
    head = bytes(chunk or b"")[:HEAD_BYTES]
    message = message._replace(is_held=is_held, is_warned=is_warned, next_attempt_at_ns=next_ns)
    return message._replace(long_head=head).with_notes(notes.latest(bytes(raw_notes)))


def whole(row: Sequence[Any]) -> Message:
    """Return the message of a `_ROW` with its content, unless that is long.  Raises Corrupt."""
    message, content = decoded(row), bytes(row[-1] or b"")
    if message.shape.size_bytes > INLINE_BYTES:
        return message
    if checksum(content) != decode_header(bytes(row[1])).content_crc:
        raise Corrupt(MISMATCH)
    return message._replace(content=content, long_head=b"")


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
        self._root, self._disk, self._clock, self._on_corrupt = root, disk, clock, on_corrupt
        self._connection = LastingConnection(database)
        self._lock = contextlib.ExitStack()
        self._lock.callback(disk.close, take_lock(root, disk, IN_A_DATABASE))
        self._owner: dict[str, Any] = {}
        self._is_conversion_source, self._keeps_lease = home == root, home not in ("", root)
        self._claimable = _OWN_BEFORE if self._keeps_lease else _CLAIMABLE
        self._after = _END
        try:
            lease = _FOR_EVER if self._keeps_lease else f"{lease_seconds} seconds"
            self._owner |= {"owner": identity(home or root, disk), "host": host, "fence": 0, "lease": lease}
            with self._connection.begin():
                # Known before COMMIT, so that `close` ends the lease also if its reply is lost.
                ((self._owner["fence"],),) = self._rows(_OWN)
        except BaseException:
            self.close()
            raise

    def claim(self, most: int) -> list[Message]:
        # If this call fails, its claim may be committed: then the next call returns all that is ours.
        after, self._after = self._after, ""
        which, skips = self._claimable, "SKIP LOCKED"
        if after != _END:
            which, skips = f"({which} OR ({_OURS} AND queue_id > %(after)s))", ""
        with self._connection.begin():
            self._renew()
            if self._is_conversion_source:
                self._refuse_others()
            rows = sorted(self._rows(_CLAIM.format(which, skips), most=most, after=after))
            messages = [self._decoded(row, whole) for row in rows]
        self._after = rows[-1][0] if rows and after != _END else _END
        return [each for each in messages if isinstance(each, Message)]

    def read(self, queue_ids: Sequence[QueueId]) -> list[Message | Absent | Corrupt | Unavailable]:
        try:
            with self._connection.begin():
                # Renew once half the lease is over: the other half covers the longest transaction.
                self._rows(f"{_RENEW} AND until < clock_timestamp() + %(lease)s::interval / 2")
                rows = self._rows(_READ, wanted=list(queue_ids))
                found = {row[0]: self._decoded(row, whole) for row in rows}
        except Unavailable as trouble:
            return [trouble] * len(queue_ids)
        return [found.get(each) or Absent(each) for each in queue_ids]

    def content(self, queue_id: QueueId) -> Iterator[bytes]:
        """As in Spool, for the message of any host: the sender has just read it as its own."""
        checksums = [0]
        while chunk := self._chunk(queue_id, len(checksums) - 1):
            checksums.append(checksum(chunk, checksums[-1]))
            yield b""
        select = "SELECT header FROM relay.message WHERE queue_id = %(id)s AND corrupt IS NULL"
        if not (rows := self._rows(select, id=queue_id)):
            raise Absent(queue_id)
        if checksums[-1] != decode_header(bytes(rows[0][0])).content_crc:
            self._damaged(queue_id)
        for number, (before, after) in enumerate(itertools.pairwise(checksums)):
            chunk = self._chunk(queue_id, number)
            if checksum(chunk, before) != after:
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
        owner = self._owner["owner"], self._owner["fence"]
        with self._connection.begin():
            for each in adopted:
                self._insert(each.message.queue_id, each.message.envelope, each.content, *owner)
        for failure in self.settle([adopting_settlement(each.message) for each in adopted]):
            if failure is not None:
                raise failure

    def look(self) -> SpoolCounts:
        with self._connection.begin():
            self._renew()
            ((aside, unclaimed),) = self._rows(
                "SELECT count(*) FILTER (WHERE corrupt IS NOT NULL),"
                f" count(*) FILTER (WHERE {self._claimable}) FROM relay.message"
            )
        return SpoolCounts(2 * ROOM_BYTES, None, aside, unclaimed)

    def set_aside(self, most: int) -> list[SetAside]:
        rows = self._rows(
            f"SELECT queue_id, coalesce({_CHUNK.format('octet_length(content)')}, 0), corrupt"
            " FROM relay.message WHERE corrupt IS NOT NULL ORDER BY queue_id LIMIT %(most)s",
            most=most,
        )
        return [SetAside(queue_id, size, 0, "", 0, why) for queue_id, size, why in rows]

    def tidy(self) -> int:
        self._rows("DELETE FROM relay.answer WHERE at < clock_timestamp() - interval '1 hour'")
        with kernel_errors("tidy"):
            return remove_abandoned(self._disk, drafts_of(self._root))

    def others(self, first: str, most: int) -> list[tuple[Message, str]]:
        with self._connection.begin():
            rows = self._rows(_LIST_OTHERS, first=first, most=most)
            found = [(self._decoded(row, decoded), host) for *row, host in rows]
        return [(message, host) for message, host in found if isinstance(message, Message)]

    def ask(self, queue_ids: Sequence[QueueId], wish: str) -> dict[QueueId, str]:
        return dict(self._rows(_ASK, wanted=list(queue_ids), wish=wish))

    def answers(self, queue_ids: Sequence[QueueId]) -> dict[QueueId, str | None]:
        return dict(self._rows(_ANSWERS, wanted=list(queue_ids)))

    def wishes(self) -> dict[str, list[QueueId]]:
        return dict(self._rows(_WISHES))

    def answer(self, wish: str, results: Mapping[QueueId, str]) -> None:
        self._rows(_ANSWER, wanted=list(results), results=list(results.values()), wish=wish)

    def keep_claims(self) -> None:
        self._owner["lease"] = _FOR_EVER
        self._renew()
        self._keeps_lease = True

    def close(self) -> None:
        """End the lease, unless after `keep_claims` or of a copy: any host may take the claims at once."""
        if self._owner.get("fence") and not self._keeps_lease:
            with contextlib.suppress(Unavailable):
                self._rows(f"{_LAPSE} AND fence = %(fence)s")
        self._connection.close()
        self._lock.close()

    def _settle(self, settlements: Sequence[Settlement]) -> list[Failure | None]:
        with self._connection.begin():
            self._renew()
            there: dict[str, _Found] = {
                row[0]: self._decoded(row, decoded) if is_ours else Absent(row[0])
                for *row, is_ours in self._rows(_LOCK, wanted=[each.queue_id for each in settlements])
            }
            return [self._settle_one(each, there) for each in settlements]

    def _settle_one(self, each: Settlement, there: dict[str, _Found]) -> Failure | None:
        found = there.get(each.queue_id) or Absent(each.queue_id)
        if not isinstance(found, Message):
            return found
        try:
            there[each.queue_id] = self._write(each, found)
        except Corrupt as fault:
            self._set_aside(each.queue_id, str(fault))
            return fault
        return None

    def _write(self, each: Settlement, message: Message) -> Message:
        # Without marks the envelope may be empty: an operator's hold or release reads no recipients.
        if each.marks and message.envelope.recipients != each.envelope.recipients:
            raise Corrupt("its recipients changed since it was read")
        for index, status in each.marks.items():
            if (before := message.statuses[index]) not in (Status.TODO, status):
                raise Corrupt(f"recipient {index} is already {before.name} and cannot become {status.name}")
        is_told = bool(each.told) and message.told.issuperset(each.told)
        if each.report is not None and not is_told and not (each.is_warned and message.is_warned):
            self._insert(each.report.queue_id, each.report.envelope, [each.report.content])
        is_warned = message.is_warned or each.is_warned
        message = message.after(each.marks)._replace(told=message.told.union(each.told), is_warned=is_warned)
        if not each.ends:
            marks = [mark_of(status, is_told=i in message.told) for i, status in enumerate(message.statuses)]
            self._rows(
                _SETTLE,
                id=each.queue_id,
                statuses=b"".join(marks).decode(),
                is_warned=is_warned,
                is_held=each.is_held,
                next_ns=each.next_attempt_at_ns or None,
                notes=notes.encode(each.notes) if each.notes else b"",
            )
        elif message.left:
            raise AssertionError(f"{each.queue_id} cannot be removed: some recipients are not finished")
        else:
            self._rows("DELETE FROM relay.message WHERE queue_id = %(id)s", id=each.queue_id)
        return message

    def _insert(self, queue_id: QueueId, envelope: Envelope, content: Iterable[bytes], *owner: Any) -> None:
        """Insert a report or an adopted message.  Raises Full, Unavailable, and errors of `content`."""
        draft = new_draft(self._root, self._disk, queue_id)
        try:
            with kernel_errors("message"), self._connection.begin() as connection:
                draft.fill(content)
                insert(connection, row_of(draft, envelope, self._disk, self._clock), *owner)
        finally:
            draft.discard()

    def _decoded(self, row: Sequence[Any], decode: Callable[[Sequence[Any]], Message]) -> Message | Corrupt:
        try:
            return decode(row)
        except Corrupt as fault:
            self._set_aside(row[0], str(fault))
            return fault

    def _chunk(self, queue_id: QueueId, number: int) -> bytes:
        """Return a chunk of the content, empty if there is none."""
        statement = "SELECT content FROM relay.chunk WHERE queue_id = %(id)s AND number = %(number)s"
        rows = self._rows(statement, id=queue_id, number=number)
        return bytes(rows[0][0]) if rows else b""

    def _damaged(self, queue_id: QueueId) -> NoReturn:
        self._set_aside(queue_id, MISMATCH)
        raise Corrupt(MISMATCH)

    def _set_aside(self, queue_id: str, why: str) -> None:
        self._rows("UPDATE relay.message SET corrupt = %(why)s WHERE queue_id = %(id)s", id=queue_id, why=why)
        self._on_corrupt(queue_id, why)

    def _renew(self) -> None:
        if not self._rows(f"{_RENEW} RETURNING 1"):
            raise Unavailable("another relay owns this host's messages: is its folder a copy?")

    def _refuse_others(self) -> None:
        ((hosts,),) = self._rows(
            "SELECT string_agg(host, ', ') FROM relay.owner"
            " WHERE until > clock_timestamp() AND identity <> %(owner)s"
        )
        if hosts is not None:
            what = "stop the relay there, or wait until its lease is over"
            raise SpoolBusy(f"{hosts} may be sending mail of this queue: {what}")

    def _rows(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Execute a statement, in a transaction of its own unless one is begun; return its rows."""
        with self._connection.begin() as connection:
            cursor = connection.execute(statement.encode(), self._owner | values)
            return cursor.fetchall() if cursor.description else []


def _relayed_of(each: Settlement) -> Settlement:
    marks = {index: status for index, status in each.marks.items() if status.is_relayed}
    return Settlement(each.queue_id, each.envelope, marks)


def remove_leftovers(root: str, disk: Disk, *, database: Database) -> None:
    """Remove this host's messages, which a conversion left, and release its claims."""
    with once(database) as connection:
        connection.execute("SET LOCAL statement_timeout = 0")  # however many messages there are
        who = {"owner": identity(root, disk)}
        connection.execute("DELETE FROM relay.message WHERE owner = %(owner)s AND corrupt IS NULL", who)
        connection.execute(_LAPSE, who)


def release_claims(root: str, disk: Disk, *, database: Database) -> None:
    """End the lease of this folder's host: any host may take its claims.  Raises Full and Unavailable."""
    with once(database) as connection:
        connection.execute(_LAPSE, {"owner": identity(root, disk)})


def identity(root: str, disk: Disk) -> uuid.UUID:
    """Return the host's identity from its folder; create it if there is none.  Raises OSError."""
    path = f"{root}/owner"
    if disk.inode(path) is None:
        replace_file(disk, path, f"{uuid.uuid4()}\n".encode())
    with opened(disk, disk.open_read(path)) as fd:
        return uuid.UUID(disk.pread(fd, disk.size(fd), 0).decode().strip())
