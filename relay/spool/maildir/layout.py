"""The folders of a maildir spool, the states of a message, and what a start does with each state.

    state      tmp/ID  new/ID  cur/NN/ID  hold/ID  at a start
    draft      yes     -       -          -        removed once its writer's lock is free: no 250 was sent
    accepted   maybe   yes     -          -        taken into cur/: 250 may have been sent
    queued     -       -       yes        -        claimed; the owner ends it if no recipient is left
    held       -       -       -          yes      claimed as held by an operator
    corrupt    -       -       -          -        stays in corrupt/ and is counted, for an operator
    gone       -       -       -          -        -

The folder is the state; one link or rename is one transition.  notes/ID says why recipients failed, and is
removed after its message.  An absent file never means "relayed": its own status bytes end a message.

Every spool also has `format`, `lock` (of the queue's owner), `intakes` (the listeners' lock), `trigger`
(a FIFO), `control.sock`.
"""

import zlib

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk
from relay.spool.root.lock import prepare_root
from relay.spool.root.quarantine import corrupt_folder

SPLITS = 64
FORMAT = b"relay spool 1 maildir\n"
PIECES = ("tmp", "new", "cur", "hold", "notes")


class MaildirLayout:
    def __init__(self, root: str) -> None:
        self.drafts, self.new, self.cur, self.hold, self.notes = (f"{root}/{name}" for name in PIECES)

    def queued_folders(self) -> list[str]:
        return [f"{self.cur}/{split:02d}" for split in range(SPLITS)]

    def queued(self, queue_id: QueueId) -> str:
        return f"{self.cur}/{zlib.crc32(queue_id.encode()) % SPLITS:02d}/{queue_id}"

    def home(self, queue_id: QueueId, *, is_held: bool) -> str:
        return f"{self.hold}/{queue_id}" if is_held else self.queued(queue_id)


def prepare(root: str, disk: Disk) -> None:
    """Create the folders and `format`.  Raises as `prepare_root` does."""
    layout = MaildirLayout(root)
    folders = [f"{root}/{name}" for name in PIECES]
    prepare_root(root, disk, FORMAT, (*folders, *layout.queued_folders(), corrupt_folder(root)))


def is_published(disk: Disk, layout: MaildirLayout, queue_id: QueueId) -> bool:
    """Return whether a message exists; if so, make its name durable.  Raises OSError."""
    for path in (f"{layout.new}/{queue_id}", layout.queued(queue_id), f"{layout.hold}/{queue_id}"):
        if disk.inode(path) is not None:
            # An earlier sync of its name may have failed.
            disk.sync_directory(path.rpartition("/")[0])
            return True
    return False
