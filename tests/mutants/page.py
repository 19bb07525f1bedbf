"""How the mutants and what became of them are shown: lines and figures."""

from dataclasses import dataclass

from tests.mutants.sites import Site

PROMISES = ("sync", "order", "check")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutant."""

    module: str
    site: Site
    caught: str | None
    why_equivalent: str | None

    @property
    def is_wrong(self) -> bool:
        """Whether something has to be done about it."""
        if self.why_equivalent is not None:
            return self.caught is not None
        return self.caught is None

    @property
    def told(self) -> str:
        """Return it in words."""
        if self.why_equivalent is None:
            return self.caught or "SURVIVED"
        if self.caught is not None:
            return f"LISTED AS EQUIVALENT, and caught by {self.caught}"
        return f"equivalent: {self.why_equivalent}"


def line(module: str, site: Site) -> str:
    """Return the line that names a mutant."""
    return f"{module} {site.where or '(module)'} {site.kind}: {site.told}"


def summary(verdicts: list[Verdict]) -> list[str]:
    """Return the figures: what is left out of the promises, and the general mutants."""
    lines = []
    for name, kinds in (("promises left out", True), ("general mutants", False)):
        some = [each for each in verdicts if (each.site.kind in PROMISES) is kinds]
        judged = [each for each in some if each.why_equivalent is None]
        caught = sum(each.caught is not None for each in judged)
        if some:
            share = f"{100 * caught / max(1, len(judged)):.1f} %"
            lines.append(
                f"{name}: {len(some)} mutants, {len(some) - len(judged)} equivalent, "
                f"{caught} of the other {len(judged)} caught ({share})"
            )
    return lines
