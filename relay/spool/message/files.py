"""Message files on the disk: read and listed; and what an error of the disk says of one.

Guarantees: what is returned matched every length, checksum and id; any other file is `Corrupt`.  The one
exception is a stream that its caller asks to leave unchecked.
OSError for a lack of our own (descriptors, memory) says nothing about the file.  Nor does Unreadable,
where the disk gives no bytes: they may come the next time, so the message keeps its place.
"""

import errno
from collections.abc import Collection, Generator, Iterator

from relay.mail.envelope import QueueId
from relay.mail.header import names_of
from relay.queue.sorting import Sorter
from relay.spool.disk.durable import Disk, FileStatus, opened, why_of_its_status
from relay.spool.disk.os_errors import is_not_now, is_our_own_lack
from relay.spool.interface import INLINE_BYTES, Absent, Corrupt, SetAside, Unreadable
from relay.spool.message import message_file
from relay.spool.message.message_file import Opened
from relay.spool.root.quarantine import Quarantine, describe, subject_name

LISTED_BYTES = 64 * 1024
"""Content up to here is checked for a listing; `relay fsck` checks all of it."""
_FIRST_READ_BYTES = 64 * 1024
_WRONG = "the content does not match its checksum"


class StillArriving(Exception):  # noqa: N818 - a state, not an error
    """Its listener has published it and not yet said so: it may still be taken back."""


class absence:  # noqa: N801 - as `contextlib.suppress`
    """Turn the lack of a message's file into Absent: somebody removed it by hand."""

    __slots__ = ("_queue_id",)

    def __init__(self, queue_id: QueueId) -> None:
        self._queue_id = queue_id

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise Absent(self._queue_id) from error


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
    with _faults_of_the_file, opened(disk, open_file(path)) as fd:
        # The listener holds this lock from its first byte until its names are durable.
        if is_new and not disk.lock_open(fd):
            raise StillArriving
        status = _status_of_ours(disk, fd, path)
        return read_open(disk, fd, status, queue_id, with_content=with_content, sorter=sorter)


def read_again(disk: Disk, path: str, known: Opened) -> None:
    """Read the header and content of a message whose envelope is known.

    Not its recipients: each transaction of one message with 10,000 recipients costs the same.
    Raises as `read` does; Corrupt also for the file of another message.
    """
    with _faults_of_the_file, opened(disk, disk.open_update(path)) as fd:
        status = _status_of_ours(disk, fd, path)
        # Not a byte of the envelope: its length is what must not count.
        first = disk.pread(fd, min(_FIRST_READ_BYTES, known.header.envelope_offset), 0)
        header = _header(status, first)
        if not header.is_of_the_same_as(known.header):
            raise Corrupt("the file of another message than before")
        content = _content(disk, fd, first, header)
        known.header, known.content, known.modified_at_ns = header, content, status.modified_at_ns


def stream(disk: Disk, path: str, queue_id: QueueId, *, is_checked: bool = True) -> Iterator[bytes]:
    """Yield the content in chunks, as `Spool.content` says."""
    with _faults_of_the_file, opened(disk, disk.open_read(path)) as fd:
        header = read_open(disk, fd, disk.status(fd), queue_id).header
        checksums = (yield from _checked(disk, fd, header)) if is_checked else []
        for number, (crc, chunk) in enumerate(_chunks(disk, fd, header), 1):
            # The cache may have dropped what was checked, and the disk may read otherwise now.
            if is_checked and crc != checksums[number]:
                raise Corrupt(_WRONG)
            yield chunk


def check(disk: Disk, path: str, queue_id: QueueId) -> None:
    """Read all of the content; raises Corrupt if any octet is wrong."""
    with _faults_of_the_file, opened(disk, disk.open_read(path)) as fd:
        header = read_open(disk, fd, disk.status(fd), queue_id).header
        for _ in _checked(disk, fd, header):
            pass


def _checked(disk: Disk, fd: int, header: message_file.Header) -> Generator[bytes, None, list[int]]:
    """Yield an empty chunk for each that was read; return 0 and the checksum up to the end of each."""
    checksums = [0]
    for crc, _ in _chunks(disk, fd, header):
        checksums.append(crc)
        yield b""
    if checksums[-1] != header.content_crc:
        raise Corrupt(_WRONG)
    return checksums


