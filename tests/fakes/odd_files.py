"""What may stand where a policy names a file, and is none: to read one may block, or never end."""

import os
from collections.abc import Callable
from pathlib import Path

Make = Callable[[Path], object]


def _endless(path: Path) -> None:
    path.touch(0o600)
    os.truncate(path, 1 << 40)


ODD_FILES: dict[str, Make] = {
    "a FIFO": lambda path: os.mkfifo(path, 0o600),
    "a folder": lambda path: path.mkdir(),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "an endless file": _endless,
}


def remove(path: Path) -> None:
    """Remove one of them."""
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()
