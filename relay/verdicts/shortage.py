"""What we may be out of for a while: it says nothing about a file, a disk or an upstream.  Pure."""

import errno

NO_MEANS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""Descriptors of this process, descriptors of the host, memory, memory for sockets."""


def is_lack_of_means(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in NO_MEANS
