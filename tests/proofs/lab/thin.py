"""A disk with less room behind it than it says: `python -m tests.proofs.lab.thin`, in mounts of its own.

What is written is taken, and lost when the kernel brings it to the disk: only a sync can
tell.  For disks of several sizes, and for syncs that the kernel does beside each other and
that we do in turn, prints how many of a batch of messages were accepted, and how many of
those are not there once all that the kernel holds in memory is given up.
"""

import json
import sys
import tempfile
from pathlib import Path

from relay.clock import SystemClock
from relay.mail.envelope import Envelope
from relay.spool.disk import batched_sync
from relay.spool.disk.durable import RealDisk
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.maildir.layout import prepare
from relay.spool.message.arriving import SpoolDraft
from tests.proofs.lab import kernel
from tests.proofs.lab.filesystems import FILE_SYSTEMS

SIZES_BYTES = (7 << 20, 12 << 20, 20 << 20, 48 << 20)
"""From hardly more than an empty file system takes, to enough for all messages."""
MESSAGES = 20
CONTENT = b"Subject: thin\r\n\r\n" + 20_000 * b"It was taken, and where is it?\r\n\r\n"


def accepted_and_lost(folder: Path) -> tuple[int, int]:
    """Accept a batch on a fresh disk; return how many were, and how many of them are not there after all."""
    image, mount = folder / "image", folder / "mount"
    FILE_SYSTEMS["ext4"].make_on(image)
    loop = kernel.Loop(image)
    try:
        kernel.mount(loop.device, mount, "ext4")
        accepted = _accept(str(mount / "spool"))
        kernel.unmount(mount)
        kernel.mount(loop.device, mount, "ext4")
        new = mount / "spool" / "new"
        lost = [
            name for name in accepted if not (new / name).exists() or CONTENT not in (new / name).read_bytes()
        ]
        kernel.unmount(mount)
    finally:
        loop.close()
        image.unlink()
    return len(accepted), len(lost)


def _accept(root: str) -> list[str]:
    """Accept messages as one batch; return the names of those for which a 250 may be sent."""
    disk = RealDisk()
    try:
        prepare(root, disk)
    except OSError:
        return []
    intake = MaildirIntake(root, disk, SystemClock(), headroom=False)
    batch: list[tuple[SpoolDraft, Envelope]] = []
    for _ in range(MESSAGES):
        draft = intake.draft()
        draft.append(CONTENT)
        batch.append((draft, Envelope("s@front.test", ("r@list.test",), 1, "c", "h", "ESMTP", None)))
    results = intake.accept(batch)
    return [draft.queue_id for (draft, _), error in zip(batch, results, strict=True) if error is None]


def main() -> None:
    """Try both ways on disks of all sizes."""
    kernel.enter_private_namespace()
    helped, found = batched_sync._open, {}
    for way in ("beside each other", "in turn"):
        batched_sync._open = helped if way == "beside each other" else lambda: None
        for size_bytes in SIZES_BYTES:
            with tempfile.TemporaryDirectory(prefix="relay-thin-") as name:
                folder = Path(name)
                kernel.mount("none", folder, "tmpfs", f"size={size_bytes}")
                (folder / "mount").mkdir()
                found[f"{way}, {size_bytes}"] = accepted_and_lost(folder)
                kernel.unmount(folder)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
