"""A mount namespace, and ext4, xfs and btrfs in a file: how to make and mount each.

Each size is near the file system's minimum, plus room for the 16 MB that the relay keeps free. The files are
sparse and cost little.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.system import small_disk
from tests.system.demand import find, missing_program
from tests.system.small_disk import mounted

_CLONE_NEWNS = 0x00020000  # linux/sched.h


def why_missing() -> str | None:
    """Return why no disk can be recorded here, or None."""
    absent = [path for path in ("/dev/fuse", "/dev/loop-control") if not os.access(path, os.R_OK | os.W_OK)]
    if absent:
        return f"there is no {' and no '.join(absent)}"
    return missing_program("unshare", "setpriv") or small_disk.why_missing()


def enter_private_namespace() -> None:
    """Give this process a private mount namespace, which takes its mounts along.  Raises OSError."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


@dataclass(frozen=True, slots=True)
class FileSystem:
    name: str
    size_bytes: int
    make: tuple[str, ...]
    options: str = "defaults"
    """Options for mount(8)."""
    surroundings: Mapping[str, str] = field(default_factory=dict)

    def why_missing(self) -> str | None:
        """Return why the file system cannot be used here, or None."""
        if reason := missing_program(self.make[0]):
            return reason
        known = {line.split()[-1] for line in Path("/proc/filesystems").read_text().splitlines()}
        return None if self.name in known else f"this kernel has no {self.name}"

    def make_on(self, path: Path) -> None:
        """Make an empty file system in a new file. Raises CalledProcessError."""
        with path.open("xb") as file:
            file.truncate(self.size_bytes)
        command = [str(find(self.make[0])), *self.make[1:], str(path)]
        subprocess.run(command, env=os.environ | self.surroundings, stdout=subprocess.DEVNULL, check=True)

    @contextmanager
    def mounted(self, image: Path, folder: Path) -> Iterator[None]:
        """Mount a file by a loop device of its own, without anything cached. Raises CalledProcessError."""
        with mounted(folder, "-t", self.name, "-o", f"loop,{self.options}", str(image)):
            yield
        if self.name == "btrfs":
            # Otherwise it takes the next image for a second device of this one.
            subprocess.run(
                [str(find("btrfs")), "device", "scan", "--forget"], capture_output=True, check=True
            )


_MEBIBYTE = 1 << 20
FILE_SYSTEMS = {
    each.name: each
    for each in (
        FileSystem(
            "ext4",
            64 * _MEBIBYTE,
            ("mkfs.ext4", "-q", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"),
            "noinit_itable",
        ),
        # mkfs.xfs refuses less than 300 MB, except with the variables of xfs's own tests.
        FileSystem(
            "xfs",
            96 * _MEBIBYTE,
            ("mkfs.xfs", "-q", "-K", "-f", "-l", "size=6m"),
            surroundings={"TEST_DIR": "1", "TEST_DEV": "1", "QA_CHECK_FS": "1"},
        ),
        FileSystem(
            "btrfs",
            256 * _MEBIBYTE,
            ("mkfs.btrfs", "-q", "-K"),
            "nodiscard",
        ),
    )
}
