"""The errors of a policy: where, at which key, and what would have been right.  Pure.

Turns what pydantic says into words for whoever wrote the policy: no class names, no
value of a key that may hold a secret by mistake.
"""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from relay.policy.document import START, WHOLE, Document, Step, key_path
from relay.policy.model import Policy
from relay.policy.section import Section
from relay.policy.surroundings import RULE
from relay.policy.units import kind

MOST_FAULTS = 200
"""Told of one file; the rest is only counted."""
_LONGEST_GUESSED = 40


@dataclass(frozen=True, slots=True)
class PolicyFault:
    """One thing that is wrong with a policy."""

    path: Path
    line: int
    column: int
    """Both count from 1; the column in characters."""
    key: str
    """Such as `upstreams.isp.limits[0].per`; `policy` where it is about the whole file."""
    message: str

    def __str__(self) -> str:
        """Return `FILE:LINE:COLUMN: KEY: MESSAGE`."""
        return f"{self.path}:{self.line}:{self.column}: {self.key}: {self.message}"


class PolicyError(Exception):
    """All that is wrong with a policy, in the order of the file.  Never empty."""

    def __init__(self, faults: Iterable[PolicyFault]) -> None:
        self.errors: tuple[PolicyFault, ...] = tuple(
            sorted(faults, key=lambda fault: (fault.line, fault.column, fault.key == WHOLE, fault.key))
        )
        super().__init__(*self.errors)

    def __str__(self) -> str:
        """Return a line for each fault."""
        return "\n".join(str(fault) for fault in self.errors)


def fault_of_file(path: Path, message: str) -> PolicyFault:
    """Return a fault of the file itself, which was not read."""
    return PolicyFault(path, *START, WHOLE, message)


def faults_of_document(path: Path, document: Document) -> list[PolicyFault]:
    """Return what is wrong with the YAML."""
    return [PolicyFault(path, *flaw.mark, flaw.key, flaw.message) for flaw in document.flaws]


def faults_of_validation(
    path: Path, document: Document, error: ValidationError, root: type[Section] = Policy
) -> list[PolicyFault]:
    """Return what is wrong with the keys and values, each at its place in the document.

    `root` is what the whole file is, for guesses at misspelt keys.
    """
    details = error.errors(include_url=False)
    faults = [fault for detail in details[:MOST_FAULTS] for fault in _faults_of(path, document, detail, root)]
    if len(details) > MOST_FAULTS:
        last = max(faults, key=lambda fault: (fault.line, fault.column))
        rest = len(details) - MOST_FAULTS
        faults.append(PolicyFault(path, last.line, last.column, WHOLE, f"and {rest} more faults"))
    return faults


def _faults_of(
    path: Path, document: Document, detail: ErrorDetails, root: type[Section]
) -> Iterator[PolicyFault]:
    is_about_key = detail["loc"][-1:] == ("[key]",)
    steps: list[Step] = list(detail["loc"][:-1] if is_about_key else detail["loc"])
    if detail["type"] == RULE:
        for rule in detail["ctx"]["rules"]:
            at = _follow(steps, rule.at)
            yield PolicyFault(path, *document.mark_of(at), key_path(at), rule.message)
        return
    is_about_key = is_about_key or detail["type"] == "extra_forbidden"
    mark = document.mark_of(steps, of_key=is_about_key)
    yield PolicyFault(path, *mark, key_path(steps), _words(detail, steps, root))


def _follow(steps: Sequence[Step], at: Sequence[Step]) -> list[Step]:
    """Return where a path leads that starts at some steps; `..` goes up."""
    found = list(steps)
    for step in at:
        if step == "..":
            found.pop()
        else:
            found.append(step)
    return found


def _words(detail: ErrorDetails, steps: Sequence[Step], root: type[Section]) -> str:
    match detail["type"]:
        case "value_error":
            return str(detail["ctx"]["error"])
        case "missing":
            return "this key is required"
        case "extra_forbidden":
            return f"unknown key{_suggestion(steps, root)}"
        case "model_type" | "dict_type":
            return f"expected a mapping of keys, got {kind(detail['input'])}"
        case "tuple_type":
            return f"expected a list, got {kind(detail['input'])}"
        case _:
            return f"{kind(detail['input'])} does not fit here"


def _suggestion(steps: Sequence[Step], root: type[Section]) -> str:
    """Return a guess at what an unknown key was meant to be, or nothing."""
    unknown = str(steps[-1])
    if len(unknown) > _LONGEST_GUESSED:
        return ""
    known = _keys(_section_at(steps[:-1], root))
    if near := difflib.get_close_matches(unknown.lower().replace("-", "_"), known, n=1):
        return f"; did you mean {near[0]}?"
    return f"; known here: {', '.join(sorted(known))}"


def _keys(section: type[Section]) -> list[str]:
    return [field.alias or name for name, field in section.model_fields.items()]


def _section_at(steps: Sequence[Step], root: type[Section]) -> type[Section]:
    """Return the part of a file that the steps lead to."""
    section = root
    remaining = iter(steps)
    for step in remaining:
        annotation = next(
            field.annotation for name, field in section.model_fields.items() if step == (field.alias or name)
        )
        if get_origin(annotation) in (tuple, dict):
            next(remaining, None)
        section = _section_in(annotation) or section
    return section


def _section_in(annotation: object) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    found = (_section_in(argument) for argument in get_args(annotation))
    return next((section for section in found if section is not None), None)
