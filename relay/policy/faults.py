"""The errors of a policy: where, at which key, and what would have been right.  Pure.

Turns pydantic's errors into words for the owner of the policy, without class names.  A fault
quotes nothing of the file, since a password may stand at any place by mistake, as a value or as a
key: it has file, line, column, the kind of fault, and of keys only those that the policy defines;
any other key is shown as `?`.  A terminal shows the values too (`on_terminal`), but never those of
an account or its host.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from relay.policy.document import START, WHOLE, Document, Step, key_path
from relay.policy.hook import HookSettings
from relay.policy.model import Policy, Practice, Upstream
from relay.policy.surroundings import RULE
from relay.policy.units import Section, Unfit, kind

MOST_FAULTS = 200
"""Told of one file; the rest is only counted."""
FOREIGN_KEY = "?"
"""Stands for a key that is not a policy's own, and so may be anything."""
_LONGEST_GUESSED = 40
_NEVER_SHOWN: dict[type[Section], frozenset[str]] = {
    Upstream: frozenset({"auth", "host"}),
    HookSettings: frozenset({"url", "secret_file", "command"}),
    Practice: frozenset({"user", "password_file"}),
}
"""Where a misplaced password is to be expected most."""
_SHORTEST_SECRET = 4
"""Characters of a value that is looked for in other values' errors."""
_NAME = re.compile(r"[a-z0-9_-]{1,64}\Z")


@dataclass(frozen=True, slots=True)
class PolicyFault:
    path: Path
    line: int
    column: int
    """Both count from 1; the column in characters."""
    key: str
    """Such as `upstreams.isp.limits[0].per`; `policy` where it is about the whole file."""
    message: str
    terminal: tuple[str, str] | None = field(default=None, repr=False)
    """Key and message for a terminal, where those are others."""

    def on_terminal(self) -> "PolicyFault":
        key, message = self.terminal or (self.key, self.message)
        return PolicyFault(self.path, self.line, self.column, key, message)

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

    def on_terminal(self) -> str:
        return "\n".join(str(fault.on_terminal()) for fault in self.errors)


def fault_of_file(path: Path, message: str) -> PolicyFault:
    return PolicyFault(path, *START, WHOLE, message)


def faults_of_document(path: Path, document: Document) -> list[PolicyFault]:
    told = _Teller(path, document, Policy)
    return [told.fault(flaw.mark, flaw.steps, flaw.message) for flaw in document.flaws]


def faults_of_validation(
    path: Path, document: Document, error: ValidationError, root: type[Section] = Policy
) -> list[PolicyFault]:
    """`root` is what the whole file is, for guesses at misspelt keys."""
    told = _Teller(path, document, root)
    details = error.errors(include_url=False)
    faults = [fault for detail in details[:MOST_FAULTS] for fault in _faults_of(told, detail)]
    if len(details) > MOST_FAULTS:
        last = max(faults, key=lambda fault: (fault.line, fault.column))
        rest = len(details) - MOST_FAULTS
        faults.append(PolicyFault(path, last.line, last.column, WHOLE, f"and {rest} more faults"))
    return faults


class _Teller:
    """Makes the faults of one file: decides what of it they may repeat."""

    def __init__(self, path: Path, document: Document, root: type[Section]) -> None:
        self._path = path
        self.document = document
        self.root = root
        self._secrets = set(_texts(document.value(), root))

    def fault(
        self, mark: tuple[int, int], steps: Sequence[Step], message: str, shown: str | None = None
    ) -> PolicyFault:
        """`shown` is the message for a terminal, where that is another."""
        known, is_secret = self._known(steps)
        plain = key_path(known)
        if is_secret:
            return PolicyFault(self._path, *mark, plain, message)
        key, shown = key_path(steps), shown or message
        if any(secret in shown or secret in key for secret in self._secrets):
            # By an alias, or written twice.
            key, shown = plain, message
        terminal = None if (key, shown) == (plain, message) else (key, shown)
        return PolicyFault(self._path, *mark, plain, message, terminal)

    def _known(self, steps: Sequence[Step]) -> tuple[list[Step], bool]:
        """Return the steps with what is not a policy's own left out, and whether a secret may stand there."""
        section: type[Section] | None = self.root
        annotation: object = None
        known: list[Step] = []
        is_secret = False
        for index, step in enumerate(steps):
            if isinstance(step, int):
                known.append(step)
            elif section is not None and annotation is None:
                found = _annotations(section).get(step)
                if found is None:
                    # What is misplaced below a foreign key may still be an account.
                    below = {each for each in steps[index + 1 :] if isinstance(each, str)}
                    return [*known, FOREIGN_KEY], is_secret or bool(below & _NEVER_SHOWN[Upstream])
                is_secret = is_secret or step in _NEVER_SHOWN.get(section, ())
                section, annotation = _section_in(found), found if _is_by_name(found) else None
                known.append(step)
                continue
            elif section is not None and _NAME.match(step) and self._is_named(steps, index):
                known.append(step)
            else:
                return [*known, FOREIGN_KEY], is_secret
            annotation = None
        return known, is_secret

    def _is_named(self, steps: Sequence[Step], index: int) -> bool:
        return index + 1 < len(steps) or self.document.is_mapping(steps)


