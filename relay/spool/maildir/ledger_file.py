"""The ledger on disk: an account that survives restarts.

One line a fact, each with its own CRC-32:

    total ACCEPTED RELAYED BOUNCED EXPIRED DELETED     all that had ended before this file began
    in ID RECIPIENTS                                   taken into the queue
    out ID RELAYED BOUNCED EXPIRED DELETED             finished; durable before its file goes
    aside ID                                           its file was in corrupt/ at the last start

The ledger says what should be queued, the disk what is.  After a crash between a message's `out` and
its removal, the next start removes the file and does not count it again.  A damaged line costs only its
figures.  The `out` of a report stays for as long as the message that it is about.  The file is
rewritten when it has grown long; the removals that it tells of must be durable before, because the
new file forgets them.
"""

import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, replace

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.replacing import put_in_place
from relay.spool.identity import is_queue_id
from relay.spool.interface import LedgerAccount, Status, Totals
from relay.spool.ledger import Ledger, fates_of
from relay.spool.maildir.crash_remains import is_draft_of_the_ledger
from relay.spool.maildir.layout import Layout
from relay.spool.root.foreign import why_not_ours
from relay.spool.root.quarantine import set_aside

LINES_BEFORE_REWRITE = 100_000
LARGEST_BYTES = 256 * 1024 * 1024
"""What millions of queued messages need; what stands behind it costs its figures, and no memory."""
_COUNT = re.compile(r"[0-9]{1,18}")
_LINES = re.compile(rb"(in ([0-9a-z]{16}) ([0-9]{1,18})) ([0-9a-f]{8})\n|([^\n]+)")
"""A line that counts a message of a client in, as nearly all do; or any other line."""


