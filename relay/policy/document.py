"""YAML as plain values, and where each of them stands.  Pure.

Guarantees: any bytes become a value, or flaws with a position; nothing else is raised, and memory and time
stay bounded: depth and number are counted while the nodes are composed, and again for what aliases repeat.
No flaw quotes what is written, which may be a misplaced secret.
Scalars mean what YAML 1.2 says, and less: `true`, `false`, `null`, `~`, nothing, and decimal whole numbers;
everything else is text (`no`, `22:22`, `0777`, `1e3`, dates).  A key that is true or false takes `no` too.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import yaml
from yaml.composer import Composer, ComposerError

MAX_BYTES = 1 << 20
MAX_DEPTH = 20
MAX_NODES = 20_000
MAX_FLAWS = 100

Step = int | str
Steps = tuple[Step, ...]
"""From the root to a value: keys, and places in lists."""

_WHOLE_NUMBER = re.compile(r"(?:0|[-+]?[1-9][0-9]{0,29})\Z")
_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}
# What YAML 1.2, 5.1 allows, less NEL, LS and PS, which libyaml takes for line ends and no editor counts as
# such: a position must be the one that the editor shows.
_NOT_ALLOWED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


class Mark(NamedTuple):
    """Both count from 1; the column in characters."""

    line: int
    column: int


START = Mark(1, 1)


class Flaw(NamedTuple):
    mark: Mark
    steps: Steps
    """To the key; none where it is about the whole file."""
    message: str


class Place(NamedTuple):
    key: Mark
    """In a list, that of the value."""
    value: Mark


@dataclass(frozen=True, slots=True)
class Document:
    value: object
    """None where a flaw left nothing worth looking at."""
    places: Mapping[Steps, Place]
    flaws: tuple[Flaw, ...]

    def mark_of(self, steps: Sequence[Step], *, of_key: bool = False) -> Mark:
        """Where a step leads nowhere, return the mark of the value that lacks it."""
        place = self.places.get(tuple(steps))
        if place is None:
            return self.mark_of(steps[:-1]) if steps else START
        return place.key if of_key else place.value


def read_document(content: bytes) -> Document:
    reader = _Reader()
    try:
        node = _composed(_text(content))
        if node is None:
            raise _RefusedError(START, "the file is empty; a policy is a mapping of keys")
        value = reader.value(node, (), Place(START, _mark(node.start_mark)))
    except _RefusedError as refused:
        flaw = refused.flaw
    except yaml.MarkedYAMLError as error:
        flaw = _not_yaml(content, error)
    except yaml.YAMLError:
        flaw = Flaw(START, (), "not YAML")
    else:
        return Document(value, reader.places, tuple(reader.flaws))
    return Document(None, {}, (*reader.flaws, flaw))


class _RefusedError(Exception):
    """Nothing of the file is worth reading any further."""

    def __init__(self, mark: Mark, message: str, steps: Steps = ()) -> None:
        super().__init__(message)
        self.flaw = Flaw(mark, steps, message)


def _text(content: bytes) -> str:
    if len(content) > MAX_BYTES:
        raise _RefusedError(START, f"the file is larger than {MAX_BYTES} bytes")
    try:
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8")
        raise _RefusedError(_end_of(before), f"not UTF-8: byte 0x{content[error.start]:02x}") from None
    if found := _NOT_ALLOWED.search(text):
        raise _RefusedError(_end_of(text[: found.start()]), f"character U+{ord(found[0]):04X} is not allowed")
    return text


def _end_of(before: str) -> Mark:
    lines = re.split(r"\r\n|\r|\n", before)
    return Mark(len(lines), len(lines[-1]) + 1)


_IS_FAST = hasattr(yaml, "CSafeLoader")
_Loader: Any = yaml.CSafeLoader if _IS_FAST else yaml.SafeLoader
# The composer in Python in front of the parser in C: only it can be told to stop.
_Base: Any = type("_Base", (Composer, _Loader), {}) if _IS_FAST else _Loader


class _BoundedLoader(_Base):  # type: ignore[misc]  # chosen by what is installed
    """Composes nodes until they are too deep or too many."""

    def __init__(self, text: str) -> None:
        _Loader.__init__(self, text)
        Composer.__init__(self)
        self.depth = self.nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node:
        event = self.peek_event()
        self.nodes += 1
        self.depth += 1
        if self.nodes > MAX_NODES:
            raise _RefusedError(_mark(event.start_mark), f"more than {MAX_NODES} values")
        if self.depth > MAX_DEPTH + 1:
            raise _RefusedError(_mark(event.start_mark), f"nested deeper than {MAX_DEPTH}")
        node: yaml.Node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def resolve(self, _kind: type[yaml.Node], _value: object, _implicit: object) -> str:
        """Leave to `_Reader` what a scalar means; a tag that is written stays in its node."""
        return ""


def _composed(text: str) -> yaml.Node | None:
    loader = _BoundedLoader(text)
    try:
        if not loader.check_node():
            return None
        node: yaml.Node = loader.get_node()
        if loader.check_node():
            raise _RefusedError(_mark(loader.peek_event().start_mark), "a second document; a policy is one")
    finally:
        loader.dispose()
    return node


@dataclass(slots=True)
class _Reader:
    places: dict[Steps, Place] = field(default_factory=dict)
    flaws: list[Flaw] = field(default_factory=list)
    count: int = 0

    def value(self, node: yaml.Node, steps: Steps, place: Place) -> object:
        self.places[steps] = place
        self.count += 1
        if self.count > MAX_NODES:
            raise _RefusedError(place.value, f"more than {MAX_NODES} values, aliases written out", steps)
        if node.tag:
            self._flaw(place.value, steps, "tags such as !!str have no place in a policy")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, steps)
        if len(steps) >= MAX_DEPTH:
            raise _RefusedError(place.value, f"nested deeper than {MAX_DEPTH}", steps)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, steps)
        marks = [(child, _mark(child.start_mark)) for child in node.value]
        return [
            self.value(child, (*steps, index), Place(mark, mark)) for index, (child, mark) in enumerate(marks)
        ]

    def _mapping(self, node: yaml.MappingNode, steps: Steps) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, child in node.value:
            mark = _mark(key.start_mark)
            if not isinstance(key, yaml.ScalarNode) or key.tag or not key.value.isprintable():
                self._flaw(mark, steps, "a key must be plain text")
            elif key.value in found:
                line, column = self.places[*steps, key.value].key
                message = f"duplicate key; the first is at line {line}, column {column}"
                self._flaw(mark, (*steps, key.value), message)
            else:
                place = Place(mark, _mark(child.start_mark))
                found[key.value] = self.value(child, (*steps, key.value), place)
        return found

    def _scalar(self, node: yaml.ScalarNode, steps: Steps) -> bool | int | str | None:
        text: str = node.value
        if not text.isprintable():
            message = "a line end or another control character in a value"
            raise _RefusedError(_mark(node.start_mark), message, steps)
        if node.style:
            return text
        if text in _WORDS:
            return _WORDS[text]
        return int(text) if _WHOLE_NUMBER.match(text) else text

    def _flaw(self, mark: Mark, steps: Steps, message: str) -> None:
        self.flaws.append(Flaw(mark, steps, message))
        if len(self.flaws) >= MAX_FLAWS:
            raise _RefusedError(mark, "too much is wrong; not read any further")


class _Counted(Protocol):
    """A mark of either loader; both count from 0."""

    line: int
    column: int


def _mark(mark: _Counted | None) -> Mark:
    return START if mark is None else Mark(mark.line + 1, mark.column + 1)


def _not_yaml(content: bytes, error: yaml.MarkedYAMLError) -> Flaw:
    mark = _mark(error.problem_mark or error.context_mark)
    lines = re.split(rb"\r\n|\r|\n", content)
    line = lines[mark.line - 1] if mark.line <= len(lines) else b""
    blank = line[: len(line) - len(line.lstrip(b" \t"))]
    if b"\t" in blank:
        at = Mark(mark.line, blank.index(b"\t") + 1)
        return Flaw(at, (), "not YAML: a tab in the indentation; use spaces")
    if isinstance(error, ComposerError):
        return Flaw(mark, (), "an alias without an anchor before it, or a second anchor of the same name")
    # The words of libyaml are fixed; the loader in Python quotes what it read.
    words = ", ".join(part for part in (error.context, error.problem) if part and _IS_FAST)
    hint = "; an IPv6 address needs quotes" if b"::" in line else ""
    return Flaw(mark, (), f"not YAML{': ' * bool(words)}{words}{hint}")
