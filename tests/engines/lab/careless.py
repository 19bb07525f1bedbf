"""A relay that leaves out one kind of sync: `python -m tests.engines.lab.careless KIND run …`.

What the laboratory must catch.  KIND is a method of the disk port (`sync`, `sync_content`,
`sync_directory`), or one and a folder whose names are not synced, as `sync_directory:new`.
Everything else is the relay as it is.
"""

import sys
from collections.abc import Sequence

from relay.cli.main import main
from relay.spool.disk.durable import RealDisk


def leave_out(kind: str) -> None:
    """Have the disk of this interpreter skip a kind of sync.  Raises ValueError for another kind."""
    method, _, folder = kind.partition(":")
    if method == "sync_directory":
        _leave_out_folders(folder)
    elif method in ("sync", "sync_content"):
        _leave_out_files(content_only=method == "sync_content")
    else:
        raise ValueError(f"no such sync: {kind}")


def _leave_out_folders(folder: str) -> None:
    real = RealDisk.sync_directory

    def sync_directory(self: RealDisk, path: str) -> None:
        if folder and not path.rstrip("/").endswith(f"/{folder}"):
            real(self, path)

    RealDisk.sync_directory = sync_directory  # type: ignore[method-assign]  # that is the point


def _leave_out_files(*, content_only: bool) -> None:
    real = RealDisk.sync_each

    def sync_each(self: RealDisk, fds: Sequence[int], *, content_only: bool) -> list[OSError | None]:
        return [None] * len(fds) if content_only is left_out else real(self, fds, content_only=content_only)

    def nothing(self: RealDisk, fd: int) -> None:
        del self, fd

    left_out = content_only
    RealDisk.sync_each = sync_each  # type: ignore[method-assign]  # that is the point
    if content_only:
        RealDisk.sync_content = nothing  # type: ignore[method-assign]  # that is the point
    else:
        RealDisk.sync = nothing  # type: ignore[method-assign]  # that is the point


if __name__ == "__main__":
    leave_out(sys.argv[1])
    main(sys.argv[2:])
