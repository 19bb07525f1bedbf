"""ext4, xfs and btrfs: how to make, mount and check each.

Each size is near the file system's minimum, plus room for the 16 MB that the relay keeps free. The files are
sparse and cost little.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.system.demand import find, missing_program


@dataclass(frozen=True, slots=True)
class FileSystem:
    name: str
    size_bytes: int
    make: tuple[str, ...]
    check: tuple[str, ...]
    """Only reads. Exits 0 only if the file system is sound."""
    options: str = ""
    """Options for mount(2)."""
    surroundings: Mapping[str, str] = field(default_factory=dict)

    def why_missing(self) -> str | None:
        """Return why the file system cannot be used here, or None."""
        if reason := missing_program(self.make[0], self.check[0], "setpriv"):
            return reason
        known = {line.split()[-1] for line in Path("/proc/filesystems").read_text().splitlines()}
        return None if self.name in known else f"this kernel has no {self.name}"

    def make_on(self, path: Path) -> None:
        """Make an empty file system in a new file. Raises CalledProcessError."""
        with path.open("xb") as file:
            file.truncate(self.size_bytes)
        self._run(self.make, path).check_returncode()

    def complaint(self, path: Path) -> str | None:
        """Return the checker's report on the unmounted file system in a file, or None if it is sound."""
        ran = self._run(self.check, path)
        return None if ran.returncode == 0 else f"{self.check[0]} exited {ran.returncode}: {ran.stdout}"

    def _run(self, command: tuple[str, ...], path: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(find(command[0])), *command[1:], str(path)],
            env=os.environ | self.surroundings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


_MEBIBYTE = 1 << 20
FILE_SYSTEMS = {
    each.name: each
    for each in (
        FileSystem(
            "ext4",
            64 * _MEBIBYTE,
            ("mkfs.ext4", "-q", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"),
            ("e2fsck", "-fn"),
            "noinit_itable",
        ),
        # mkfs.xfs refuses less than 300 MB, except with the variables of xfs's own tests.
        FileSystem(
            "xfs",
            96 * _MEBIBYTE,
            ("mkfs.xfs", "-q", "-K", "-f", "-l", "size=6m"),
            ("xfs_repair", "-n", "-f"),
            surroundings={"TEST_DIR": "1", "TEST_DEV": "1", "QA_CHECK_FS": "1"},
        ),
        FileSystem(
            "btrfs",
            256 * _MEBIBYTE,
            ("mkfs.btrfs", "-q", "-K"),
            ("btrfs", "check", "--readonly"),
            "nodiscard",
        ),
    )
}
