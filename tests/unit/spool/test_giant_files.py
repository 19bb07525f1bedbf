"""Files with a hole of a gigabyte in them: read as far as one of ours could reach, and no further."""

from pathlib import Path

import pytest

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import RealDisk, opened
from relay.spool.interface import Note
from relay.spool.maildir import ledger_file, notes_file
from relay.spool.maildir.layout import Layout
from relay.spool.maildir.ledger_file import LedgerFile

QUEUE_ID = QueueId("0123456789abcdef")
NOTE = Note(0, "5.1.1", "bounced", "550 no", None, 7)
MOST_BYTES = 1 << 20


class Measured(RealDisk):
    """A disk that knows the most that was read at once."""

    most_read_bytes = 0

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self.most_read_bytes = max(self.most_read_bytes, size)
        return super().pread(fd, size, offset)


def grow(disk: RealDisk, path: str) -> None:
    with opened(disk, disk.open_update(path)) as fd:
        disk.truncate(fd, 1 << 30)


def test_the_account_keeps_what_stands_before_the_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_file, "LARGEST_BYTES", MOST_BYTES)
    disk, layout = Measured(), Layout(str(tmp_path))
    account = LedgerFile(layout, disk)
    account.read()
    account.rewrite()
    account.enter([(QUEUE_ID, 3)])
    account.close()
    grow(disk, layout.file("ledger"))

    account.read()

    assert account.open == {QUEUE_ID: 3}
    assert account.damaged_lines == 1
    assert disk.most_read_bytes <= MOST_BYTES


def test_notes_keep_what_stands_before_the_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes_file, "LARGEST_BYTES", MOST_BYTES)
    disk, layout = Measured(), Layout(str(tmp_path))
    disk.make_directory(layout.folder("bounce"))
    notes_file.append(disk, layout, {QUEUE_ID: [NOTE]})
    grow(disk, layout.notes(QUEUE_ID))

    assert notes_file.read(disk, layout, QUEUE_ID) == [NOTE]
    assert disk.most_read_bytes <= MOST_BYTES
