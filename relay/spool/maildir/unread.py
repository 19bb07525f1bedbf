"""Messages that had to be left where they are: read again, now and then, until the disk gives them.

Guarantees: one comes back into the queue once, from the folder that it is in, with its
marks durable; what was counted out is removed instead, and what is damaged goes to
corrupt/.  An error says nothing but that it is not yet time.  A disk that fails is asked
FAILURES_AN_HOUR times between two calls of `look_again`, by turns, and once a call: each
answer may take it half a minute.  For the holder of the spool's lock.
Does not: read new/, which `arrivals` lists anyway, or count.
"""

from collections import deque
from collections.abc import Callable

from relay.mail.envelope import QueueId
from relay.queue.sorting import Sorter
from relay.spool.durable import Disk
from relay.spool.interface import Corrupt, Status
from relay.spool.maildir import files
from relay.spool.maildir.layout import Layout, is_queue_id
from relay.spool.maildir.ledger import Ledger
from relay.spool.maildir.quarantine import Quarantine

FAILURES_AN_HOUR = 8
"""Where `look_again` is called once an hour."""


class Unread:
    """The messages in cur/ and hold/ of one spool that its start had to leave."""

    def __init__(
        self,
        disk: Disk,
        layout: Layout,
        ledger: Ledger,
        aside: Quarantine,
        set_aside: Callable[[str, str], None],
    ) -> None:
        """`set_aside` is given the path of what is no message, and why."""
        self._disk = disk
        self._layout = layout
        self._ledger = ledger
        self._aside = aside
        self._set_aside = set_aside
        self._due: deque[str] = deque()
        self._failures = 0

    def look_again(self) -> None:
        """Have the next calls of `take` read again what was left."""
        folders = (*self._layout.queued_folders(), self._layout.folder("hold"))
        self._due = deque(self._aside.left_in(folders))
        self._failures = 0

    def take(self, most: int, sorter: Sorter | None = None) -> list[tuple[files.Opened, bool]]:
        """Return up to `most` messages that can be read and marked by now, and whether each is held."""
        taken: list[tuple[files.Opened, bool]] = []
        while self._due and len(taken) < most:
            path = self._due.popleft()
            is_held = path.startswith(self._layout.folder("hold"))
            try:
                message = self._take(path, is_held=is_held, sorter=sorter)
            except FileNotFoundError:
                self._aside.forget(path)  # missed by the next start, if it does not come back
            except Corrupt as fault:
                self._set_aside(path, str(fault))
            except OSError as error:
                self._is_not_yet(path, error)
                break
            else:
                self._aside.forget(path)
                if message is not None:
                    taken.append((message, is_held))
        return taken

    def _is_not_yet(self, path: str, error: OSError) -> None:
        if files.is_our_own_lack(error):
            self._due.appendleft(path)
            return
        self._aside.leave(path, f"cannot be taken: {error.strerror}")
        self._failures += 1
        if self._failures >= FAILURES_AN_HOUR:
            self._due.clear()

    def _take(self, path: str, *, is_held: bool, sorter: Sorter | None) -> files.Opened | None:
        """Return None for what is in the queue by another name, or has ended."""
        name = path.rpartition("/")[2]
        if not is_queue_id(name):
            raise Corrupt("not a name that we give")
        queue_id = QueueId(name)
        held, queued = self._layout.held(queue_id), self._layout.queued(queue_id)
        for place in (held, queued):
            if place != path and self._disk.inode(place) is not None:
                files.drop_second_name(self._disk, path, place)
                return None
        # With its content: what is damaged and cannot be moved must not come back each hour.
        message = files.read(self._disk, path, queue_id, with_content=True, sorter=sorter)
        if Status.TODO not in message.statuses and queue_id in self._ledger.closed:
            # Crash here: it is found counted out by the next start too.
            self._disk.unlink(path)
            return None
        if any(status is not Status.TODO for status in message.statuses):
            files.write_marks_again(self._disk, [(path, message)])
        if path != (home := held if is_held else queued):
            # Crash here: the next start moves it.
            self._disk.rename(path, home)
        return message
