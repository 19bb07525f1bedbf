"""What an engine raises for an error of the kernel, in the words of `relay.spool.interface`."""

import contextlib
import errno
from collections.abc import Iterator

from relay.spool.disk.os_errors import is_our_own_lack
from relay.spool.interface import SpoolFault, SpoolFull, Unreadable

_ABOUT_THE_FILE = frozenset(
    {errno.EPERM, errno.EACCES, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EBUSY}
)


def is_about_the_file(error: OSError) -> bool:
    return error.errno in _ABOUT_THE_FILE or isinstance(error, Unreadable)


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
