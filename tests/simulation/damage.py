"""Damage at rest: octets of one file of a spool or a history change, on the disk and in the page cache.

Status bytes of a maildir are left out: they have no checksum, and docs/guarantees.md does not promise them.
"""

from collections.abc import Iterator

from relay.spool.message.message_file import HEADER_BYTES, MAGIC, WARNED_OFFSET
from tests.fakes.disk import ModelDisk
from tests.fakes.platter import Platter
from tests.simulation.script import Damage

ZEROED_BYTES = 16
LEFT_OUT = ("format", "lock", "trigger", "control.sock", "reserve")
"""Files without facts: their damage loses nothing."""


def strike(platter: Platter, event: Damage) -> str | None:
    """Damage a file. Return its path, or None if nothing changed."""
    root = "/var/spool" if event.where == "spool" else "/var/history"
    files = [(path, inode) for path, inode in files_below(platter, root) if platter.contents.get(inode)]
    if not files:
        return None
    path, inode = files[event.nth % len(files)]
    content = platter.contents[inode]
    at = int(event.place * len(content))
    octets = range(at, min(len(content), at + (1 if event.how == "flip" else ZEROED_BYTES)))
    for offset in set(octets) - unchecked(content):
        for contents in (platter.contents, platter.durable_contents):
            before = contents.get(inode, b"")
            if offset < len(before):
                now = before[offset] ^ 0x10 if event.how == "flip" else 0
                contents[inode] = before[:offset] + bytes((now,)) + before[offset + 1 :]
    return None if platter.contents[inode] == content else path


def remove(platter: Platter, path: str) -> None:
    """Remove a history and its lock file durably."""
    disk = ModelDisk(platter)
    for each in (path, f"{path}.lock"):
        if disk.inode(each) is not None:
            disk.unlink(each)
    disk.sync_directory(path.rpartition("/")[0])


def files_below(platter: Platter, path: str) -> Iterator[tuple[str, int]]:
    for name, inode in sorted(platter.names.get(platter.folder(path), {}).items()):
        if inode in platter.names:
            yield from files_below(platter, f"{path}/{name}")
        elif name not in LEFT_OUT and not path.endswith("/corrupt"):
            yield f"{path}/{name}", inode


def unchecked(content: bytes) -> set[int]:
    """Return the offsets of the status bytes of a message file; none for other files."""
    if not content.startswith(MAGIC) or len(content) < HEADER_BYTES:
        return set()
    lines = content.split(b"\n")[-1 - int(content.split()[4]) :]
    starts, offset = {WARNED_OFFSET}, len(content)
    for line in reversed(lines):
        offset -= len(line)
        starts.add(offset)
        offset -= 1
    return starts
