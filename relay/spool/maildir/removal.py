"""The end of messages: their files go, then their notes.

For messages that are counted out durably.  Does not: decide that one has ended.
"""

import contextlib
from collections.abc import Collection, Mapping

from relay.mail.envelope import QueueId
from relay.spool.durable import Disk
from relay.spool.maildir.layout import Layout


def remove_ended(
    disk: Disk,
    layout: Layout,
    paths: Mapping[QueueId, str],
    reported: Collection[QueueId],
    noted: Collection[str],
) -> None:
    """Remove messages, durably those that were `reported`, and the notes of those that are `noted`.

    Raises OSError; what is gone already is no error.
    """
    for path in paths.values():
        # Crash here: counted and all done; the next start removes it, and counts it no more.
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(path)
    for folder in {paths[queue_id].rpartition("/")[0] for queue_id in reported}:
        # Its report may be relayed from now on: the message must not come back and report again.
        disk.sync_directory(folder)
    for queue_id in [queue_id for queue_id in paths if queue_id in noted]:
        # Also of one that was relayed in the end: its note may be of an attempt before a crash.
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(layout.notes(queue_id))
