"""What an error of the disk means for the sender, in the words of `interface`."""

import contextlib
import errno
from collections.abc import Iterator

from relay.spool.interface import SpoolFault, SpoolFull


@contextlib.contextmanager
def faults(what: str) -> Iterator[None]:
    """Turn a full disk into SpoolFull, a failing one into SpoolFault: memory and disk may differ then."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SpoolFull(f"{what}: {error.strerror}") from error
        raise SpoolFault(f"{what}: {error.strerror}") from error
