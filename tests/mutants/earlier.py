"""What an earlier run found: which test to ask first, so that the next run takes little time.

A hint and no verdict: each mutant is judged anew.
"""

import contextlib
import json
import threading
from pathlib import Path

from tests.mutants.page import line
from tests.mutants.sites import Site


class Earlier:
    """The findings of one file, or of none."""

    def __init__(self, kept: Path | None) -> None:
        self._kept = kept
        self._found: dict[str, str] = {}
        self._turn = threading.Lock()
        if kept is not None:
            with contextlib.suppress(FileNotFoundError):
                self._found = json.loads(kept.read_text())

    def hint(self, module: str, site: Site) -> str | None:
        """Return the test that caught a mutant, if one did."""
        return self._found.get(_key(module, site))

    def keep(self, module: str, site: Site, caught: str | None) -> None:
        """Remember which test caught a mutant."""
        if self._kept is not None and caught is not None:
            with self._turn:
                self._found[_key(module, site)] = caught.partition(" (")[0]
                self._kept.write_text(json.dumps(self._found, indent=0))


def _key(module: str, site: Site) -> str:
    return f"{line(module, site)} {site.instead}"
