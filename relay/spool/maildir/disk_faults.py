"""What an error of the disk means for the sender, in the words of `interface`."""

import contextlib
from collections.abc import Iterator

from relay.mail.envelope import QueueId
from relay.spool.interface import Absent, SpoolFault, SpoolFull
from relay.spool.maildir.files import is_our_own_lack


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
