"""One experiment: `python -m tests.engines.lab FILE-SYSTEM`; prints figures as JSON, exits 1 for a violation.

Shown are the first violations; all of them are in the file that the figures name, in `TMPDIR`.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from relay.policy.model import SpoolEngine
from relay.spool.engines import ENGINES
from tests.engines.lab import kernel
from tests.engines.lab.experiment import LEAST_IMAGES, Laboratory
from tests.engines.lab.filesystems import FILE_SYSTEMS

SHOWN = 5
IMAGES_PER_SECOND = 4
"""At least; what does not fit in the time is left out."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.lab", description=__doc__)
    parser.add_argument("file_system", choices=FILE_SYSTEMS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--letters", type=int, default=32, help="messages in each play")
    parser.add_argument("--images", type=int, default=400, help="so many images of each play")
    parser.add_argument(
        "--seconds", type=float, help="play after play for so long, each on a disk that a cut left"
    )
    parser.add_argument("--until-violation", action="store_true", help="the first one is enough")
    parser.add_argument("--engine", choices=ENGINES, default=SpoolEngine.MAILDIR, help="of the spool")
    parser.add_argument("--careless", help="leave out a sync: see tests.engines.lab.careless")
    options = parser.parse_args()

    kernel.enter_private_namespace()
    kernel.die_with_parent()
    file_system, began_s = FILE_SYSTEMS[options.file_system], time.monotonic()
    until_s = None if options.seconds is None else began_s + options.seconds
    with (
        tempfile.TemporaryDirectory(prefix="relay-lab-") as name,
        kernel.mounted("relay-lab", Path(name), "tmpfs"),
    ):
        laboratory = Laboratory(file_system, options.seed, Path(name), options.engine, options.careless)
        _experiment(laboratory, options, until_s)
    figures = laboratory.figures
    told = vars(figures) | {
        "seconds": round(time.monotonic() - began_s, 1),
        "images_per_second": round(figures.images / figures.judging_s, 1),
        "unmountable": len(figures.unmountable),
        "judged": figures.images - len(figures.unmountable),
        "violations": len(figures.violations),
        "first_violations": figures.violations[:SHOWN],
        "all_violations": None,
    }
    if figures.violations:
        path = Path(tempfile.gettempdir()) / f"violations-{file_system.name}-{options.seed}-{time.time_ns()}"
        path.write_text("".join(json.dumps(violation) + "\n" for violation in figures.violations))
        told["all_violations"] = str(path)
    sys.stdout.write(json.dumps(vars(options) | told) + "\n")
    return 1 if figures.violations else 0


def _experiment(laboratory: Laboratory, options: argparse.Namespace, until_s: float | None) -> None:
    """Play and judge, once or for as long as there is time."""
    while True:
        most = options.images
        if until_s is not None:
            # All parts of a play have to get their share of a short time.
            most = max(LEAST_IMAGES, min(most, int((until_s - time.monotonic()) * IMAGES_PER_SECOND)))
        laboratory.play(options.letters, most, until_s=until_s, until_violation=options.until_violation)
        if until_s is None or time.monotonic() > until_s:
            return


if __name__ == "__main__":
    sys.exit(main())
