"""Turns the text of `policy.yaml` into a `Policy` or all its faults; compares and writes policies.

Guarantees: any bytes become a `Policy` or a `PolicyError`; nothing else is raised.  With `looks_at_files`
every file and secret that a valid text names is checked too, so the relay can use the policy.
A fault never quotes the file, since a misplaced password may be any value or key.  A fault has file, line,
column, the expected kind of value, and the keys that a policy has; every other key is shown as `?`.
Policies are compared by `Section.as_written`.  Two policies without a difference mean the same, except for
hidden parts: the path of a hook's URL, and the name of a credential.
"""

import difflib
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, get_args

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from relay.policy.document import MAX_BYTES, Document, Fault, Step, Steps
from relay.policy.model import RESTART_KEYS, Policy
from relay.policy.named_file import read_regular
from relay.policy.secrets import unusable
from relay.policy.units import BROKEN, Section, written_key

_RESTART = frozenset(written_key(Policy, key) for key in RESTART_KEYS)
WHOLE = "policy"
"""The key of a fault of the whole file."""
FOREIGN_KEY = "?"
"""Replaces a key that no policy has: it may be a misplaced secret."""
_LONGEST_GUESSED = 40
_NAME = re.compile(r"[a-z0-9_-]{1,64}\Z")
_NAMED = ("upstreams", "lanes", "users")
"""Mappings by names of the owner's choice, which may be those of sections."""
_WORDS = {
    "missing": "this key is required",
    "model_type": "expected a mapping of keys",
    "dict_type": "expected a mapping of keys",
    "tuple_type": "expected a list",
    "int_type": "expected a whole number",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "string_type": "expected text; a number needs quotes",
    "string_too_short": "expected text, got none",
    "string_too_long": "expected at most {max_length} characters",
    "too_long": "expected at most {max_length} entries",
    "path_type": "expected a path",
    "enum": "expected {expected}",
    "literal_error": "expected {expected}",
    "greater_than_equal": "expected a whole number of at least {ge}",
    "less_than_equal": "expected a whole number of at most {le}",
    "value_error": "{error}",
}
"""Messages by pydantic's type of error; any other type says `this value does not fit here`."""


class PolicyFault(NamedTuple):
    path: Path
    line: int
    column: int
    """Line and column count from 1; columns are characters."""
    key: str
    """Such as `upstreams.isp.limits[0].per`; `policy` for the whole file."""
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.key}: {self.message}"


class PolicyError(Exception):
    def __init__(self, path: Path, faults: Iterable[Fault]) -> None:
        """`faults` has at least one."""
        told = [PolicyFault(path, *each.mark, _key(each.at), each.message) for each in faults]
        told.sort(key=lambda each: (each.line, each.column, each.key == WHOLE, each.key))
        self.errors = tuple(told)
        """In the order of the file."""
        super().__init__(*self.errors)

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))


def read_policy(path: Path, *, looks_at_files: bool = True) -> Policy:
    """Read a policy for a command, outside the service.  Raises PolicyError, also for a missing file.

    `looks_at_files`: also check the files that the policy names.
    """
    return parse_policy(policy_bytes(path), path, looks_at_files=looks_at_files)


def policy_bytes(path: Path) -> bytes:
    """Return the text, at most MAX_BYTES and one byte more.  Raises PolicyError if it cannot be read."""
    try:
        return read_regular(path, MAX_BYTES)[0]
    except OSError as error:
        raise PolicyError(path, [Fault(f"cannot read it: {error.strerror}")]) from None


def parse_policy(content: bytes, path: Path, *, looks_at_files: bool = False) -> Policy:
    """Parse a policy; relative paths start at the folder of `path`.  Raises PolicyError with all faults.

    `looks_at_files`: also check the files that it names.
    """
    document = Document(content)
    faults = list(document.faults)
    if faults and document.value is None:
        raise PolicyError(path, faults)
    try:
        # Symbolic links are not resolved: paths start at the folder of the link.
        policy = Policy.model_validate(document.value, context=path.absolute().parent)
    except ValidationError as error:
        faults += _faults_of(document, error)
    else:
        if looks_at_files and not faults:
            faults = [each._replace(mark=document.mark_of(each.at)) for each in unusable(policy)]
        if not faults:
            return policy
    raise PolicyError(path, faults)


