"""Tells our own files, such as the reserve, from what others put under their names.

A crash leaves of a file that was never synced its front, with zeros for each sector that did not
reach the disk, perhaps the first one too.  Whatever else is there we did not write, and nobody may
remove it.  A file of others that begins with zeros, as long as a sector, is taken for ours.
Does not: judge messages or other files of an engine; move or remove anything (`quarantine`).
"""

import errno
from collections.abc import Callable

from relay.mail.age import BootsRecord
from relay.spool.disk.durable import SECTOR_BYTES, Disk, opened, why_a_strangers
from relay.spool.faults import is_about_the_file
from relay.spool.kept_format import KeptFormat
from relay.spool.root.headroom import is_reserve

NOT_OUR_NAME = "not a name that we give"
LARGEST_BYTES = 256 * 1024 * 1024
"""No ledger and no notes of ours are a tenth of this; reading more would be a memory bomb."""
BOOTS_FORMAT = KeptFormat(BootsRecord, "boots", BootsRecord.fault)
_BOOTS_BEGIN = b'{\n "stretches": ['
"""Each of that format."""
_LARGEST_BOOTS_BYTES = 1024 * 1024

IsOurs = Callable[[Disk, int], bool]
"""Whether we may have written an open file; raises OSError."""


def is_boots(disk: Disk, fd: int) -> bool:
    """Return whether an open file is a record of the boots: whole, as it is replaced.  Raises OSError."""
    content = disk.pread(fd, _LARGEST_BOOTS_BYTES, 0)
    try:
        BOOTS_FORMAT.parse(content)
    except ValueError:
        return False
    return content.startswith(_BOOTS_BEGIN)


def is_draft_of_the_boots(disk: Disk, fd: int) -> bool:
    """Return whether an open file begins as such a record does, torn by any crash.  Raises OSError."""
    front = disk.pread(fd, SECTOR_BYTES, 0).rstrip(b"\0")
    return _BOOTS_BEGIN.startswith(front[: len(_BOOTS_BEGIN)])


REWRITES = {"boots.new": is_draft_of_the_boots}
"""Files that a rewrite leaves when it dies: a start must be able to replace them."""
KEPT = {"reserve": is_reserve, "boots": is_boots}
"""A start does without them."""


def why_unusable(error: OSError) -> str:
    """Return what an error says about one file; raises it again where it is about us or the disk."""
    if error.errno == errno.ESPIPE:
        return "not a file"
    if not is_about_the_file(error):
        raise error
    return f"cannot be opened: {error.strerror}"


def why_not_ours(disk: Disk, path: str, is_ours: IsOurs, open_file: Callable[[str], int]) -> str | None:
    """Return why we cannot have written a file; None if we may have, or it is not there.  Raises OSError."""
    try:
        with opened(disk, open_file(path)) as fd:
            if (size := disk.size(fd)) > LARGEST_BYTES:
                return f"{size} bytes are more than we write"
            disk.pread(fd, 1, 0)
            if (why := why_a_strangers(disk, fd, path)) is not None:
                return why
            return None if is_ours(disk, fd) else "not written by us"
    except FileNotFoundError:
        return None
    except OSError as error:
        return why_unusable(error)
