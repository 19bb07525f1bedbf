"""What may stand where a file of ours belongs, and is none."""

import os
import socket
import stat
from pathlib import Path

GIANT_BYTES = 1 << 40
KINDS = ["an empty file", "a giant file", "a folder", "a full folder", "a FIFO", "a socket", "a symlink"]


def plant(path: Path, kind: str, victim: Path) -> None:
    """Put something somewhere; a symlink leads to a file that must never be touched."""
    match kind:
        case "an empty file":
            path.touch()
        case "a giant file":
            with path.open("wb") as file:
                file.write(b"mine")
                file.truncate(GIANT_BYTES)
        case "a folder":
            path.mkdir()
        case "a full folder":
            path.mkdir()
            (path / "mine").write_text("mine")
        case "a FIFO":
            os.mkfifo(path)
        case "a socket":
            # A path to a socket is short (unix(7)).
            folder = os.open(path.parent, os.O_RDONLY)
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(f"/proc/self/fd/{folder}/{path.name}")
            os.close(folder)
        case _:
            path.symlink_to(victim)


def kind_of(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return stat.S_IFMT(found.st_mode), found.st_ino
