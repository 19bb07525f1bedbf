"""Status bytes and the byte of the warning, set in message files: all that ever changes of one.

Guarantees: no byte is written into a file that is not the message that was read, or whose recipients changed.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from relay.spool.disk.durable import Disk, opened
from relay.spool.interface import Corrupt, SpoolFault, Status
from relay.spool.message import files, message_file
from relay.spool.message.message_file import Opened


def write_marks_again(disk: Disk, found: Sequence[tuple[str, Opened]]) -> None:
    """Make every status byte that was read durable.  Raises OSError.

    A killed sender or a failed sync may have left it in the page cache only, as clean; so it is written
    again before the sync.  Each byte is read anew from the very file that it is written to: no recipient
    is marked who was not.
    """
    with contextlib.ExitStack() as stack:
        fds = []
        for path, message in found:
            if message.statuses.count(Status.TODO) == len(message.statuses):
                continue
            fds.append(stack.enter_context(opened(disk, disk.open_update(path))))
            try:
                there = files.read_open(disk, fds[-1], disk.status(fds[-1]), message.queue_id)
            except Corrupt:
                continue  # replaced since it was read: it is set aside when its turn comes
            for index, status in enumerate(there.statuses):
                if status is not Status.TODO:
                    disk.write_at(fds[-1], there.mark_of(index), there.offsets[index])
            with contextlib.suppress(OSError):
                # Writing took away the hint that `postpone` left.
                disk.set_modified_at_ns(fds[-1], message.modified_at_ns)
        for error in disk.sync_each(fds, content_only=True):
            if error is not None:
                raise error


def verify_marks(disk: Disk, fd: int, known: Opened, marks: Mapping[int, Status]) -> None:
    """Look whether a file still has these recipients, to do or marked so already.

    Raises Corrupt where it changed under us, SpoolFault for a recipient who is known to
    have another fate: that would be a fault of ours, which no file explains.
    """
    if disk.size(fd) != known.header.file_bytes:
        raise Corrupt("its length changed while it was being sent")
    for index, status in marks.items():
        found = _mark_on_disk(disk, fd, known, index)
        if found in (Status.TODO.value, status.value):
            continue
        if status.is_reported and found == status.value.lower() and known.statuses[index] is status:
            # Its sender was told; where a lack of ours kept the sync of that off, it is not known of yet.
            continue
        if found == known.mark_of(index):
            raise SpoolFault(f"{known.queue_id}: recipient {index} is {known.statuses[index].name} already")
        raise Corrupt(f"the line of recipient {index} changed while it was being sent")


def _mark_on_disk(disk: Disk, fd: int, known: Opened, index: int) -> bytes | None:
    """Return a recipient's status byte; None where the line is not that recipient's."""
    line = known.envelope.recipients[index].encode() + b"\n"
    found = disk.pread(fd, len(line) + 1, known.offsets[index])
    return found[:1] if found[1:] == line else None


def write_marks(disk: Disk, fd: int, known: Opened, marks: Mapping[int, Status]) -> Iterator[Status]:
    """Set status bytes in file and memory; yield each that was TODO once it is set."""
    for index, status in marks.items():
        if index in known.reported:
            continue
        disk.write_at(fd, status.value, known.offsets[index])
        before, known.statuses[index] = known.statuses[index], status
        if before is Status.TODO:
            yield status


def mark_reported(disk: Disk, fd: int, known: Opened, told: Sequence[int]) -> None:
    """Write down durably that the sender was told of recipients, the first of them last.

    The report's id follows from the first one, so whatever of this a crash leaves leads to that report.
    Raises Corrupt where the file changed under us.
    """
    first, others, hint_ns = told[0], told[1:], disk.status(fd).modified_at_ns
    for some in (others, (first,)):
        for index in some:
            mark = known.statuses[index].value
            if _mark_on_disk(disk, fd, known, index) not in (mark, mark.lower()):
                raise Corrupt(f"the line of recipient {index} changed while its sender was told")
            disk.write_at(fd, mark.lower(), known.offsets[index])
        if some:
            # Crash here: the first is not marked, and the report is found by it.
            disk.sync_content(fd)
            known.reported.update(some)
    with contextlib.suppress(OSError):
        # Writing took away the hint that `postpone` left.
        disk.set_modified_at_ns(fd, hint_ns)


def write_warned(disk: Disk, fd: int, known: Opened) -> None:
    """Write down that the sender was told of the delay.  Raises Corrupt for the file of another message."""
    found = message_file.decode_header(disk.pread(fd, message_file.HEADER_BYTES, 0))
    if not found.is_of_the_same_as(known.header):
        raise Corrupt("it is the file of another message")
    disk.write_at(fd, message_file.WARNED_BYTE, message_file.WARNED_OFFSET)
