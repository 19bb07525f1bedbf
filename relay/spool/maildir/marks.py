"""The status bytes of one open message file, and that its sender was warned: verified, then written.

Guarantees: no byte of a file is written that is not the message that was read, or whose
recipients changed; nothing at all is written into such a file.  Does not: sync.
"""

from collections.abc import Iterator, Mapping

from relay.spool.durable import Disk
from relay.spool.interface import Corrupt, SpoolFault, Status
from relay.spool.maildir import message_file
from relay.spool.maildir.files import Opened


def verify(disk: Disk, fd: int, known: Opened, marks: Mapping[int, Status]) -> None:
    """Look whether a file still has these recipients, to do or marked so already.

    Raises Corrupt where it changed under us, SpoolFault for a recipient who is known to
    have another fate: that would be a fault of ours, which no file explains.
    """
    if disk.size(fd) != known.header.file_bytes:
        raise Corrupt("its length changed while it was being sent")
    for index, status in marks.items():
        line = known.envelope.recipients[index].encode() + b"\n"
        found = disk.pread(fd, len(line) + 1, known.offsets[index])
        if found in (Status.TODO.value + line, status.value + line):
            continue
        if found == known.statuses[index].value + line:
            raise SpoolFault(f"{known.queue_id}: recipient {index} is {known.statuses[index].name} already")
        raise Corrupt(f"the line of recipient {index} changed while it was being sent")


def write(disk: Disk, fd: int, known: Opened, marks: Mapping[int, Status]) -> Iterator[Status]:
    """Set status bytes, in the file and in memory; yield each of a recipient who was to do once it is set."""
    for index, status in marks.items():
        disk.write_at(fd, status.value, known.offsets[index])
        before, known.statuses[index] = known.statuses[index], status
        if before is Status.TODO:
            yield status


def warn(disk: Disk, fd: int, known: Opened) -> None:
    """Write down that the sender was told of the delay.  Raises Corrupt for the file of another message."""
    found = message_file.decode_header(disk.pread(fd, message_file.HEADER_BYTES, 0))
    if not found.is_of_the_same_as(known.header):
        raise Corrupt("it is the file of another message")
    disk.write_at(fd, message_file.WARNED_BYTE, message_file.WARNED_OFFSET)
