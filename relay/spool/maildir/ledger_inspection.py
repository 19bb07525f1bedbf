"""Inspects the ledger and the notes of a maildir, which are beside the messages; changes nothing.

Both may be damaged without harm to any message: the one costs figures, the others reasons.
"""

import zlib
from collections.abc import Collection, Iterator, Mapping

from relay.mail.envelope import QueueId
from relay.spool.durable import Disk, opened
from relay.spool.finding import STOPS_THE_START, Finding, unreadable
from relay.spool.maildir import crash_remains, files, quarantine
from relay.spool.maildir.layout import Layout, is_queue_id
from relay.spool.maildir.ledger import Ledger
from relay.spool.maildir.notes import parse

_NEW_ACCOUNT = "stop the relay, remove the file `ledger`, start: a new account begins"


def notes_findings(
    disk: Disk, layout: Layout, here: Collection[str], failed: Collection[QueueId]
) -> Iterator[Finding]:
    """Yield what is to be said of bounce/; `here` are ids in the spool, `failed` those that owe reasons."""
    noted = set()
    for name in sorted(
        disk.names(layout.folder("bounce")) if disk.inode(layout.folder("bounce")) is not None else []
    ):
        path = f"{layout.folder('bounce')}/{name}"
        aside = "moved to corrupt/ when the relay starts, never deleted"
        if not is_queue_id(name):
            yield Finding(path, "foreign", "not a name that we give", aside, "see what it is")
            continue
        try:
            why = quarantine.why_not_ours(disk, path, crash_remains.is_notes, disk.open_read)
            content = _content_of(disk, path) if why is None else b""
        except OSError as error:
            if not files.is_not_now(error):
                raise
            yield unreadable(path, error.strerror, "the report may give no reasons")
            noted.add(name)
            continue
        if why is not None:
            yield Finding(path, "foreign", why, aside, "see what it is")
            continue
        noted.add(name)
        if name not in here and not _is_there(disk, layout, QueueId(name)):
            if quarantine.why_not_ours(disk, path, crash_remains.is_notes_only, disk.open_read) is not None:
                yield Finding(path, "foreign", "not only notes", aside, "see what it is")
                continue
            yield Finding(path, "leftover", "notes about a message that is gone", "removed at the next start")
            continue
        lines = content.split(b"\n")
        bad = [number for number, line in enumerate(lines, start=1) if line and parse(line) is None]
        if bad and bad[-1] < len(lines):
            what = f"line {bad[0]} is no note, or one that a crash tore"
            yield Finding(path, "torn_note", what, "skipped: the report will give no reason for it")
    for queue_id in sorted(set(failed) - noted):
        path = layout.notes(queue_id)
        yield Finding(path, "no_notes", "is not there", "the report will say that the reason is not known")


def ledger_findings(
    disk: Disk, layout: Layout, recipients: Mapping[QueueId, int], corrupt: Collection[str]
) -> Iterator[Finding]:
    """Yield what is to be said of the account, given what is in the spool."""
    path = layout.file("ledger")
    try:
        if disk.length(path) is None or (
            quarantine.why_not_ours(disk, path, quarantine.is_anything, disk.open_read) is not None
        ):
            return  # made at the next start; or told of already
        content = _content_of(disk, path)
    except OSError as error:
        if not files.is_not_now(error):
            raise
        yield unreadable(path, error.strerror, STOPS_THE_START)
        return
    ledger, lines = _ledger(disk, layout, content), content.split(b"\n")
    bad = [number for number, line in enumerate(lines, start=1) if line and not _is_whole(line)]
    if bad and bad[0] >= len(lines):
        yield Finding(
            path, "torn_line", "its last line is torn, by a crash", "skipped: it was counted for nobody"
        )
    elif bad:
        what = f"{len(bad)} damaged lines, the first is line {bad[0]}"
        yield Finding(path, "damaged_ledger", what, "skipped: figures are wrong, no message is", _NEW_ACCOUNT)
    for queue_id, count in sorted(ledger.open.items()):
        if queue_id in recipients or queue_id in corrupt:
            continue
        if queue_id in ledger.aside:
            what = f"{queue_id}, {count} recipients, was removed from corrupt/"
            yield Finding(path, "removed", what, "counted as deleted at the next start")
        elif not _is_there(disk, layout, queue_id) and not _has_ended(disk, layout, queue_id):
            what = f"{queue_id}, {count} recipients, is in the account and in no folder"
            advice = f"ask who removed it; restore it into new/, or else {_NEW_ACCOUNT}"
            yield Finding(path, "missing", what, "counted as missing at each start", advice)


def _is_there(disk: Disk, layout: Layout, queue_id: QueueId) -> bool:
    """Return whether a message is anywhere by now: it may have moved while we looked."""
    places = (layout.accepted, layout.queued, layout.held)
    return any(disk.inode(place(queue_id)) is not None for place in places)


def _has_ended(disk: Disk, layout: Layout, queue_id: QueueId) -> bool:
    return queue_id not in _ledger(disk, layout, _content_of(disk, layout.file("ledger"))).open


def _ledger(disk: Disk, layout: Layout, content: bytes) -> Ledger:
    ledger = Ledger(layout, disk)
    ledger.learn(content)
    return ledger


def _content_of(disk: Disk, path: str) -> bytes:
    with opened(disk, disk.open_read(path)) as fd:
        return disk.pread(fd, disk.size(fd), 0)


def _is_whole(line: bytes) -> bool:
    text, _, check = line.rpartition(b" ")
    return check == b"%08x" % zlib.crc32(text)
