"""Where things are in a maildir spool, and what a restart does with each.

    state      tmp/ID  new/ID  cur/NN/ID  hold/ID  on restart
    draft      yes     -       -          -        removed once its writer's lock is free: no 250 was sent
    accepted   maybe   yes     -          -        taken into cur/: 250 may have been sent
    queued     -       -       yes        -        scheduled, now or at its next attempt
    finished   -       -       yes        -        no recipient left: report published if owed, then removed
    held       -       -       -          yes      left: an operator said stop
    corrupt    -       -       -          -        left in corrupt/ and counted, for a human being
    gone       -       -       -          -        -

The folder is the state; one link or rename is one transition.  bounce/ID holds the notes
about failed and deferred recipients and goes after its message.  An absent file never means
"finished": what ends a message is its own status bytes.

Beside them: `lock` (who may send), `ledger`, `trigger` (a FIFO), `control.sock`, `format`,
`reserve` (see `headroom`), `reports` and `boots`, which the sender keeps.
"""

import zlib
from dataclasses import dataclass
from typing import Literal

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk
from relay.spool.root.lock import prepare_root

SPLITS = 64
READ_AGAIN = frozenset({"tmp", "new", "cur", "hold"})
"""Folders whose files are read again each hour where they had to be left."""
FORMAT = b"relay spool 1 maildir\n"


@dataclass(frozen=True, slots=True)
class Layout:
    root: str

    def folder(self, name: Literal["tmp", "new", "cur", "hold", "corrupt", "bounce"]) -> str:
        return f"{self.root}/{name}"

    def file(
        self,
        name: Literal["lock", "ledger", "trigger", "format", "reserve", "boots", "notes.new", "control.sock"],
    ) -> str:
        return f"{self.root}/{name}"

    def folders(self) -> list[str]:
        tops = [self.folder(name) for name in ("tmp", "new", "cur", "hold", "corrupt", "bounce")]
        return [self.root, *tops, *self.queued_folders()]

    def queued_folders(self) -> list[str]:
        return [f"{self.root}/cur/{split:02d}" for split in range(SPLITS)]

    def queued_folder(self, queue_id: QueueId) -> str:
        return f"{self.root}/cur/{zlib.crc32(queue_id.encode()) % SPLITS:02d}"

    def draft(self, queue_id: QueueId) -> str:
        return f"{self.folder('tmp')}/{queue_id}"

    def accepted(self, queue_id: QueueId) -> str:
        return f"{self.root}/new/{queue_id}"

    def queued(self, queue_id: QueueId) -> str:
        return f"{self.queued_folder(queue_id)}/{queue_id}"

    def held(self, queue_id: QueueId) -> str:
        return f"{self.root}/hold/{queue_id}"

    def is_new(self, path: str) -> bool:
        return path.startswith(f"{self.root}/new/")

    def notes(self, queue_id: QueueId) -> str:
        return f"{self.root}/bounce/{queue_id}"


def is_published(disk: Disk, layout: Layout, queue_id: QueueId) -> bool:
    """Return whether a report is there, durably.  Raises OSError."""
    for place in (layout.accepted, layout.queued, layout.held):
        if disk.inode(place(queue_id)) is not None:
            # Who put it there may have been killed before its name was durable.
            disk.sync_directory(place(queue_id).rpartition("/")[0])
            return True
    return False


def prepare(root: str, disk: Disk) -> None:
    prepare_root(root, disk, FORMAT, Layout(root).folders())
