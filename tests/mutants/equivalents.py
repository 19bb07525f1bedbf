"""Mutants that no test can notice, each by name and with the proof: equivalents.yaml.

Assumes that whoever adds one has read the code around it.  A listed mutant is run all the same,
and one that a test notices is told as wrongly listed.
"""

from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.mutants.sites import Site

PATH = Path(__file__).with_name("equivalents.yaml")


@dataclass(frozen=True, slots=True)
class Equivalents:
    """The list."""

    reasons: dict[tuple[str, str, str, str], str]

    @classmethod
    def load(cls) -> "Equivalents":
        """Read the list."""
        rows = yaml.safe_load(PATH.read_text()) or []
        return cls(
            {(row["module"], row["where"], row["kind"], row["told"]): row["why"].strip() for row in rows}
        )

    def why(self, module: str, site: Site) -> str | None:
        """Return why nobody can notice a mutant, or None for one that has to be noticed."""
        return self.reasons.get((module, site.where, site.kind, site.told))
