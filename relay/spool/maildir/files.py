"""Message files on the disk: read, marked, set aside; and what an error of the disk says of one.

Guarantees: what is returned matched every length, checksum and id; any other file is `Corrupt`.  No
byte is written into a file that is not the message that was read, or whose recipients changed.
OSError for a lack of our own (descriptors, memory) says nothing about the file.  Nor does Unreadable,
where the disk gives no bytes: they may come the next time, so the message keeps its place.
"""

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence

from relay.mail.envelope import QueueId
from relay.mail.text import clean
from relay.queue.sorting import Sorter
from relay.spool.durable import Disk, opened, why_a_strangers
from relay.spool.interface import INLINE_BYTES, Absent, Corrupt, SpoolFault, SpoolFull, Status
from relay.spool.maildir import message_file
from relay.spool.maildir.layout import Layout
from relay.spool.maildir.message_file import Opened
from relay.verdicts.shortage import NO_MEANS

LONGEST_NAME_BYTES = 250
_FIRST_READ_BYTES = 64 * 1024
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_OUR_OWN_LACK = _NO_ROOM | NO_MEANS | {errno.EINTR, errno.EAGAIN}
_NOT_NOW = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EUCLEAN, errno.EBADMSG, errno.ENODATA})
"""The last three are what file systems say whose own checksums do not match, and disks of a lost sector."""
_ABOUT_THE_FILE = frozenset(
    {errno.EPERM, errno.EACCES, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EBUSY}
)


class StillArriving(Exception):  # noqa: N818 - a state, not an error
    """Its listener has published it and not yet said so: it may still be taken back."""


class Unreadable(OSError):  # noqa: N818 - a state of the disk
    """The disk does not give us a file's bytes now, which says nothing about what they are."""


def is_our_own_lack(error: OSError) -> bool:
    """Return whether an error is about us (descriptors, memory, room) and not about a file."""
    return error.errno in _OUR_OWN_LACK


def is_lack_of_room(error: BaseException | None) -> bool:
    """Return whether an error says that the disk is full, or our share of it."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def is_about_the_file(error: OSError) -> bool:
    return error.errno in _ABOUT_THE_FILE or isinstance(error, Unreadable)


def is_not_now(error: OSError) -> bool:
    return error.errno in _NOT_NOW


@contextlib.contextmanager
def faults(what: str) -> Iterator[None]:
    """Turn a lack of ours into SpoolFull, a failing disk into SpoolFault: memory and disk may differ then.

    A sync that failed for lack of room is never taken for done: the call is made again from
    its start, and that writes the same bytes again before it syncs them.
    """
    try:
        yield
    except OSError as error:
        if is_our_own_lack(error):
            raise SpoolFull(f"{what}: {error.strerror}") from error
        raise SpoolFault(f"{what}: {error.strerror}") from error


@contextlib.contextmanager
def absence(queue_id: QueueId) -> Iterator[None]:
    """Turn the lack of a message's file into Absent: somebody removed it by hand."""
    try:
        yield
    except FileNotFoundError as error:
        raise Absent(queue_id) from error


def read(
    disk: Disk,
    path: str,
    queue_id: QueueId,
    *,
    with_content: bool,
    is_new: bool = False,
    is_shown_only: bool = False,
    sorter: Sorter | None = None,
) -> Opened:
    """Read and check a message file, as one that can also be marked unless it `is_shown_only`.

    It is sorted by its envelope and the first 64 KiB.  Raises Corrupt, FileNotFoundError, Unreadable,
    StillArriving for a new one whose listener is not done with it, and any other OSError only for a lack
    of our own or a disk that may only be read.
    """
    # What can be read and not marked would be relayed at each start, over and over.
    open_file = disk.open_read if is_shown_only else disk.open_update
    with _faults_of_the_file(), opened(disk, open_file(path)) as fd:
        # The listener holds this lock from its first byte until its names are durable.
        if is_new and not disk.lock_open(fd):
            raise StillArriving
        _refuse_strangers(disk, fd, path)
        return _read(disk, fd, queue_id, with_content=with_content, sorter=sorter)


def read_again(disk: Disk, path: str, known: Opened) -> None:
    """Read the header and content of a message whose envelope is known.

    Not its recipients: each transaction of one message with 10,000 recipients costs the same.
    Raises as `read` does; Corrupt also for the file of another message.
    """
    with _faults_of_the_file(), opened(disk, disk.open_update(path)) as fd:
        _refuse_strangers(disk, fd, path)
        # Not a byte of the envelope: its length is what must not count.
        first = disk.pread(fd, min(_FIRST_READ_BYTES, known.header.envelope_offset), 0)
        header = _header(disk, fd, first)
        if not header.is_of_the_same_as(known.header):
            raise Corrupt("the file of another message than before")
        content = _content(disk, fd, first, header)
        known.header, known.content, known.modified_at_ns = header, content, disk.modified_at_ns(fd)


