"""A relay that leaves out one kind of sync: `python -m tests.engines.lab.careless KIND run …`.

What the laboratory must catch.  KIND is `sync_content`, or `sync_directory:FOLDER`.
Everything else is the relay as it is.
"""

import sys
from typing import Any

from relay.cli.main import main
from relay.spool.disk.durable import RealDisk

if __name__ == "__main__":
    method, _, folder = sys.argv[1].partition(":")
    sync = getattr(RealDisk, method)

    def careless(disk: RealDisk, at: Any) -> None:
        if folder and not str(at).endswith(f"/{folder}"):
            sync(disk, at)

    setattr(RealDisk, method, careless)
    main(sys.argv[2:])
