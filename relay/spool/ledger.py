"""What ever came in, and what became of it: an account that survives restarts.

One line a fact, each with its own CRC-32:

    total ACCEPTED RELAYED BOUNCED EXPIRED DELETED     all that had ended before this file began
    in ID RECIPIENTS                                   taken into the queue
    out ID RELAYED BOUNCED EXPIRED DELETED             finished; durable before its file goes

So accepted = relayed + bounced + expired + deleted + what is queued, and both sides come
from different places: the ledger says what should be queued, the disk what is.  A crash
between a message's `out` and its removal is seen at the next start, which removes the
file and does not count it again.

It is an account, not a state: no message that has a recipient left is sent, kept or
removed because of it, and a damaged line costs only its figures.  An `out` whose `in` a
crash tore counts for both.  The file is rewritten when it has grown long; before, the
removals that it tells of must be durable, because the new file forgets them.
"""

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, replace

from relay.envelope import QueueId
from relay.spool.durable import Disk, opened
from relay.spool.interface import Status, Totals
from relay.spool.layout import Layout

LINES_BEFORE_REWRITE = 100_000


class Ledger:
    """The account of one spool.  For the holder of the spool's lock.  Methods raise OSError."""

    def __init__(self, layout: Layout, disk: Disk) -> None:
        self._path = layout.file("ledger")
        self._root = layout.root
        self._disk = disk
        self._fd: int | None = None
        self._lines = 0
        self._is_torn = False
        """A write failed half way: what follows must not be glued to it."""
        self._is_doubtful = False
        """A sync failed: some of the file may never reach the disk."""
        self.totals = Totals()
        """Without what open messages got so far."""
        self.open: dict[QueueId, int] = {}
        """Messages in the queue and how many recipients each came with."""
        self.closed: set[QueueId] = set()
        """Messages counted out since the file was last rewritten: not to be counted again."""
        self.damaged_lines = 0

    def read(self) -> None:
        """Read the account from disk, forgetting what was known."""
        self.totals, self.damaged_lines = Totals(), 0
        self.open.clear()
        self.closed.clear()
        with opened(self._disk, self._disk.open_append(self._path)) as fd:
            raw = self._disk.pread(fd, self._disk.size(fd), 0)
        for line in raw.split(b"\n"):
            if line and not self._take_line(line):
                self.damaged_lines += 1

    @property
    def is_long(self) -> bool:
        """Whether it is time to rewrite it."""
        return self._lines > LINES_BEFORE_REWRITE + len(self.open)

    def rewrite(self, still_there: Collection[QueueId] = ()) -> None:
        """Write a short file of the same meaning; also how the file comes into being.

        It forgets which messages were counted out, but for some: the removal of the others must
        be durable.
        """
        # The open ones count as accepted by their own lines.
        ended = replace(self.totals, accepted=self.totals.accepted - sum(self.open.values()))
        lines = [_line("total", *astuple(ended)[:5])]
        lines += [_line("in", queue_id, count) for queue_id, count in self.open.items()]
        lines += [_line("out", queue_id, 0, 0, 0, 0) for queue_id in still_there]
        draft = self._path + ".new"
        if self._disk.length(draft) is not None:
            self._disk.unlink(draft)
        fd = self._disk.open_new(draft)
        try:
            self._disk.write_all(fd, b"".join(lines))
            self._disk.sync(fd)
            # Crash here: the old file, still true.
            self._disk.rename(draft, self._path)
        except OSError:
            self._disk.close(fd)
            raise
        self.close()
        self._fd, self._lines = fd, len(lines)
        self._is_torn = self._is_doubtful = False
        self._disk.sync_directory(self._root)
        self.closed = set(still_there)

    def enter(self, messages: Sequence[tuple[QueueId, int]]) -> None:
        """Count messages in, with their recipients; not durable before the next `leave`."""
        fresh = [
            (queue_id, count)
            for queue_id, count in messages
            if queue_id not in self.open and queue_id not in self.closed
        ]
        if not fresh:
            return
        self._append([_line("in", queue_id, count) for queue_id, count in fresh])
        for queue_id, count in fresh:
            self._count_in(queue_id, count)

    def leave(self, messages: Mapping[QueueId, Sequence[Status]]) -> None:
        """Count messages out durably, by the last status of each recipient; once only."""
        known = {
            queue_id: fates_of(statuses) for queue_id, statuses in messages.items() if queue_id in self.open
        }
        if not known:
            return
        self._append([_line("out", queue_id, *fates) for queue_id, fates in known.items()])
        self._is_doubtful = True
        self._disk.sync_content(self._need_fd())
        self._is_doubtful = False
        # Crash here: counted, and the file still there; the next start only removes it.
        for queue_id, fates in known.items():
            self._count_out(queue_id, fates)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd is not None:
            self._disk.close(self._fd)
            self._fd = None

    def _append(self, lines: list[bytes]) -> None:
        if self._is_doubtful:
            # A failed sync lost lines that everybody can still read: only a new file has them all.
            self.rewrite(still_there=self.closed)
        start = b"\n" if self._is_torn else b""
        self._is_torn = True
        self._disk.write_all(self._need_fd(), start + b"".join(lines))
        self._is_torn = False
        self._lines += len(lines)

    def _need_fd(self) -> int:
        if self._fd is None:
            raise AssertionError("the ledger is used before rewrite()")
        return self._fd

    def _take_line(self, line: bytes) -> bool:
        """Apply a line; return whether it is whole."""
        text, _, check = line.rpartition(b" ")
        if check != b"%08x" % zlib.crc32(text):
            return False
        match text.decode("ascii", "replace").split(" "):
            case ["total", *figures] if len(figures) == 5:
                self.totals = Totals(*map(int, figures))
            case ["in", queue_id, count]:
                self._count_in(QueueId(queue_id), int(count))
            case ["out", queue_id, *figures] if len(figures) == 4:
                relayed, bounced, expired, deleted = map(int, figures)
                self._count_out(QueueId(queue_id), (relayed, bounced, expired, deleted))
            case _:
                return False
        return True

    def _count_in(self, queue_id: QueueId, count: int) -> None:
        if queue_id not in self.open:
            self.open[queue_id] = count
            old = self.totals
            self.totals = Totals(old.accepted + count, old.relayed, old.bounced, old.expired, old.deleted)

    def _count_out(self, queue_id: QueueId, fates: tuple[int, int, int, int]) -> None:
        if queue_id not in self.closed:
            self.closed.add(queue_id)
            # A crash may have torn its `in`, which was written before it was known to be durable.
            lost = sum(fates) if self.open.pop(queue_id, None) is None else 0
            old = self.totals
            self.totals = Totals(
                old.accepted + lost,
                old.relayed + fates[0],
                old.bounced + fates[1],
                old.expired + fates[2],
                old.deleted + fates[3],
            )


def fates_of(statuses: Sequence[Status]) -> tuple[int, int, int, int]:
    """Return how many recipients were relayed, bounced, expired and deleted."""
    return (
        statuses.count(Status.RELAYED),
        statuses.count(Status.BOUNCED),
        statuses.count(Status.EXPIRED),
        statuses.count(Status.DELETED),
    )


def _line(*words: str | int) -> bytes:
    text = " ".join(map(str, words)).encode()
    return b"%s %08x\n" % (text, zlib.crc32(text))