def stream(disk: Disk, path: str, queue_id: QueueId) -> Iterator[bytes]:
    """Yield the content in chunks; raises Corrupt before the last one if any octet is wrong."""
    with _faults_of_the_file(), opened(disk, disk.open_read(path)) as fd:
        header = _read(disk, fd, queue_id, with_content=False).header
        crc, held_back = 0, b""
        for offset in range(0, header.content_bytes, INLINE_BYTES):
            size = min(INLINE_BYTES, header.content_bytes - offset)
            chunk = disk.pread(fd, size, message_file.HEADER_BYTES + offset)
            crc = message_file.checksum(chunk, crc)
            if held_back:
                yield held_back
            held_back = chunk
        if crc != header.content_crc:
            raise Corrupt("the content does not match its checksum")
        yield held_back


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
                there = _read(disk, fds[-1], message.queue_id, with_content=False)
            except Corrupt:
                continue  # replaced since it was read: it is set aside when its turn comes
            for offset, status in zip(there.offsets, there.statuses, strict=True):
                if status is not Status.TODO:
                    disk.write_at(fds[-1], status.value, offset)
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
        line = known.envelope.recipients[index].encode() + b"\n"
        found = disk.pread(fd, len(line) + 1, known.offsets[index])
        if found in (Status.TODO.value + line, status.value + line):
            continue
        if found == known.statuses[index].value + line:
            raise SpoolFault(f"{known.queue_id}: recipient {index} is {known.statuses[index].name} already")
        raise Corrupt(f"the line of recipient {index} changed while it was being sent")


def write_marks(disk: Disk, fd: int, known: Opened, marks: Mapping[int, Status]) -> Iterator[Status]:
    """Set status bytes in file and memory; yield each that was TODO once it is set."""
    for index, status in marks.items():
        disk.write_at(fd, status.value, known.offsets[index])
        before, known.statuses[index] = known.statuses[index], status
        if before is Status.TODO:
            yield status


def write_warned(disk: Disk, fd: int, known: Opened) -> None:
    """Write down that the sender was told of the delay.  Raises Corrupt for the file of another message."""
    found = message_file.decode_header(disk.pread(fd, message_file.HEADER_BYTES, 0))
    if not found.is_of_the_same_as(known.header):
        raise Corrupt("it is the file of another message")
    disk.write_at(fd, message_file.WARNED_BYTE, message_file.WARNED_OFFSET)


def set_aside(disk: Disk, layout: Layout, path: str, prefix: str = "") -> None:
    """Move a file to corrupt/, never over another; `prefix` goes before its name.  Raises OSError."""
    folder = layout.folder("corrupt")
    # With what is added it may not be longer than 255 octets (NAME_MAX).
    name = os.fsdecode(os.fsencode(prefix + path.rpartition("/")[2])[:LONGEST_NAME_BYTES])
    target, number = f"{folder}/{name}", 0
    while disk.inode(target) is not None:
        number += 1
        target = f"{folder}/{name}.{number}"
    # Crash here: it is found corrupt again at the next start.
    disk.rename(path, target)


def describe(name: str) -> str:
    return clean(name)[:80]


@contextlib.contextmanager
def _faults_of_the_file() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if is_our_own_lack(error) or error.errno == errno.EROFS:
            raise
        if is_not_now(error):
            raise Unreadable(error.errno, error.strerror) from error
        raise Corrupt(f"cannot be read and marked: {error.strerror}") from error


def _refuse_strangers(disk: Disk, fd: int, path: str) -> None:
    if (why := why_a_strangers(disk, fd, path)) is not None:
        raise Corrupt(why)


def _read(
    disk: Disk, fd: int, queue_id: QueueId, *, with_content: bool, sorter: Sorter | None = None
) -> Opened:
    first = disk.pread(fd, _FIRST_READ_BYTES, 0)
    header = _header(disk, fd, first)
    raw = _part(disk, fd, first, header.envelope_offset, header.envelope_bytes)
    message = message_file.decode_envelope(queue_id, header, raw)
    if with_content:
        message.content = _content(disk, fd, first, header)
    if sorter is not None:
        # Read already: it costs no call, and no memory longer than this.
        message.lane = sorter.lane_of(
            message.envelope, lambda: first[message_file.HEADER_BYTES : header.envelope_offset]
        )
    message.modified_at_ns = disk.modified_at_ns(fd)
    return message


def _header(disk: Disk, fd: int, first: bytes) -> message_file.Header:
    header = message_file.decode_header(first[: message_file.HEADER_BYTES])
    if (size := disk.size(fd)) != header.file_bytes:
        raise Corrupt(f"{size} bytes long where its header says {header.file_bytes}")
    return header


def _content(disk: Disk, fd: int, first: bytes, header: message_file.Header) -> bytes | None:
    """Return the content, checked; None if it is long."""
    if header.content_bytes > INLINE_BYTES:
        return None
    content = _part(disk, fd, first, message_file.HEADER_BYTES, header.content_bytes)
    if message_file.checksum(content) != header.content_crc:
        raise Corrupt("the content does not match its checksum")
    return content


def _part(disk: Disk, fd: int, first: bytes, offset: int, size: int) -> bytes:
    if offset + size <= len(first):
        return first[offset : offset + size]
    return disk.pread(fd, size, offset)
