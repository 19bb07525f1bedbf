"""The errors of a policy: where, at which key, and what would have been right.  Pure.

Turns the errors of pydantic into words for the owner of the policy.  A fault quotes nothing of the file,
since a password may stand at any place by mistake, as a value or as a key: it has file, line, column, the
kind of value, and of keys only those that a policy has.  Any other key is shown as `?`.
"""

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from relay.policy import retired
from relay.policy.document import START, Document, Mark, Step
from relay.policy.units import BROKEN, Section

MOST_FAULTS = 200
"""Told of one file; the rest is only counted."""
WHOLE = "policy"
"""The key of a fault that is about the whole file."""
FOREIGN_KEY = "?"
"""Stands for a key that is not a policy's own, and so may be anything."""
_LONGEST_GUESSED = 40
_NAME = re.compile(r"[a-z0-9_-]{1,64}\Z")
_WORDS = {
    "missing": "this key is required",
    "model_type": "expected a mapping of keys",
    "dict_type": "expected a mapping of keys",
    "tuple_type": "expected a list",
    "int_type": "expected a whole number",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "string_type": "expected text",
    "string_too_short": "expected text, got none",
    "string_too_long": "expected at most {max_length} characters",
    "path_type": "expected a path",
    "enum": "expected {expected}",
    "literal_error": "expected {expected}",
    "greater_than_equal": "expected a whole number of at least {ge}",
    "less_than_equal": "expected a whole number of at most {le}",
}
"""By pydantic's types of errors; another one `does not fit here`."""
_NAMED_KINDS = {"model_type", "dict_type", "tuple_type", "int_type", "bool_type", "string_type", "path_type"}
"""Errors that say what stands there instead; in others it is not the kind that is wrong."""


@dataclass(frozen=True, slots=True)
class PolicyFault:
    path: Path
    line: int
    column: int
    """Both count from 1; the column in characters."""
    key: str
    """Such as `upstreams.isp.limits[0].per`; `policy` where it is about the whole file."""
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.key}: {self.message}"


class PolicyError(Exception):
    """In the order of the file; never empty."""

    def __init__(self, faults: Iterable[PolicyFault]) -> None:
        self.errors: tuple[PolicyFault, ...] = tuple(
            sorted(faults, key=lambda fault: (fault.line, fault.column, fault.key == WHOLE, fault.key))
        )
        super().__init__(*self.errors)

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.errors)


def fault_at(path: Path, mark: Mark, steps: Sequence[Step], message: str) -> PolicyFault:
    return PolicyFault(path, *mark, _key_path(steps), message)


def fault_of_file(path: Path, message: str) -> PolicyFault:
    return fault_at(path, START, (), message)


def faults_of_document(path: Path, document: Document) -> list[PolicyFault]:
    return [fault_at(path, flaw.mark, flaw.steps, flaw.message) for flaw in document.flaws]


def faults_of_validation(
    path: Path, document: Document, error: ValidationError, root: type[Section]
) -> list[PolicyFault]:
    """`root` is what the whole file is, for guesses at misspelt keys."""
    # A default that other keys make is no fault of its own.
    details = [
        each for each in error.errors(include_url=False) if each["type"] != "default_factory_not_called"
    ]
    faults = [fault for detail in details[:MOST_FAULTS] for fault in _faults_of(path, document, detail, root)]
    if len(details) > MOST_FAULTS:
        last = max(Mark(fault.line, fault.column) for fault in faults)
        faults.append(fault_at(path, last, (), f"and {len(details) - MOST_FAULTS} more faults"))
    return faults


def _faults_of(
    path: Path, document: Document, detail: ErrorDetails, root: type[Section]
) -> Iterator[PolicyFault]:
    steps: list[Step] = list(detail["loc"])
    if detail["type"] == BROKEN:
        for rule in detail["ctx"]["rules"]:
            at = [*steps, *rule.at]
            yield fault_at(path, document.mark_of(at), at, rule.message)
        return
    is_unknown = detail["type"] == "extra_forbidden"
    # Pydantic's own step, behind the key of a mapping of names.
    is_name = steps[-1:] == ["[key]"] and not is_unknown
    if is_name:
        steps.pop()
    if steps and isinstance(steps[-1], int) and tuple(steps) not in document.places:
        # One value that stands for a list of it.
        steps.pop()
    mark = document.mark_of(steps, of_key=is_unknown or is_name)
    yield fault_at(path, mark, steps, _words(detail, steps, root))


def _words(detail: ErrorDetails, steps: Sequence[Step], root: type[Section]) -> str:
    kind = detail["type"]
    if kind == "extra_forbidden":
        return _of_unknown_key(str(steps[-1]), _section_at(steps[:-1], root))
    if kind == "missing" and steps[-1] == "limits":
        return "this key is required: what the provider allows, or `limits: []` for as fast as it takes mail"
    context = detail.get("ctx", {})
    found = _kind(detail["input"])
    if kind == "value_error":
        words = str(context["error"].args[0])
        return words if found == "text" else f"{words}, got {found}"
    words = _WORDS.get(kind, "this does not fit here").format(**context).replace("'", "")
    if kind in _NAMED_KINDS or (found != "text" and "expected" in context):
        words += f", got {found}"
    return f"{words}; put it in quotes" if kind == "string_type" and found == "a number" else words


def _kind(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int():
            return "a number"
        case str():
            return "text"
        case dict():
            return "a mapping"
        case _:
            return "a list"


def _of_unknown_key(key: str, section: type[Section]) -> str:
    if (instead := retired.KEYS.get(key)) is not None:
        return f"no key any more: {instead}"
    known = sorted(_annotations(section))
    # Guessing at something long takes long.
    guessed = key.lower().replace("-", "_")[:_LONGEST_GUESSED]
    if near := difflib.get_close_matches(guessed, known, n=1):
        return f"unknown key; did you mean {near[0]}?"
    return f"unknown key; known here: {', '.join(known)}"


def _key_path(steps: Sequence[Step]) -> str:
    path = ""
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            is_shown = step in _policy_keys() or (path in ("upstreams", "lanes") and _NAME.match(step))
            path += f"{'.' if path else ''}{step if is_shown else FOREIGN_KEY}"
    return path or WHOLE


@functools.cache
def _policy_keys() -> frozenset[str]:
    keys = set(retired.KEYS)
    sections = [Section]
    while sections:
        keys.update(_annotations(section := sections.pop()))
        sections += section.__subclasses__()
    return frozenset(keys)


def _annotations(section: type[Section]) -> dict[str, object]:
    return {each.alias or name: each.annotation for name, each in section.model_fields.items()}


def _section_at(steps: Sequence[Step], root: type[Section]) -> type[Section]:
    section = root
    remaining = iter(steps)
    for step in remaining:
        annotation = _annotations(section)[str(step)]
        if get_origin(annotation) in (tuple, dict):
            next(remaining, None)
        section = _section_in(annotation) or section
    return section


def _section_in(annotation: object) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    found = (_section_in(argument) for argument in get_args(annotation))
    return next((section for section in found if section is not None), None)
