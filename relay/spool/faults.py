"""What an engine raises for an error of the kernel, in the words of `relay.spool.interface`."""

import errno

from relay.spool.disk.os_errors import is_our_own_lack
from relay.spool.interface import SpoolFault, SpoolFull, Unreadable

_ABOUT_THE_FILE = frozenset(
    {errno.EPERM, errno.EACCES, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EBUSY}
)


def is_about_the_file(error: OSError) -> bool:
    return error.errno in _ABOUT_THE_FILE or isinstance(error, Unreadable)


class faults:  # noqa: N801 - reads as `contextlib.suppress` does
    """Turn a lack of ours into SpoolFull, a failing disk into SpoolFault: memory and disk may differ then.

    A sync that failed for lack of room is never taken for done: the call is made again from
    its start, and that writes the same bytes again before it syncs them.
    A class: some for each message, and a generator costs twice as much.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            new = SpoolFull if is_our_own_lack(error) else SpoolFault
            raise new(f"{self._what}: {error.strerror}") from error
