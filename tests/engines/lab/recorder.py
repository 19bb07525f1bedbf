"""A FUSE file system with one file. It logs each write and each flush of that file.

`python -m tests.engines.lab.recorder FD IMAGE LOG` serves the file system that was mounted with the open
/dev/fuse FD, until it is unmounted. Its file `disk` has IMAGE's content; IMAGE is not written. The protocol
is linux/fuse.h, 7.31; no library is used.

In LOG, the writes that a flush covers stand before the flush, and a record is in LOG before the kernel gets
its answer. So the length of LOG is a clock that tells what was durable when. Requests are served in order.
"""

import contextlib
import enum
import errno
import mmap
import os
import struct
import sys
from pathlib import Path

RECORD = struct.Struct("<QQ")
"""Stands before each write: its offset and its length. A flush has length 0."""
FLUSH_OFFSET = 2**64 - 1


class _Op(enum.IntEnum):
    """Requests of the kernel (enum fuse_opcode)."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    OPEN = 14
    READ = 15
    WRITE = 16
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    RELEASEDIR = 29
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42


_UNANSWERED = {_Op.FORGET, _Op.BATCH_FORGET, _Op.INTERRUPT}
_DISK_ID = 2
_MINOR = 31
_MOST_BYTES = 1 << 20
_HEADER_IN, _HEADER_OUT = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
_WRITE_IN = struct.Struct("<QQIIQII")
_FOREVER_S = 3600
# ASYNC_READ, BIG_WRITES, MAX_PAGES
_FLAGS = 1 << 0 | 1 << 5 | 1 << 22
_KEEP_CACHE = 1 << 1


class Recorder:
    def __init__(self, fd: int, image: Path, log_fd: int) -> None:
        self._fd = fd
        self._log_fd = log_fd
        with image.open("rb") as file:
            self._disk = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        self._buffer = bytearray(_MOST_BYTES + 4096)

    def serve(self) -> None:
        view = memoryview(self._buffer)
        while True:
            try:
                size = os.readv(self._fd, [self._buffer])
            except OSError:  # ENODEV: unmounted
                return
            _, opcode, unique, node, *_ = _HEADER_IN.unpack_from(self._buffer)
            if opcode in _UNANSWERED:
                continue
            answer = self._answer(opcode, node, view[_HEADER_IN.size : size])
            error, content = (answer, b"") if isinstance(answer, int) else (0, answer)
            header = _HEADER_OUT.pack(_HEADER_OUT.size + len(content), -error, unique)
            # ENOENT: the caller no longer waits for the answer.
            with contextlib.suppress(FileNotFoundError):
                os.writev(self._fd, [header, content])
            if opcode == _Op.DESTROY:
                return

    def _answer(self, opcode: int, node: int, asked: memoryview) -> bytes | memoryview | int:
        match opcode:
            case _Op.READ:
                offset, size = struct.unpack_from("<8xQI", asked)
                return memoryview(self._disk)[offset : offset + size]
            case _Op.WRITE:
                return self._write(asked)
            case _Op.FSYNC:
                os.write(self._log_fd, RECORD.pack(FLUSH_OFFSET, 0))
                return b""
            case _Op.LOOKUP:
                return self._look_up(bytes(asked).rstrip(b"\0"))
            case _Op.GETATTR | _Op.SETATTR:
                return struct.pack("<QII", _FOREVER_S, 0, 0) + self._attr(node)
            case _:
                return self._answer_to_rest(opcode, asked)

    @staticmethod
    def _answer_to_rest(opcode: int, asked: memoryview) -> bytes | int:
        match opcode:
            case _Op.INIT:
                major, _, readahead = struct.unpack_from("<III", asked)
                pages = _MOST_BYTES // mmap.PAGESIZE
                limits = (readahead, _FLAGS, 64, 48, _MOST_BYTES, 1, pages, 0)
                return struct.pack("<IIIIHHIIHH32x", major, _MINOR, *limits)
            case _Op.OPEN | _Op.OPENDIR:
                return struct.pack("<QII", 1, _KEEP_CACHE, 0)
            case _Op.RELEASE | _Op.FLUSH | _Op.RELEASEDIR | _Op.DESTROY:
                return b""
            case _:
                return errno.ENOSYS

    def _look_up(self, name: bytes) -> bytes | int:
        if name != b"disk":
            return errno.ENOENT
        return struct.pack("<QQQQII", _DISK_ID, 0, _FOREVER_S, _FOREVER_S, 0, 0) + self._attr(_DISK_ID)

    def _write(self, asked: memoryview) -> bytes:
        _, offset, size, *_ = _WRITE_IN.unpack_from(asked)
        octets = asked[_WRITE_IN.size : _WRITE_IN.size + size]
        self._disk[offset : offset + size] = octets
        os.writev(self._log_fd, [RECORD.pack(offset, size), octets])
        return struct.pack("<II", size, 0)

    def _attr(self, node: int) -> bytes:
        size, mode = (len(self._disk), 0o100600) if node == _DISK_ID else (0, 0o40700)
        return struct.pack("<QQQ24x12xIIIIIII", node, size, size // 512, mode, 1, 0, 0, 0, 4096, 0)


def main() -> None:
    fd, image, log = sys.argv[1:]
    log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    Recorder(int(fd), Path(image), log_fd).serve()


if __name__ == "__main__":
    main()