def _faults_of(document: Document, error: ValidationError) -> Iterator[Fault]:
    """Yield pydantic's errors with our messages: pydantic's own quote the values."""
    for detail in error.errors(include_url=False):
        kind, steps = detail["type"], detail["loc"]
        if kind == "default_factory_not_called":
            continue  # another key of the section has the fault
        if kind == BROKEN:
            for message, at, _ in detail["ctx"]["faults"]:
                yield Fault(message, (*steps, *at), document.mark_of((*steps, *at)))
            continue
        is_of_key = kind == "extra_forbidden"
        if steps[-1:] == ("[key]",) and not is_of_key:
            # Pydantic adds this step behind the key of a mapping.
            steps, is_of_key = steps[:-1], True
        if steps and kind != "missing" and not document.has(steps):
            # A single value stands for a list, or for a section (the spool as a plain path).
            steps = steps[:-1]
        yield Fault(_words(detail, steps), steps, document.mark_of(steps, of_key=is_of_key))


def _words(detail: ErrorDetails, steps: Steps) -> str:
    kind = detail["type"]
    if kind == "extra_forbidden":
        return _of_unknown_key(steps)
    if kind == "missing" and steps[-1] == "limits":
        return "this key is required: write what the provider allows, or `limits: []` for no limit"
    # pydantic puts the words of an enumeration in quotes; all of them are words of the policy's format.
    words = _WORDS.get(kind, "this value does not fit here").format(**detail.get("ctx", {}))
    return words.replace("'", "") if kind in ("enum", "literal_error") else words


def _of_unknown_key(steps: Steps) -> str:
    within, is_name = WHOLE, False
    for step in steps[:-1]:
        if not is_name and step in _sections():
            within = str(step)
        is_name = not is_name and step in _NAMED
    known = sorted(_annotations(_sections()[within]))
    # difflib is slow on long texts.
    guessed = str(steps[-1]).lower().replace("-", "_")[:_LONGEST_GUESSED]
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
    return frozenset(key for section in _sections().values() for key in _annotations(section))


@functools.cache
def _sections() -> dict[Step, type[Section]]:
    """Return the type of each section by its key; no key has two types."""
    found: dict[Step, type[Section]] = {}
    unread: list[tuple[str, object]] = [(WHOLE, Policy)]
    while unread:
        key, annotation = unread.pop()
        if isinstance(annotation, type) and issubclass(annotation, Section):
            found[key] = annotation
            unread += _annotations(annotation).items()
        else:
            unread += [(key, each) for each in get_args(annotation)]
    return found


def _annotations(section: type[Section]) -> dict[str, object]:
    return {each.alias or name: each.annotation for name, each in section.model_fields.items()}


@dataclass(frozen=True, slots=True)
class Difference:
    about: str
    """The key, such as `upstreams.isp.limits`."""
    was: str | None
    """The value as YAML; None: the key was added."""
    now: str | None
    """None: the key was removed."""
    needs_restart: bool = False

    def __str__(self) -> str:
        """Return `KEY: OLD → NEW`, or `+ KEY: NEW` for an added key, and `- KEY: OLD` for a removed key."""
        sign = "+ " if self.was is None else "- " if self.now is None else ""
        return f"{sign}{self.about}: {' → '.join(filter(None, (self.was, self.now)))}"


def differences(old: Policy, new: Policy) -> list[Difference]:
    found = list(_between("", old.as_written(), new.as_written()))
    before, after = old.default_upstream, new.default_upstream
    if before != after:
        found.insert(0, ("first of upstreams", before, after))
    return [Difference(about, was, now, about.partition(".")[0] in _RESTART) for about, was, now in found]


def policy_text(policy: Policy) -> str:
    """Return the text of an equal policy, except for hidden parts (`Section.as_written`)."""
    return _yaml(policy.as_written(), is_flow=None)


def _between(about: str, old: object, new: object) -> Iterator[tuple[str, str | None, str | None]]:
    match old, new:
        case dict(), dict():
            for key in dict.fromkeys([*old, *new]):
                below = f"{about}.{key}" if about else key
                if key not in old or key not in new:
                    was, now = (_yaml(its[key]) if key in its else None for its in (old, new))
                    yield (below, was, now)
                else:
                    yield from _between(below, old[key], new[key])
            if set(old) == set(new) and list(old) != list(new):
                yield (f"order of {about}", ", ".join(old), ", ".join(new))
        case list(), list() if any(each not in new for each in old) or any(each not in old for each in new):
            yield from ((about, _yaml(each), None) for each in old if each not in new)
            yield from ((about, None, _yaml(each)) for each in new if each not in old)
        case _ if old != new:
            yield (about, _yaml(old), _yaml(new))


def _yaml(value: object, *, is_flow: bool | None = True) -> str:
    text: str = yaml.safe_dump(
        value, default_flow_style=is_flow, sort_keys=False, allow_unicode=True, width=1_000_000
    )
    return text.removesuffix("...\n").rstrip("\n") if is_flow else text
