"""Room on the disk: what new mail must leave free, and what is set aside for a disk that others filled.

**Headroom.**  A listener writes nothing that would leave less than HEADROOM_BYTES free, so mail alone
never fills the disk.  The rest is for what has to be written about mail that is ours already: reasons,
reports, the ledger, the history.

**Reserve.**  Others may fill the disk all the same.  The file `reserve` holds RESERVE_BYTES of
nothing; the sender removes it when it meets a full disk, and writes what it has to.  From there on
the queue makes room for itself: a mark takes none, and each message that ends gives back a block or
more, against a line in the ledger and two in the history.  The file comes back once there is room.

Neither does alone: a headroom is no protection from a neighbour's log, and a reserve that mail may
eat is soon gone.  The reserve only has to get the first few messages to their end.
"""

import contextlib
import errno
import functools
import hashlib
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.os_errors import is_lack_of_room
from relay.spool.interface import SpoolFull

HEADROOM_BYTES = 16 * 1024 * 1024
HEADROOM_INODES = 64
RESERVE_BYTES = 64 * 1024

Asked = ParamSpec("Asked")
Returned = TypeVar("Returned")


def why_no_room(free: tuple[int, int | None], wanted_bytes: int = 0) -> str | None:
    """Return why no new message of so many bytes may be stored, given what is free, or None."""
    free_bytes, free_inodes = free
    if free_bytes < wanted_bytes + HEADROOM_BYTES:
        return f"no room on the disk: {max(0, free_bytes)} bytes free, {HEADROOM_BYTES} are kept"
    if free_inodes is not None and free_inodes < HEADROOM_INODES:
        return f"no room on the disk: {free_inodes} inodes free, {HEADROOM_INODES} are kept"
    return None


class NoHeadroom(OSError):  # noqa: N818 - a state of the disk
    """New mail would leave too little free: there is room, and it is kept for something else."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.ENOSPC, why)


def leave_headroom(free: tuple[int, int | None], wanted_bytes: int) -> None:
    """Raise NoHeadroom where no new message of so many bytes may be stored, given what is free."""
    if (why := why_no_room(free, wanted_bytes)) is not None:
        raise NoHeadroom(why)


@functools.cache
def _noise() -> bytes:
    """Return what the reserve holds: some file systems give no blocks to zeros."""
    return hashlib.shake_128(b"reserve").digest(RESERVE_BYTES)


def is_reserve(disk: Disk, fd: int) -> bool:
    """Return whether an open file is the reserve, or any of it with zeros for the rest.  Raises OSError."""
    if disk.size(fd) > RESERVE_BYTES:
        return False
    content = disk.pread(fd, RESERVE_BYTES, 0)
    # A whole one is known at once; what a crash left, by the octet: noise and a text have few in common.
    return _noise().startswith(content) or all(
        there in (0, ours) for there, ours in zip(content, _noise(), strict=False)
    )


class Reserve:
    """The file that is given up when the disk is full.  For the holder of the spool's lock."""

    def __init__(self, root: str, disk: Disk) -> None:
        self._path = f"{root}/reserve"
        self._folder = root
        self._disk = disk
        self._is_kept = False

    def keep(self) -> None:
        """Have it, if there is room; never raises.  Cheap where it is there."""
        if self._is_kept:
            return
        with contextlib.suppress(OSError):
            if not self._is_there() or self._disk.length(self._path) != RESERVE_BYTES:
                if why_no_room(self._disk.free(self._folder), RESERVE_BYTES) is not None:
                    return
                self._fill()
            self._is_kept = True

    def spend(self) -> bool:
        """Give it up; return whether that made room."""
        self._is_kept = False
        try:
            if not self._is_there():
                return False
            self._disk.unlink(self._path)
        except OSError:
            return False
        return True

    def _is_there(self) -> bool:
        """Return whether the reserve is there, or a part of it.  Raises OSError, also where others' file is.

        A start moves that away, never this: nothing of others is removed to make room.
        """
        try:
            with opened(self._disk, self._disk.open_read(self._path)) as fd:
                if not is_reserve(self._disk, fd):
                    raise FileExistsError(errno.EEXIST, "not written by us", self._path)
        except FileNotFoundError:
            return False
        return True

    def _fill(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(self._path)
        try:
            with opened(self._disk, self._disk.open_new(self._path)) as fd:
                self._disk.write_all(fd, _noise())
                # Crash here: too short or of holes; the next start takes it for whole only by its length.
                self._disk.sync(fd)
        except OSError:
            self.spend()
            raise


class HasReserve(Protocol):
    _reserve: Reserve


Self_ = TypeVar("Self_", bound=HasReserve)


def gives_way(
    method: Callable[Concatenate[Self_, Asked], Returned],
) -> Callable[Concatenate[Self_, Asked], Returned]:
    """Where a repeatable method met a full disk, spend the reserve and call it once more."""

    @functools.wraps(method)
    def with_less(self: Self_, /, *args: Asked.args, **kwargs: Asked.kwargs) -> Returned:
        try:
            return method(self, *args, **kwargs)
        except SpoolFull as full:
            if not (is_lack_of_room(full.__cause__) and self._reserve.spend()):
                raise
            return method(self, *args, **kwargs)

    return with_less