def _chunks(disk: Disk, fd: int, header: message_file.Header) -> Iterator[tuple[int, bytes]]:
    """Yield each chunk behind the checksum of the content up to its end."""
    crc = 0
    for offset in range(0, header.content_bytes, INLINE_BYTES):
        size = min(INLINE_BYTES, header.content_bytes - offset)
        chunk = disk.pread(fd, size, message_file.HEADER_BYTES + offset)
        crc = message_file.checksum(chunk, crc)
        yield crc, chunk


def set_aside_files(
    disk: Disk, aside: Quarantine, most: int, tried_again: Collection[str] = ()
) -> list[SetAside]:
    """Return the first `most` of what was left where it is, or is in corrupt/.  Raises OSError."""
    left = aside.left(most, tried_again)
    return left + [_listed(disk, path) for path in aside.paths(most - len(left))]


def _listed(disk: Disk, path: str) -> SetAside:
    """Return what a listing shows of a file in corrupt/; what is wrong with it is part of that."""
    name = path.rpartition("/")[2]
    shown, size_bytes, modified_at_ns = describe(name), 0, 0
    try:
        with opened(disk, disk.open_read(path)) as fd:
            size_bytes, modified_at_ns, _, _ = disk.status(fd)
        message = read(disk, path, subject_name(name), with_content=False, is_shown_only=True)
        if size_bytes <= LISTED_BYTES:
            check(disk, path, message.queue_id)
    except (Corrupt, OSError) as fault:
        why = str(fault) if isinstance(fault, Corrupt) else f"cannot be read: {fault.strerror}"
        return SetAside(shown, size_bytes, modified_at_ns, "", 0, why)
    entry = message.entry(is_held=False)
    return SetAside(
        shown,
        size_bytes,
        entry.arrival_at_ns,
        entry.reverse_path,
        entry.recipients_left,
        "can be read, and was set aside for another reason: see the log",
    )


class _FaultsOfTheFile:
    """Turn what an error of the disk says of a file into Unreadable or Corrupt."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, OSError) or isinstance(error, FileNotFoundError):
            return
        if is_our_own_lack(error) or error.errno == errno.EROFS:
            return
        if is_not_now(error):
            raise Unreadable(error.errno, error.strerror) from error
        raise Corrupt(f"cannot be read and marked: {error.strerror}") from error


_faults_of_the_file = _FaultsOfTheFile()


def _status_of_ours(disk: Disk, fd: int, path: str) -> FileStatus:
    """Raise Corrupt where the file may be somebody else's."""
    status = disk.status(fd)
    if (why := why_of_its_status(disk, status, path)) is not None:
        raise Corrupt(why)
    return status


def read_open(
    disk: Disk,
    fd: int,
    status: FileStatus,
    queue_id: QueueId,
    *,
    with_content: bool = False,
    sorter: Sorter | None = None,
) -> Opened:
    """Read and check an open file.  Raises Corrupt, OSError."""
    # No more than there is: to find the end of the file would cost a call more.
    first = disk.pread(fd, min(_FIRST_READ_BYTES, status.size_bytes), 0)
    header = _header(status, first)
    raw = _part(disk, fd, first, header.envelope_offset, header.envelope_bytes)
    message = message_file.decode_envelope(queue_id, header, raw)
    if with_content:
        message.content = _content(disk, fd, first, header)
    # Read already: it costs no call, and no memory longer than this.
    front = first[message_file.HEADER_BYTES : header.envelope_offset]
    message.names = names_of(front)
    if sorter is not None:
        message.sorted = sorter.sort(message.envelope, lambda: front)
    message.modified_at_ns = status.modified_at_ns
    return message


def _header(status: FileStatus, first: bytes) -> message_file.Header:
    header = message_file.decode_header(first[: message_file.HEADER_BYTES])
    if status.size_bytes != header.file_bytes:
        raise Corrupt(f"{status.size_bytes} bytes long where its header says {header.file_bytes}")
    return header


def _content(disk: Disk, fd: int, first: bytes, header: message_file.Header) -> bytes | None:
    """Return the content, checked; None if it is long."""
    if header.content_bytes > INLINE_BYTES:
        return None
    content = _part(disk, fd, first, message_file.HEADER_BYTES, header.content_bytes)
    if message_file.checksum(content) != header.content_crc:
        raise Corrupt(_WRONG)
    return content


def _part(disk: Disk, fd: int, first: bytes, offset: int, size: int) -> bytes:
    if offset + size <= len(first):
        return first[offset : offset + size]
    return disk.pread(fd, size, offset)
