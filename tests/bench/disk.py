"""A fresh ext4 with a journal, as a mail server has it, on which all contenders store mail.

The folder for temporary files may be on any file system.  On an ext4 without a journal,
which some virtual machines have, a new file costs a search through all files removed in
the last minute (`recently_deleted` in the kernel's fs/ext4/ialloc.c): there each
contender pays for those before it.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.engines.lab import machine
from tests.engines.lab.machine import FILE_SYSTEMS

SIZE_BYTES = 4 << 30
"""The size of its image, a sparse file: it takes only the space that is written."""


def why_missing() -> str | None:
    return FILE_SYSTEMS["ext4"].why_missing() or machine.why_missing()


@contextmanager
def stored_on_ext4() -> Iterator[None]:
    """Put temporary folders on a fresh ext4 with a journal.

    The process must have no other threads yet: the mount is in a namespace of its own, so that
    nothing stays of it however the process ends.  Raises OSError, CalledProcessError.
    """
    machine.enter_private_namespace()
    ext4 = replace(FILE_SYSTEMS["ext4"], size_bytes=SIZE_BYTES)
    with tempfile.TemporaryDirectory(prefix="relay-bench-disk-") as name:
        image, mount = Path(name) / "image", Path(name) / "mount"
        # Postfix drops its privileges, and still has to reach this folder.
        Path(name).chmod(0o755)
        ext4.make_on(image)
        with ext4.mounted(image, mount):
            mount.chmod(0o1777)
            before, tempfile.tempdir = tempfile.tempdir, str(mount)
            try:
                yield
            finally:
                tempfile.tempdir = before
