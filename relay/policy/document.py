"""YAML as plain values, and where each of them stands.  Pure.

Guarantees: any bytes become a value, or faults with a position; nothing else is raised, and memory and time
stay bounded: depth and number are counted before any node is made, and again for what aliases repeat.
No fault quotes what is written, which may be a misplaced secret.
Scalars mean what YAML 1.2 says, and less: `true`, `false`, `null`, `~`, nothing, and decimal whole numbers;
everything else is text (`no`, `22:22`, `0777`, `1e3`, dates).  A key that is true or false takes `no` too.
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
"""From the root, or from a section, to a value: keys, and places in lists."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WHOLE_NUMBER = re.compile(r"(?:0|[-+]?[1-9][0-9]{0,29})\Z")
_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}
# What YAML 1.2, 5.1 allows, less NEL, LS and PS, which libyaml takes for line ends and no editor counts as
# such: a position must be the one that the editor shows.
_NOT_ALLOWED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


class Mark(NamedTuple):
    """Both count from 1; the column in characters."""

    line: int = 1
    column: int = 1


class Fault(NamedTuple):
    """Something that is wrong with a policy.  Its message never quotes the policy."""

    message: str
    at: Steps = ()
    """To the key at fault; none where it is about the whole."""
    mark: Mark = Mark()


class Document:
    def __init__(self, content: bytes) -> None:
        self.value: object = None
        """None where a fault left nothing worth looking at."""
        self.faults: list[Fault] = []
        self._places: dict[Steps, tuple[Mark, Mark]] = {}
        """Of each key, or place in a list, and of its value."""
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
        """Where a step leads nowhere, return the mark of the value that lacks it."""
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
            raise _RefusedError(f"more than {MAX_NODES} values, aliases written out", steps, mark)
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
    """Nothing of the file is worth reading any further.  Its arguments are those of a `Fault`."""


def _text(content: bytes) -> str:
    if len(content) > MAX_BYTES:
        raise _RefusedError(f"the file is larger than {MAX_BYTES} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode("utf-8")
        message = f"not UTF-8: byte 0x{error.object[error.start]:02x}"
        raise _RefusedError(message, (), _end_of(before)) from None
    if found := _NOT_ALLOWED.search(text):
        message = f"character U+{ord(found[0]):04X} is not allowed"
        raise _RefusedError(message, (), _end_of(text[: found.start()]))
    return text


def _end_of(before: str) -> Mark:
    return Mark(before.count("\n") + 1, len(before) - before.rfind("\n"))


def _refuse_too_much(text: str) -> None:
    """Count before any node is made: the composer in C has no bounds, and its stack would overflow."""
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
            raise _RefusedError("tags such as !!str have no place in a policy", (), mark)


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
    # The words of libyaml are fixed; the loader in Python quotes what it read.
    parts = [error.context, error.problem] if _LOADER is not yaml.SafeLoader else []
    hint = "an IPv6 address needs quotes" if "::" in line else None
    return Fault(": ".join(["not YAML", *(part for part in (*parts, hint) if part)]), mark=mark)
