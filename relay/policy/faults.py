"""The faults of a policy as its owner reads them: where, at which key, and what would have been right.  Pure.

Turns the errors of pydantic into words.  A fault quotes nothing of the file, since a password may stand at
any place by mistake, as a value or as a key: it has file, line, column, the kind of value, and of keys only
those that a policy has.  Any other key is shown as `?`.
"""

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from relay.policy.document import Document, Fault, Steps
from relay.policy.model import Policy
from relay.policy.units import BROKEN, Section

MOST_FAULTS = 200
"""Told of one file, the first; the rest is only counted."""
WHOLE = "policy"
"""The key of a fault that is about the whole file."""
FOREIGN_KEY = "?"
"""Stands for a key that is not a policy's own, and so may be anything."""

_ONE_LIMIT = "write one limit that always holds, such as `per: 24h`"
_RETIRED: Mapping[str, str] = {
    "adapt": "the log says what a refusal found our windows at",
    "hours": _ONE_LIMIT,
    "ramp": _ONE_LIMIT,
    "zone": _ONE_LIMIT,
}
"""Keys that a policy may have had, and what its owner does instead."""
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
    "too_long": "expected at most {max_length}",
    "path_type": "expected a path",
    "enum": "expected {expected}",
    "literal_error": "expected {expected}",
    "greater_than_equal": "expected a whole number of at least {ge}",
    "less_than_equal": "expected a whole number of at most {le}",
}
"""By pydantic's types of errors; another one `does not fit here`."""
_KINDS = {
    type(None): "nothing",
    bool: "true or false",
    int: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping",
}
"""What a document may have."""


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
    def __init__(self, path: Path, faults: Iterable[Fault]) -> None:
        """There is at least one."""
        told = [PolicyFault(path, *each.mark, _key(each.at), each.message) for each in faults]
        told.sort(key=lambda each: (each.line, each.column, each.key == WHOLE, each.key))
        if len(told) > MOST_FAULTS:
            last = told[MOST_FAULTS - 1]
            words = f"and {len(told) - MOST_FAULTS} more faults"
            told[MOST_FAULTS:] = [PolicyFault(path, last.line, last.column, WHOLE, words)]
        self.errors = tuple(told)
        """In the order of the file; never empty."""
        super().__init__(*self.errors)

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))


def faults_of(document: Document, error: ValidationError) -> Iterator[Fault]:
    """Yield what pydantic found, in words of ours: its own quote the values."""
    for detail in error.errors(include_url=False):
        steps: Steps = detail["loc"]
        if detail["type"] == BROKEN:
            for message, at, _ in detail["ctx"]["faults"]:
                yield Fault(message, (*steps, *at), document.mark_of((*steps, *at)))
            continue
        if detail["type"] == "default_factory_not_called":
            continue  # a default that other keys make is no fault of its own
        is_of_key = detail["type"] == "extra_forbidden"
        if steps[-1:] == ("[key]",) and not is_of_key:
            # Pydantic's own step, behind the key of a mapping of names.
            steps, is_of_key = steps[:-1], True
        if steps and detail["type"] != "missing" and not document.has(steps):
            # One value that stands for a list of it, or for a section that has no other key.
            steps = steps[:-1]
        yield Fault(_words(detail, steps), steps, document.mark_of(steps, of_key=is_of_key))


def _words(detail: ErrorDetails, steps: Steps) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _of_unknown_key(str(steps[-1]), _section_at(steps[:-1]))
    if kind == "missing" and steps[-1] == "limits":
        return "this key is required: what the provider allows, or `limits: []` for as fast as it takes mail"
    found = _KINDS[type(detail["input"])]
    if kind == "value_error":
        words = str(context["error"].args[0])
        return words if found == "text" else f"{words}, got {found}"
    words = _WORDS.get(kind, "this does not fit here").format(**context).replace("'", "")
    if kind.endswith("_type") or (found != "text" and "expected" in context):
        words += f", got {found}"
    return f"{words}; put it in quotes" if kind == "string_type" and found == "a number" else words


def _of_unknown_key(key: str, section: type[Section]) -> str:
    if key in _RETIRED:
        return f"no key any more: {_RETIRED[key]}"
    known = sorted(_annotations(section))
    # Guessing at something long takes long.
    guessed = key.lower().replace("-", "_")[:_LONGEST_GUESSED]
    if near := difflib.get_close_matches(guessed, known, n=1):
        return f"unknown key; did you mean {near[0]}?"
    return f"unknown key; known here: {', '.join(known)}"


def _key(steps: Steps) -> str:
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
    keys = set(_RETIRED)
    sections = [Section]
    while sections:
        keys.update(_annotations(section := sections.pop()))
        sections += section.__subclasses__()
    return frozenset(keys)


def _annotations(section: type[Section]) -> dict[str, object]:
    return {each.alias or name: each.annotation for name, each in section.model_fields.items()}


def _section_at(steps: Steps) -> type[Section]:
    section: type[Section] = Policy
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
