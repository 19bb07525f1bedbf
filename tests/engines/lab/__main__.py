"""`python -m tests.engines.lab FILE-SYSTEM` runs one experiment, prints JSON and exits 1 for a violation."""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from relay.spool.engines import ENGINES
from tests.engines.lab import kernel
from tests.engines.lab.experiment import Laboratory
from tests.engines.lab.filesystems import FILE_SYSTEMS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.lab", description=__doc__)
    parser.add_argument("file_system", choices=FILE_SYSTEMS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=24, help="of up to four messages, in each play")
    parser.add_argument("--images", type=int, default=400, help="so many images of each play")
    parser.add_argument(
        "--seconds", type=float, help="play after play for so long, each on a disk that a cut left"
    )
    parser.add_argument("--engine", choices=ENGINES, default="maildir", help="of the spool")
    parser.add_argument("--careless", default="", help="leave out a sync: METHOD, or METHOD:FOLDER")
    options = parser.parse_args()

    kernel.enter_private_namespace()
    kernel.die_with_parent()
    until_s = None if options.seconds is None else time.monotonic() + options.seconds
    with (
        tempfile.TemporaryDirectory(prefix="relay-lab-") as name,
        kernel.mounted("relay-lab", Path(name), "tmpfs"),
    ):
        file_system = FILE_SYSTEMS[options.file_system]
        laboratory = Laboratory(file_system, options.seed, Path(name), options.engine, options.careless)
        laboratory.play(options.rounds, options.images, until_s)
        while until_s is not None and time.monotonic() < until_s:
            laboratory.play(options.rounds, options.images, until_s)
    sys.stdout.write(json.dumps(vars(options) | vars(laboratory.figures)) + "\n")
    return 1 if laboratory.figures.violations else 0


if __name__ == "__main__":
    sys.exit(main())
