"""Classifies errors of the kernel: a lack of resources, a fault of one file, or a disk that fails for now.

A lack of resources (descriptors, memory, room) says nothing about a file, a disk or an upstream.  An error of
the disk says nothing about a file either: the next read may succeed.
"""

import errno
from collections.abc import Callable
from typing import ParamSpec

Arguments = ParamSpec("Arguments")

_NO_MEANS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""Descriptors of this process, descriptors of the host, memory, memory for sockets."""
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_NOW = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EUCLEAN, errno.EBADMSG, errno.ENODATA})
"""The last three mean that a checksum of the file system does not match, or that a sector is lost."""


def is_lack_of_means(error: BaseException | None) -> bool:
    """Return whether an error is a lack of descriptors or memory, which may pass."""
    return isinstance(error, OSError) and error.errno in _NO_MEANS


def is_lack_of_room(error: BaseException | None) -> bool:
    """Return whether an error says that the disk or our quota is full."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def error_of(
    call: Callable[Arguments, object], *arguments: Arguments.args, **named: Arguments.kwargs
) -> OSError | None:
    """Make a call; return the OSError that it raised, or None."""
    try:
        call(*arguments, **named)
    except OSError as error:
        return error
    return None


def is_not_now(error: OSError) -> bool:
    return error.errno in _NOT_NOW
