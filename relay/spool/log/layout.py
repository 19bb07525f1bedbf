"""The files in a spool of the engine log.

    format                     `relay spool 1 log`
    log/STREAM.lock            locked by the stream's writer while it lives; how far its mail is accepted
    log/STREAM.NUMBER          a segment: groups of records, append-only (`record`)
    log/checkpoint             what a start need not read again (`checkpoint`), and a copy of it
    long/ID                    a message whose content does not fit into a record, in the maildir's format
    long/ID.part               the same while it arrives; its writer holds its lock; or a stream's lock file
                               that is not locked and renamed yet
    corrupt/                   copies of damaged messages and stretches, for people to read

A listener's stream is named by an id that is never used twice.  The sender's stream is `sender`, and each
start of it begins another segment.  Every spool also has `lock`, `intakes`, `trigger` and `control.sock`.
"""

import re
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk
from relay.spool.root.lock import prepare_root
from relay.spool.root.quarantine import corrupt_folder

FORMAT = b"relay spool 1 log\n"
PIECES = ("log", "long")
"""Folders in the root that belong to this engine."""
SENDER = "sender"
PART = ".part"
NAMES = re.compile(r"([0-9a-z]{16}|sender)\.(?:([0-9]{10})|lock)\Z")
"""A name in log/: the stream, and the number of a segment; a lock has no number."""


class SegmentName(NamedTuple):
    stream: str
    number: int

    def __str__(self) -> str:
        return f"{self.stream}.{self.number:010d}"


class LogLayout:
    def __init__(self, root: str) -> None:
        self.log, self.long = f"{root}/log", f"{root}/long"
        self.checkpoints = (f"{self.log}/checkpoint", f"{self.log}/checkpoint.copy")

    def segment(self, name: SegmentName) -> str:
        return f"{self.log}/{name}"

    def stream_lock(self, stream: str) -> str:
        return f"{self.log}/{stream}.lock"

    def content(self, queue_id: QueueId) -> str:
        return f"{self.long}/{queue_id}"

    def part(self, queue_id: QueueId) -> str:
        return f"{self.long}/{queue_id}{PART}"


def prepare(root: str, disk: Disk) -> None:
    """Raise OSError, and ValueError for a spool of another format."""
    layout = LogLayout(root)
    prepare_root(root, disk, FORMAT, (layout.log, layout.long, corrupt_folder(root)))
