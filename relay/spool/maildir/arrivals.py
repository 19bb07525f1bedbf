"""What listeners published and the sender has not taken yet: from new/ into the queue.

Guarantees: a message is taken once, oldest first; one whose listener may still take it
back is left for later; what is no message of ours goes to corrupt/, and the rest goes on.
For the holder of the spool's lock.  Does not: count, or remember what it took.
"""

from collections import deque
from collections.abc import Callable

from relay.mail.envelope import QueueId
from relay.queue.sorting import Sorter
from relay.spool.durable import Disk
from relay.spool.interface import Corrupt
from relay.spool.maildir import files
from relay.spool.maildir.layout import Layout, is_queue_id
from relay.spool.maildir.quarantine import Quarantine


class Arrivals:
    """The messages in new/ of one spool."""

    def __init__(
        self, disk: Disk, layout: Layout, aside: Quarantine, set_aside: Callable[[str, str], None]
    ) -> None:
        """`set_aside` is given the path of what is no message, and why."""
        self._disk = disk
        self._layout = layout
        self._aside = aside
        self._set_aside = set_aside
        self._pending: deque[str] = deque()

    def take(
        self, most: int, has_room: Callable[[], bool], sorter: Sorter | None = None
    ) -> list[files.Opened]:
        """Take up to `most` messages, sorted; with their content as long as there `has_room` for it.

        Fewer where we lack descriptors or memory.  Raises OSError where the disk fails.
        """
        if len(self._pending) < most:
            # Not only when none is left: what came since the last look was announced once.
            self._pending = deque(sorted(self._disk.names(self._layout.folder("new"))))
        taken: list[files.Opened] = []
        while self._pending and len(taken) < most:
            name = self._pending.popleft()
            path = f"{self._layout.folder('new')}/{name}"
            try:
                if (message := self._take(path, name, sorter, with_content=has_room())) is not None:
                    taken.append(message)
                self._aside.forget(path)
            except (FileNotFoundError, files.StillArriving):
                continue  # its listener met an error and took it back, or is about to pull the trigger
            except Corrupt as fault:
                self._set_aside(path, str(fault))
            except OSError as error:
                if files.is_our_own_lack(error):
                    break
                if not files.is_about_the_file(error):
                    raise
                self._aside.leave(path, f"cannot be taken: {error.strerror}")
        return taken

    def _take(
        self, path: str, name: str, sorter: Sorter | None, *, with_content: bool
    ) -> files.Opened | None:
        """Return None for a message that is in the queue already, under another name too."""
        if not is_queue_id(name):
            raise Corrupt("not a name that we give")
        queue_id = QueueId(name)
        message = files.read(
            self._disk, path, queue_id, with_content=with_content, is_new=True, sorter=sorter
        )
        home = self._layout.queued(queue_id)
        for place in (home, self._layout.held(queue_id)):
            if self._disk.inode(place) is not None:
                # The start could not remove it, or it came back with a folder of a backup.
                files.drop_second_name(self._disk, path, place)
                return None
        if self._disk.inode(self._layout.draft(queue_id)) is not None:
            # Its listener died between publishing it and making that durable.
            self._disk.sync_directory(self._layout.folder("new"))
        # Crash here, or after the rename: accepted or queued, the next start finds either.
        self._disk.rename(path, home)
        return message
