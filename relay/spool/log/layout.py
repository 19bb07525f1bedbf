"""Where things are in a spool of the engine log.

    format                     `relay spool 1 log`
    log/STREAM.lock            held by the stream's writer while it lives; how far its mail is accepted
    log/STREAM.NUMBER          a segment: groups of records, only ever added to (`record`)
    log/STREAM.NUMBER.sum      what a start would learn from a whole segment (`summary`); discardable
    long/ID                    a message whose content does not fit into a record, in the maildir's format
    long/ID.part               the same while it arrives; its writer holds its lock
    corrupt/                   what is damaged, as a file that people can read

A listener's stream is called by an id of its own, never used twice; the sender's is `sender`, and each start
of it begins another segment.  Beside them as in every spool: `lock`, `trigger`, `control.sock`, `reserve`,
`reports` and `boots`.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk
from relay.spool.identity import is_queue_id
from relay.spool.root.lock import prepare_root
from relay.spool.root.quarantine import corrupt_folder

FORMAT = b"relay spool 1 log\n"
SENDER = "sender"
_NAME = re.compile(r"([0-9a-z]{16}|sender)\.([0-9]{10})\Z")
_LOCK = re.compile(r"([0-9a-z]{16})\.lock\Z")
_SUMMARY = ".sum"
_PART = ".part"


class SegmentName(NamedTuple):
    stream: str
    number: int


@dataclass(frozen=True, slots=True)
class LogLayout:
    root: str

    @property
    def log(self) -> str:
        return f"{self.root}/log"

    @property
    def long(self) -> str:
        return f"{self.root}/long"

    @property
    def corrupt(self) -> str:
        return corrupt_folder(self.root)

    def folders(self) -> list[str]:
        return [self.root, self.log, self.long, self.corrupt]

    def segment(self, name: SegmentName) -> str:
        return f"{self.root}/log/{name.stream}.{name.number:010d}"

    def summary(self, name: SegmentName) -> str:
        return self.segment(name) + _SUMMARY

    def stream_lock(self, stream: str) -> str:
        return f"{self.root}/log/{stream}.lock"

    def content(self, queue_id: QueueId) -> str:
        return f"{self.root}/long/{queue_id}"

    def part(self, queue_id: QueueId) -> str:
        return f"{self.root}/long/{queue_id}{_PART}"


def segment_of(name: str) -> SegmentName | None:
    found = _NAME.match(name)
    return None if found is None else SegmentName(found[1], int(found[2]))


def summary_of(name: str) -> SegmentName | None:
    return segment_of(name.removesuffix(_SUMMARY)) if name.endswith(_SUMMARY) else None


def stream_of(name: str) -> str | None:
    """Return whose lock a file of log/ is."""
    found = _LOCK.match(name)
    return None if found is None else found[1]


def draft_of(name: str) -> QueueId | None:
    """Return which message of long/ still arrives in a file, or did when its writer died."""
    queue_id = name.removesuffix(_PART)
    return QueueId(queue_id) if queue_id != name and is_queue_id(queue_id) else None


def has_writers(root: str, disk: Disk) -> bool:
    """Return whether a listener lives that writes a stream.  Raises OSError."""
    folder = LogLayout(root).log
    if disk.inode(folder) is None:
        return False
    for name in disk.names(folder):
        if stream_of(name) is not None:
            fd = disk.lock(f"{folder}/{name}", wait=False)
            if fd is None:
                return True
            disk.close(fd)
    return False


def prepare(root: str, disk: Disk) -> None:
    prepare_root(root, disk, FORMAT, LogLayout(root).folders())