def _texts(value: object, section: type[Section]) -> Iterator[str]:
    """Yield what is written where a misplaced password is to be expected most, keys too."""
    if not isinstance(value, dict):
        return
    for key, annotation in _annotations(section).items():
        below = value.get(key)
        if key in _NEVER_SHOWN.get(section, ()):
            known = set(_annotations(inner)) if (inner := _section_in(annotation)) else set()
            yield from (
                text for text in _all_texts(below) if len(text) >= _SHORTEST_SECRET and text not in known
            )
        elif inner := _section_in(annotation):
            several = below.values() if _is_by_name(annotation) and isinstance(below, dict) else [below]
            for each in several:
                yield from _texts(each, inner)


def _all_texts(value: object) -> Iterator[str]:
    match value:
        case dict():
            for key, below in value.items():
                yield key
                yield from _all_texts(below)
        case tuple():
            for below in value:
                yield from _all_texts(below)
        case str() | int() if not isinstance(value, bool):
            yield str(value)


def _faults_of(told: _Teller, detail: ErrorDetails) -> Iterator[PolicyFault]:
    is_about_key = detail["loc"][-1:] == ("[key]",)
    steps: list[Step] = list(detail["loc"][:-1] if is_about_key else detail["loc"])
    if detail["type"] == RULE:
        for rule in detail["ctx"]["rules"]:
            at = _follow(steps, rule.at)
            yield told.fault(told.document.mark_of(at), at, rule.message, rule.shown)
        return
    is_about_key = is_about_key or detail["type"] == "extra_forbidden"
    mark = told.document.mark_of(steps, of_key=is_about_key)
    yield told.fault(mark, steps, *_words(detail, steps, told.root))


def _follow(steps: Sequence[Step], at: Sequence[Step]) -> list[Step]:
    found = list(steps)
    for step in at:
        if step == "..":
            found.pop()
        else:
            found.append(step)
    return found


def _words(detail: ErrorDetails, steps: Sequence[Step], root: type[Section]) -> tuple[str, str | None]:
    """Return what is wrong, without what is written there and with it."""
    match detail["type"]:
        case "value_error":
            error = detail["ctx"]["error"]
            return (error.plain, error.shown) if isinstance(error, Unfit) else (str(error), None)
        case "missing":
            return "this key is required", None
        case "extra_forbidden":
            return f"unknown key{_suggestion(steps, root)}", None
        case "model_type" | "dict_type":
            return f"expected a mapping of keys, got {kind(detail['input'])}", None
        case "tuple_type":
            return f"expected a list, got {kind(detail['input'])}", None
        case _:
            return f"{kind(detail['input'])} does not fit here", None


def _suggestion(steps: Sequence[Step], root: type[Section]) -> str:
    unknown = str(steps[-1])
    if len(unknown) > _LONGEST_GUESSED:
        return ""
    section = _section_at(steps[:-1], root)
    if (instead := section.retired.get(unknown)) is not None:
        return f"; {instead}"
    known = _keys(section)
    if near := difflib.get_close_matches(unknown.lower().replace("-", "_"), known, n=1):
        return f"; did you mean {near[0]}?"
    return f"; known here: {', '.join(sorted(known))}"


def _keys(section: type[Section]) -> list[str]:
    return list(_annotations(section))


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


def _is_by_name(annotation: object) -> bool:
    """Return whether a key holds something for each of several names."""
    return get_origin(annotation) is dict or any(_is_by_name(each) for each in get_args(annotation))


def _section_in(annotation: object) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    found = (_section_in(argument) for argument in get_args(annotation))
    return next((section for section in found if section is not None), None)