class LedgerFile(Ledger):
    """For the holder of the spool's lock.  Methods raise OSError.

    What `forget` and `reopen` change is in force on disk with the next `rewrite`.
    """

    def __init__(self, layout: Layout, disk: Disk) -> None:
        super().__init__()
        self._path = layout.file("ledger")
        self._root = layout.root
        self._disk = disk
        self._fd: int | None = None
        self._lines = 0
        self._is_torn = False
        """A write failed half way: what follows must not be glued to it."""
        self._is_doubtful = False
        """A sync failed: some of the file may never reach the disk."""
        self.damaged_lines = 0

    def read(self) -> None:
        self.learn(self._read_file())

    def learn(self, content: bytes) -> None:
        self.clear()
        self.damaged_lines = 0
        self._lines = content.count(b"\n")
        entered: list[tuple[QueueId, int]] = []
        for match in _LINES.finditer(content):
            text, queue_id, count, check, line = match.groups()
            if line is None and int(check, 16) == zlib.crc32(text):
                # A million of them stand between a start and its first message.
                entered.append((QueueId(queue_id.decode()), int(count)))
                continue
            self.count_in(entered)
            entered.clear()
            if line is None or not self._take_line(line):
                self.damaged_lines += 1
        self.count_in(entered)

    @property
    def is_long(self) -> bool:
        return self._lines > LINES_BEFORE_REWRITE + len(self.open)

    def rewrite(self, still_there: Collection[QueueId] = ()) -> int:
        """Write a short file of the same meaning, also the first of all; return its descriptor.

        It forgets what was counted out, but for `still_there` and reports about open messages, which must
        not be published again.  The removal of the others must be durable.
        """
        kept = sorted({*still_there, *self.remembered})
        # The open ones count as accepted by their own lines.
        ended = replace(self.totals, accepted=self.totals.accepted - sum(self.open.values()))
        lines = [_line("total", *astuple(ended)[:5])]
        lines += [_line("in", queue_id, count) for queue_id, count in self.open.items()]
        lines += [_line("out", queue_id, 0, 0, 0, 0) for queue_id in kept]
        lines += [_line("aside", queue_id) for queue_id in sorted(self.aside & set(self.open))]
        try:
            fd = put_in_place(self._disk, self._path, b"".join(lines), clear_the_way=self._clear_the_way)
        except OSError:
            if self._fd is not None and not self._disk.leads_to(self._path, self._fd):
                # The new one took its place and may not be durable: the next line brings another.
                self.close()
            raise
        self.close()
        self._fd, self._lines = fd, len(lines)
        self._is_torn = self._is_doubtful = False
        self.closed = set(kept)
        return fd

    def go_on(self) -> None:
        """Go on with the file that was read, where there is no room for a short one.

        A killed sender or a failed sync may have left lines in memory only: they are written again in place.
        """
        if self._disk.length(self._path) is None:
            return  # the first line that is written brings it into being
        raw = self._read_file()
        with opened(self._disk, self._disk.open_update(self._path)) as fd:
            if raw:
                # Crash here: the same bytes as before.
                self._disk.write_at(fd, raw, 0)
                self._disk.sync(fd)
        self.close()
        self._fd = self._disk.open_append(self._path)
        self._is_torn, self._is_doubtful = not raw.endswith(b"\n"), False
        self._disk.sync_directory(self._root)

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
        self.count_in(fresh)

    def leave(self, messages: Mapping[QueueId, Sequence[Status]]) -> None:
        """Count messages out durably, by the last status of each recipient; once only."""
        known = {
            queue_id: fates_of(statuses) for queue_id, statuses in messages.items() if queue_id in self.open
        }
        if not known:
            return
        fd = self._append([_line("out", queue_id, *fates) for queue_id, fates in known.items()])
        self._is_doubtful = True
        self._disk.sync_content(fd)
        self._is_doubtful = False
        # Crash here: counted, and the file still there; the next start only removes it.
        for queue_id, fates in known.items():
            self.count_out(queue_id, fates)

    def put_aside(self, queue_id: QueueId) -> None:
        """Remember that a message's file is in corrupt/ now; not durable before the next `leave`."""
        if queue_id in self.open and queue_id not in self.aside:
            self._append([_line("aside", queue_id)])
            self.aside.add(queue_id)

    def go_on_with(self, account: LedgerAccount) -> None:
        """Add what another spool's ledger says of what is gone; durable when it returns."""
        self.add(account)
        self.rewrite(still_there=self.closed)

    def close(self) -> None:
        if self._fd is not None:
            self._disk.close(self._fd)
            self._fd = None

    def _clear_the_way(self, draft: str) -> None:
        if why_not_ours(self._disk, draft, is_draft_of_the_ledger, self._disk.open_read) is None:
            self._disk.unlink(draft)
        else:
            set_aside(self._disk, self._root, draft)

    def _append(self, lines: list[bytes]) -> int:
        fd = self._fd
        if fd is None or self._is_doubtful:
            # A failed sync lost lines that everybody can still read: only a new file has them all.
            fd = self.rewrite(still_there=self.closed)
        start = b"\n" if self._is_torn else b""
        self._is_torn = True
        self._disk.write_all(fd, start + b"".join(lines))
        self._is_torn = False
        self._lines += len(lines)
        return fd

    def _read_file(self) -> bytes:
        if self._disk.length(self._path) is None:
            return b""
        with opened(self._disk, self._disk.open_read(self._path)) as fd:
            return self._disk.pread(fd, min(self._disk.size(fd), LARGEST_BYTES), 0)

    def _take_line(self, line: bytes) -> bool:
        """Apply a line; return whether it is whole."""
        text, _, check = line.rpartition(b" ")
        if check != b"%08x" % zlib.crc32(text):
            return False
        # A right checksum proves only that it is whole, not that this version wrote it.
        match text.decode("ascii", "replace").split(" "):
            # Only at the beginning: behind other lines it would take back what they said.
            case ["total", *figures] if _are_counts(figures, 5) and not (self.open or self.closed):
                self.totals = Totals(*map(int, figures))
            case ["in", queue_id, count] if is_queue_id(queue_id) and _are_counts([count], 1):
                self.count_in([(QueueId(queue_id), int(count))])
            case ["out", queue_id, *figures] if is_queue_id(queue_id) and _are_counts(figures, 4):
                relayed, bounced, expired, deleted = map(int, figures)
                self.count_out(QueueId(queue_id), (relayed, bounced, expired, deleted))
            case ["aside", queue_id] if is_queue_id(queue_id):
                self.aside.add(QueueId(queue_id))
            case _:
                return False
        return True


def _are_counts(words: Sequence[str], number: int) -> bool:
    return len(words) == number and all(_COUNT.fullmatch(word) for word in words)


def _line(*words: str | int) -> bytes:
    text = " ".join(map(str, words)).encode()
    return b"%s %08x\n" % (text, zlib.crc32(text))
