"""A real file system of a few megabytes, with as much free space as a test wants.

It is a tmpfs, or an ext4 on a loop device; both need root.  A ballast file beside the
tested files grows and shrinks, and leaves the wanted space free.
"""

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.system.demand import find, missing_program

MEGABYTE = 1024 * 1024


def why_missing() -> str | None:
    """Return why no file system can be mounted here, or None.  It tries, because containers differ."""
    if os.geteuid() != 0:
        return "mounting a small file system needs root"
    if reason := missing_program("mount", "umount", "mkfs.ext4"):
        return reason
    probe = Path(f"/tmp/relay-mount-probe-{os.getpid()}")
    try:
        with tmpfs(probe, size_bytes=MEGABYTE):
            return None
    except subprocess.CalledProcessError as error:
        return f"mounting is not allowed here: {error.stderr.decode(errors='replace').strip()}"


class SmallDisk:
    """A mounted file system and its ballast."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"
        self._fillers = path / "fillers"
        self._count = 0

    @property
    def free_bytes(self) -> int:
        counts = os.statvfs(self.path)
        return counts.f_bavail * counts.f_frsize

    @property
    def free_inodes(self) -> int:
        return os.statvfs(self.path).f_favail

    def fill_to(self, free_bytes: int) -> None:
        """Leave `free_bytes`, or at most 4096 more; a relay may free what it no longer needs afterwards."""
        with self._ballast.open("ab") as ballast:
            too_much = 0
            for _ in range(8):
                too_much = self.free_bytes - free_bytes
                held = os.fstat(ballast.fileno()).st_size
                if too_much < -os.statvfs(self.path).f_frsize:
                    os.ftruncate(ballast.fileno(), max(0, held + too_much))
                elif too_much > 0:
                    _allocate(ballast.fileno(), held, too_much)
                else:
                    return
        assert too_much <= 4096

    def fill_inodes_to(self, free_inodes: int) -> None:
        self._fillers.mkdir(exist_ok=True)
        for _ in range(max(0, self.free_inodes - free_inodes)):
            self._count += 1
            (self._fillers / str(self._count)).touch()

    def empty(self) -> None:
        self._ballast.unlink(missing_ok=True)
        if self._fillers.exists():
            for filler in self._fillers.iterdir():
                filler.unlink()


def _allocate(fd: int, offset: int, size_bytes: int) -> None:
    while size_bytes > 0:
        try:
            os.posix_fallocate(fd, offset, size_bytes)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            # The file system keeps some free space for its own metadata.
            size_bytes -= 4096
        else:
            return


@contextmanager
def tmpfs(path: Path, *, size_bytes: int, inodes: int = 600) -> Iterator[SmallDisk]:
    with mounted(path, "-t", "tmpfs", "-o", f"size={size_bytes},nr_inodes={inodes}", "tmpfs"):
        yield SmallDisk(path)


@contextmanager
def ext4(path: Path, *, size_bytes: int) -> Iterator[SmallDisk]:
    image = path.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(size_bytes)
    _run("mkfs.ext4", "-q", "-m", "0", str(image))
    with mounted(path, "-t", "ext4", "-o", "loop", str(image)):
        yield SmallDisk(path)


@contextmanager
def mounted(path: Path, *mount: str, fds: Sequence[int] = ()) -> Iterator[None]:
    """Mount a file system by these words of mount(8), which inherits `fds`.  Raises CalledProcessError."""
    path.mkdir(parents=True, exist_ok=True)
    try:
        _run("mount", *mount, str(path), fds=fds)
        try:
            yield
        finally:
            # Lazily: a file that a failed test holds open must not keep the mount for ever.
            _run("umount", "--lazy", str(path))
    finally:
        with contextlib.suppress(OSError):
            path.rmdir()


def _run(program: str, *arguments: str, fds: Sequence[int] = ()) -> None:
    subprocess.run(
        [str(find(program)), *arguments], check=True, capture_output=True, timeout=60, pass_fds=fds
    )
