"""How the mutants and what became of them are shown: lines, figures, and docs/MUTANTS.md."""

from dataclasses import dataclass

from tests.proofs.mutants.sites import Site

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


def page(verdicts: list[Verdict], sample: int, seed: int) -> str:
    """Return docs/MUTANTS.md."""
    head = [
        "# What the tests would notice",
        "",
        "Made by `make mutants` (half an hour on two cores); not to be edited.  Each sync, each order and",
        "each check of the spool, of the threads through which listener and sender call it, and of the",
        "throttle's door and history was left out, one at a time, in a copy of the project, and",
        f"{sample} general mutants were drawn from seed {seed}; below each stands a test that failed.",
        "What cannot be noticed is listed with its reason in `tests/proofs/mutants/equivalents.yaml`.",
        "",
        *(f"- {each}" for each in summary(verdicts)),
    ]
    parts: dict[str, list[str]] = {}
    for each in verdicts:
        group = "left out" if each.site.kind in PROMISES else "general"
        rows = parts.setdefault(f"## {each.module}, {group}", [])
        rows.append(f"- {each.site.kind} in `{each.site.where or 'the module'}`: `{_code(each.site.told)}`")
        rows.append(f"  - {_shown(each)}")
    return (
        "\n".join([*head, *(text for part, rows in parts.items() for text in ("", part, "", *rows))]) + "\n"
    )


def _shown(verdict: Verdict) -> str:
    return verdict.told if verdict.why_equivalent or not verdict.caught else f"`{_code(verdict.caught)}`"


def _code(text: str) -> str:
    return text.replace("`", "'")
