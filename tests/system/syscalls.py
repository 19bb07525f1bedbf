"""A program stopped ahead of each system call that changes something: seccomp_unotify(2), by ctypes.

The program installs the filter on itself (`install`), and every thread and child of it has
it from then on.  A call that the filter names does not begin before the `Watcher` in
another process lets it, so a SIGKILL at that instant falls exactly between two changes.
strace(1) can do the same, but it stops at every call of any kind, and counts each thread
for itself, so that the n-th call of one thread hides those of the others.

Watched: creating and cutting files, links, names, folders, FIFOs, syncs and times wherever
they are; and writes to regular files and sockets, but not to pipes, events and the like.
"""

import ctypes
import errno
import fcntl
import os
import platform
import select
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_NUMBERS: dict[str, dict[int, str]] = {
    "x86_64": {
        1: "write", 18: "pwrite64", 20: "writev", 44: "sendto", 74: "fsync", 75: "fdatasync",
        77: "ftruncate", 82: "rename", 83: "mkdir", 86: "link", 87: "unlink", 133: "mknod",
        257: "openat",
        258: "mkdirat", 259: "mknodat", 263: "unlinkat", 264: "renameat", 265: "linkat", 280: "utimensat",
        316: "renameat2",
    },
    "aarch64": {
        33: "mknodat", 34: "mkdirat", 35: "unlinkat", 37: "linkat", 38: "renameat",
        46: "ftruncate", 56: "openat", 64: "write", 66: "writev", 68: "pwrite64", 82: "fsync",
        83: "fdatasync", 88: "utimensat", 206: "sendto", 276: "renameat2",
    },
}  # fmt: skip
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_LOAD, _IF_EQUAL, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE, _OFFSET_THIRD_ARGUMENT = 0, 4, 32
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
_RESPONSE = struct.Struct("=QqiI")
_PATHS = {
    "rename": (0, 1), "link": (0, 1), "unlink": (0,), "mkdir": (0,), "mknod": (0,), "renameat": (1, 3),
    "renameat2": (1, 3), "linkat": (1, 3),
}  # fmt: skip
"""Which arguments are paths; of all others, the second."""
_PATH_MAX = 4096
_ON_DESCRIPTORS = frozenset({"write", "pwrite64", "writev", "sendto", "fsync", "fdatasync", "ftruncate"})


def why_missing() -> str | None:
    """Return why no program can be watched here, or None."""
    machine = platform.machine()
    if machine not in _NUMBERS:
        return f"the system calls of {machine} are not known here"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(install())
            code = 0
        finally:
            os._exit(code)
    return None if os.waitpid(child, 0)[1] == 0 else "seccomp_unotify(2) is not permitted here"


def install() -> int:
    """Have every watched call of this process wait from now on; return the watcher's descriptor.

    Before any other thread starts.  Raises OSError.
    """
    machine = platform.machine()
    program = _program(machine)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    instructions = ctypes.create_string_buffer(b"".join(program))
    # struct sock_fprog: unsigned short, padding, pointer.
    header = struct.pack("=HxxxxxxQ", len(program), ctypes.addressof(instructions))
    fd: int = libc.syscall(_SECCOMP[machine], _SET_MODE_FILTER, _NEW_LISTENER, ctypes.c_char_p(header))
    if fd < 0:
        raise OSError(ctypes.get_errno(), "SECCOMP_FILTER_FLAG_NEW_LISTENER")
    return fd


def _program(machine: str) -> list[bytes]:
    """Return the filter: NOTIFY for what is watched, ALLOW for all else (BPF, seccomp(2))."""
    numbers = _NUMBERS[machine]
    (openat,) = (number for number, name in numbers.items() if name == "openat")
    others = [number for number in numbers if number != openat]
    count = len(others)
    return [
        _step(_LOAD, _OFFSET_ARCHITECTURE),
        _step(_IF_EQUAL, _ARCHITECTURES[machine], 0, count + 4),
        _step(_LOAD, _OFFSET_NUMBER),
        *(_step(_IF_EQUAL, number, count + 3 - index, 0) for index, number in enumerate(others)),
        _step(_IF_EQUAL, openat, 0, 2),
        _step(_LOAD, _OFFSET_THIRD_ARGUMENT),
        _step(_IF_ANY_BIT, os.O_CREAT | os.O_TRUNC, 1, 0),
        _step(_RETURN, _ALLOW),
        _step(_RETURN, _NOTIFY),
    ]


def _step(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is about to happen."""

    pid: int
    """Of the thread."""
    name: str
    about: str
    """What it changes: a path, or two, or `socket`."""

    def __str__(self) -> str:
        return f"{self.name} {self.about}".strip()


class Watcher:
    """Lets the calls of a program happen, one at a time.  A context manager; it ends with the program."""

    def __init__(self, fd: int, before: Callable[[Call], bool]) -> None:
        """`before` is called ahead of each call that changes something; False: it must not happen.

        It then waits for ever, so whoever says so has killed the program.
        """
        self._fd = fd
        self._before = before
        self._thread = threading.Thread(target=self._watch, name="watcher")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        os.close(self._fd)

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        while True:
            (_, events), *_ = poll.poll()
            if events & select.POLLIN:
                self._answer()
            elif events & (select.POLLHUP | select.POLLERR):
                return  # nobody is left who has the filter

    def _answer(self) -> None:
        notification = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self._fd, _RECEIVE, notification)
            number, pid, _, call_number, _, _, *arguments = _NOTIFICATION.unpack(notification)
            call = _call(pid, _NUMBERS[platform.machine()][call_number], arguments)
            if call is None or self._before(call):
                fcntl.ioctl(self._fd, _SEND, _RESPONSE.pack(number, 0, 0, _CONTINUE))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINTR):  # it was killed meanwhile
                raise


def _call(pid: int, name: str, arguments: Sequence[int]) -> Call | None:
    """Return what a call is about; None where it changes nothing that lasts."""
    if name not in _ON_DESCRIPTORS:
        paths = (_path(pid, arguments[index]) for index in _PATHS.get(name, (1,)))
        return Call(pid, name, " ".join(paths))
    fd = arguments[0]
    try:
        about = str(Path(f"/proc/{pid}/fd/{fd}").readlink())
    except FileNotFoundError:
        return None
    if about.startswith("socket:"):
        return Call(pid, name, "socket")
    # Standard error is the log, which promises nothing.
    return (
        Call(pid, name, about)
        if about.startswith("/") and fd != 2 and not about.startswith("/dev/")
        else None
    )


def _path(pid: int, address: int) -> str:
    """Return the path at an address of another process; empty where it is none."""
    if not address:
        return ""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        # It may stand at the end of what is mapped: no more is read than is there.
        return os.fsdecode(memory.read(_PATH_MAX).partition(b"\0")[0])
