"""Parses YAML into plain values, and keeps the position of each value.  Pure.

Guarantees: any bytes become a value, faults with positions, or both; nothing is raised.  Memory and time are
bounded: depth and number of nodes are counted before any node is made, and again as aliases are expanded.
A fault never quotes the file, which may contain a misplaced secret.
Scalars are a subset of YAML 1.2: `true`, `false`, `null`, `~`, an empty value and decimal whole numbers.
Every other scalar is text (`no`, `22:22`, `0777`, `1e3`, dates).  Boolean keys of a policy take `no` too.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

MAX_BYTES = 1 << 20
MAX_DEPTH = 20
MAX_NODES = 20_000

Step = int | str
Steps = tuple[Step, ...]
"""The path from the root, or from a section, to a value: keys and list indices."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WHOLE_NUMBER = re.compile(r"(?:0|[-+]?[1-9][0-9]{0,29})\Z")
_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}
# YAML 1.2, 5.1 forbids these, except NEL, LS and PS.  libyaml counts those three as line ends and editors do
# not, so positions would differ from the editor's.
_NOT_ALLOWED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


class Mark(NamedTuple):
    """A position.  Line and column count from 1; columns are characters."""

    line: int = 1
    column: int = 1


class Fault(NamedTuple):
    """An error in a policy.  The message never quotes the policy."""

    message: str
    at: Steps = ()
    """The path to the key at fault; empty for the whole policy."""
    mark: Mark = Mark()


class Document:
    def __init__(self, content: bytes) -> None:
        self.value: Any = None
        """The root value; None if a fault stopped the parsing."""
        self.faults: list[Fault] = []
        self._places: dict[Steps, tuple[Mark, Mark]] = {}
        """By path: the mark of the key or list entry, and the mark of its value."""
        self._count = 0
        text = ""
        try:
            text = _text(content)
            _refuse_too_much(text)
            root = yaml.compose(text, Loader=_LOADER)
            if root is None:
                raise _RefusedError("the file is empty; a policy is a mapping of keys")
            self.value = self._read(root, (), root)
        except _RefusedError as refused:
            self.faults.append(Fault(*refused.args))
        except yaml.MarkedYAMLError as error:
            self.faults.append(_not_yaml(text, error))
        except yaml.YAMLError:
            self.faults.append(Fault("not YAML"))

    def mark_of(self, steps: Sequence[Step], *, of_key: bool = False) -> Mark:
        """Return the mark of a value, or of the nearest value above it that exists."""
        place = self._places.get(tuple(steps))
        if place is None:
            return self.mark_of(steps[:-1]) if steps else Mark()
        return place[0] if of_key else place[1]

    def has(self, steps: Steps) -> bool:
        return steps in self._places

    def _read(self, node: yaml.Node, steps: Steps, key: yaml.Node) -> object:
        mark = _mark(node.start_mark)
        self._places[steps] = _mark(key.start_mark), mark
        self._count += 1
        if self._count > MAX_NODES:
            raise _RefusedError(f"more than {MAX_NODES} values after expanding aliases", steps, mark)
        if isinstance(node, yaml.ScalarNode):
            if not node.value.isprintable():
                raise _RefusedError("a line end or another control character in a value", steps, mark)
            return _meaning(node)
        if len(steps) >= MAX_DEPTH:
            raise _RefusedError(f"nested deeper than {MAX_DEPTH}", steps, mark)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, steps)
        return [self._read(child, (*steps, index), child) for index, child in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, steps: Steps) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, child in node.value:
            mark = _mark(key.start_mark)
            if not isinstance(key, yaml.ScalarNode) or not key.value.isprintable():
                self.faults.append(Fault("a key must be plain text", steps, mark))
            elif key.value in found:
                line, column = self.mark_of((*steps, key.value), of_key=True)
                message = f"duplicate key; the first is at line {line}, column {column}"
                self.faults.append(Fault(message, (*steps, key.value), mark))
            else:
                found[key.value] = self._read(child, (*steps, key.value), key)
        return found


class _RefusedError(Exception):
    """Stops the parsing.  The arguments are those of a `Fault`."""


def _text(content: bytes) -> str:
    if len(content) > MAX_BYTES:
        raise _RefusedError(f"the file is larger than {MAX_BYTES} bytes")
    # Octets that are not UTF-8 become lone surrogates.
    text = content.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    if found := _NOT_ALLOWED.search(text):
        before = text[: found.start()]
        is_octet = "\udc80" <= found[0] <= "\udcff"
        message = "not UTF-8" if is_octet else f"character U+{ord(found[0]):04X} is not allowed"
        raise _RefusedError(message, (), Mark(before.count("\n") + 1, len(before) - before.rfind("\n")))
    return text


def _refuse_too_much(text: str) -> None:
    """Refuse before any node is made: the composer in C has no bounds, and its stack would overflow."""
    depth = nodes = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        nodes += isinstance(event, yaml.NodeEvent)
        mark = _mark(event.start_mark)
        if nodes > MAX_NODES:
            raise _RefusedError(f"more than {MAX_NODES} values", (), mark)
        if depth > MAX_DEPTH:
            raise _RefusedError(f"nested deeper than {MAX_DEPTH}", (), mark)
        if getattr(event, "tag", None) is not None:
            raise _RefusedError("YAML tags such as !!str are not allowed", (), mark)


def _meaning(node: yaml.ScalarNode) -> bool | int | str | None:
    text: str = node.value
    if node.style:
        return text
    if text in _WORDS:
        return _WORDS[text]
    return int(text) if _WHOLE_NUMBER.match(text) else text


def _mark(mark: Any) -> Mark:
    """Count from 1; PyYAML counts from 0."""
    return Mark(mark.line + 1, mark.column + 1)


def _not_yaml(text: str, error: yaml.MarkedYAMLError) -> Fault:
    mark = _mark(error.problem_mark or error.context_mark)
    line = [*text.splitlines(), ""][mark.line - 1 :][0]
    if (tab := re.match(" *\t", line)) is not None:
        return Fault("not YAML: a tab in the indentation; use spaces", mark=Mark(mark.line, tab.end()))
    # libyaml's messages are fixed texts; those of the loader in Python quote the file.
    parts = [error.context, error.problem] if _LOADER is not yaml.SafeLoader else []
    hint = "an IPv6 address needs quotes" if "::" in line else None
    return Fault(": ".join(["not YAML", *(part for part in (*parts, hint) if part)]), mark=mark)
