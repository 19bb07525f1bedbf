"""What an error of the kernel is about: us, one file, or a disk that does not answer now.

A lack of our own (descriptors, memory, room) says nothing about a file, a disk or an upstream.  Nor does
an error of the disk itself say anything about a file: the bytes may come the next time.
"""

import errno
from collections.abc import Callable
from typing import ParamSpec

Arguments = ParamSpec("Arguments")

_NO_MEANS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""Descriptors of this process, descriptors of the host, memory, memory for sockets."""
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_OUR_OWN_LACK = _NO_ROOM | _NO_MEANS | {errno.EINTR, errno.EAGAIN}
_NOT_NOW = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EUCLEAN, errno.EBADMSG, errno.ENODATA})
"""The last three are what file systems say whose own checksums do not match, and disks of a lost sector."""


def is_our_own_lack(error: OSError) -> bool:
    """Return whether an error is about us (descriptors, memory, room) and not about a file."""
    return error.errno in _OUR_OWN_LACK


def is_lack_of_means(error: BaseException | None) -> bool:
    """Return whether an error says that we are out of descriptors or memory for a while."""
    return isinstance(error, OSError) and error.errno in _NO_MEANS


def is_lack_of_room(error: BaseException | None) -> bool:
    """Return whether an error says that the disk is full, or our share of it."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def error_of(
    call: Callable[Arguments, object], *arguments: Arguments.args, **named: Arguments.kwargs
) -> OSError | None:
    """Make a call; return the error that it raised."""
    try:
        call(*arguments, **named)
    except OSError as error:
        return error
    return None


def is_not_now(error: OSError) -> bool:
    return error.errno in _NOT_NOW
