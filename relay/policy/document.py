"""YAML as a tree that knows where everything stands.  Pure.

Guarantees: any bytes become a tree, or flaws with a position; nothing else is raised, and memory and
time stay bounded.  The tree is built from the parser's events without recursion, so that depth and
number are refused before they exist; an alias counts as all that it stands for (a YAML bomb).
Scalars mean what YAML 1.2 says, and less: `true`, `false`, `null`, `~`, nothing, and
decimal whole numbers; everything else is text (`no`, `22:22`, `0777`, `1e3`, dates).
Does not: know any key of a policy.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import yaml

MAX_BYTES = 1 << 20
MAX_DEPTH = 20
MAX_NODES = 20_000
MAX_FLAWS = 100
WHOLE = "policy"
"""The key of a fault that is about the whole file."""

Step = int | str
Scalar = bool | int | str | None

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WHOLE_NUMBER = re.compile(r"(?:0|[-+]?[1-9][0-9]{0,29})\Z")
_WORDS: dict[str, Scalar] = {"true": True, "false": False, "null": None, "~": None, "": None}
# What YAML 1.2, 5.1 allows, less NEL, LS and PS, which YAML 1.1 took for line ends and
# no editor counts as such: a position must be the one that the editor shows.
# As what is left out, not as what is allowed: that takes ten times as long to compile.
_NOT_ALLOWED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_PLAIN_KEY = re.compile(r"(?:[A-Za-z0-9_-]+|\?)\Z")


class Mark(NamedTuple):
    line: int
    column: int


class Flaw(NamedTuple):
    mark: Mark
    steps: tuple[Step, ...]
    """To the key; none where it is about the whole file."""
    message: str
    """Holds nothing of what is written there, which may be a secret."""


class Unfit(ValueError):  # noqa: N818 - said of a value, and reads as such
    """A value that is not fit.  Its text holds nothing of the value, which may be a misplaced password."""

    def __init__(self, plain: str, shown: str) -> None:
        """`shown` says the same with the value in it: for a terminal only."""
        super().__init__(plain)
        self.plain = plain
        self.shown = shown


START = Mark(1, 1)


class KeyValue(NamedTuple):
    key_mark: Mark
    node: "Node"


@dataclass(slots=True)
class Node:
    mark: Mark
    value: "Scalar | list[Node] | dict[str, KeyValue]"
    size: int = 1
    """Values and keys in it, itself included."""
    height: int = 0
    """Collections inside each other, itself included."""
    has_end: bool = False
    """A collection in brackets: nothing behind it in the file can add to it."""


@dataclass(frozen=True, slots=True)
class Document:
    root: Node | None
    """None where a flaw left nothing worth looking at."""
    flaws: tuple[Flaw, ...]

    def value(self) -> object:
        return None if self.root is None else _plain(self.root)

    def is_mapping(self, steps: Sequence[Step]) -> bool:
        node = self.root
        for step in steps:
            entry = None if node is None else _entry(node, step)
            if entry is None:
                return False
            node = entry.node
        return node is not None and isinstance(node.value, dict)

    def unfinished(self) -> frozenset[tuple[Step, ...]]:
        """Return the steps to all that more lines at the end of the file could add to.

        These are the last value and each collection that ends with it, but for what is in brackets.
        """
        found: list[tuple[Step, ...]] = []
        steps: tuple[Step, ...] = ()
        node = self.root
        while node is not None and not node.has_end:
            found.append(steps)
            match node.value:
                case dict() as entries if entries:
                    key = next(reversed(entries))
                    steps, node = (*steps, key), entries[key].node
                case list() as nodes if nodes:
                    steps, node = (*steps, len(nodes) - 1), nodes[-1]
                case _:
                    break
        return frozenset(found)

    def mark_of(self, steps: Sequence[Step], *, of_key: bool = False) -> Mark:
        """Where a step leads nowhere, return the mark of the value that lacks it."""
        mark, node = START, self.root
        for step in steps:
            if node is None:
                break
            entry = _entry(node, step)
            if entry is None:
                return node.mark
            mark, node = entry
        return mark if of_key or node is None else node.mark


def _entry(node: Node, step: Step) -> KeyValue | None:
    """Return the mark of the key; in a list, that of the value."""
    match node.value:
        case dict() as entries:
            return entries.get(str(step))
        case list() as nodes if isinstance(step, int) and 0 <= step < len(nodes):
            return KeyValue(nodes[step].mark, nodes[step])
        case _:
            return None


class _Hopeless(Exception):  # noqa: N818 - it carries the flaw that ends the reading
    def __init__(self, mark: Mark, steps: tuple[Step, ...], message: str) -> None:
        super().__init__(message)
        self.flaw = Flaw(mark, steps, message)


def key_path(steps: Sequence[Step]) -> str:
    """Return such as `upstreams.isp.limits[0].per`."""
    path = ""
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            word = step if _PLAIN_KEY.match(step) else json.dumps(step)
            path += f".{word}" if path else word
    return path or WHOLE


def read_document(content: bytes) -> Document:
    builder = _Builder()
    try:
        for event in _events(content):
            builder.take(event)
    except _Hopeless as error:
        return Document(None, (*builder.flaws, error.flaw))
    except yaml.MarkedYAMLError as error:
        mark = _mark(error.problem_mark or error.context_mark)
        flaw = _tab_before(content, mark) or Flaw(
            mark, (), f"not YAML{_problem(error)}{_hint(content, mark)}"
        )
        return Document(None, (*builder.flaws, flaw))
    except yaml.YAMLError:
        return Document(None, (*builder.flaws, Flaw(START, (), "not YAML")))
    if builder.root is None:
        return Document(None, (Flaw(START, (), "the file is empty; a policy is a mapping of keys"),))
    return Document(builder.root, tuple(builder.flaws))


def _events(content: bytes) -> Iterator[yaml.Event]:
    if len(content) > MAX_BYTES:
        raise _Hopeless(START, (), f"the file is larger than {MAX_BYTES} bytes")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8")
        raise _Hopeless(_end_of(before), (), f"not UTF-8: byte 0x{content[error.start]:02x}") from None
    text = text.removeprefix("\ufeff")
    if found := _NOT_ALLOWED.search(text):
        raise _Hopeless(_end_of(text[: found.start()]), (), f"character U+{ord(found[0]):04X} is not allowed")
    yield from yaml.parse(text, Loader=_LOADER)


def _problem(error: yaml.MarkedYAMLError) -> str:
    """Return a fixed text: the loader in Python quotes what it read."""
    if _LOADER is yaml.SafeLoader:
        return ""
    return ": " + ", ".join(part for part in (error.context, error.problem) if part)


def _end_of(before: str) -> Mark:
    """Return the position right after some text, by the line ends that YAML counts."""
    lines = re.split(r"\r\n|\r|\n", before)
    return Mark(len(lines), len(lines[-1]) + 1)


def _tab_before(content: bytes, mark: Mark) -> Flaw | None:
    """Return the flaw of a line that a tab indents, which YAML tells in words of its own."""
    lines = re.split(rb"\r\n|\r|\n", content)
    line = lines[mark.line - 1] if mark.line <= len(lines) else b""
    blank = line[: len(line) - len(line.lstrip(b" \t"))]
    if b"\t" not in blank:
        return None
    return Flaw(Mark(mark.line, blank.index(b"\t") + 1), (), "not YAML: a tab in the indentation; use spaces")


def _hint(content: bytes, mark: Mark) -> str:
    lines = re.split(rb"\r\n|\r|\n", content)
    is_usual = mark.line <= len(lines) and b"::" in lines[mark.line - 1]
    return "; an IPv6 address needs quotes" if is_usual else ""


class _Counted(Protocol):
    """A mark of either loader; both count from 0."""

    line: int
    column: int


def _mark(mark: _Counted | None) -> Mark:
    return START if mark is None else Mark(mark.line + 1, mark.column + 1)


def _plain(node: Node) -> object:
    # Recursion is bounded by MAX_DEPTH, and what aliases repeat by MAX_NODES.
    match node.value:
        case dict() as entries:
            return {key: _plain(entry.node) for key, entry in entries.items()}
        case list() as nodes:
            return tuple(_plain(child) for child in nodes)
        case scalar:
            return scalar


def _scalar(event: yaml.ScalarEvent) -> Scalar:
    text: str = event.value
    if event.style not in (None, ""):
        return text
    if text in _WORDS:
        return _WORDS[text]
    return int(text) if _WHOLE_NUMBER.match(text) else text


@dataclass(slots=True)
class _Open:
    node: Node
    anchor: str | None
    key: str | None = None
    key_mark: Mark | None = None
    """Set between a key and its value; `key` stays None where the key was refused."""


@dataclass(slots=True)
class _Builder:
    root: Node | None = None
    flaws: list[Flaw] = field(default_factory=list)
    open: list[_Open] = field(default_factory=list)
    anchors: dict[str, Node | None] = field(default_factory=dict)
    """None while the anchored collection is still open."""
    count: int = 0
    documents: int = 0

    def take(self, event: yaml.Event) -> None:
        mark = _mark(event.start_mark)
        match event:
            case yaml.DocumentStartEvent():
                self.documents += 1
                if self.documents > 1:
                    raise _Hopeless(mark, (), "a second document; a policy is one")
            case yaml.AliasEvent():
                node = self._anchored(event.anchor, mark)
                self._count(node.size, mark)
                self._add(node, mark)
            case yaml.ScalarEvent():
                self._take_scalar(event, mark)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._refuse_tag(event, mark)
                self._start(event, mark)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                closed = self.open.pop()
                if closed.anchor is not None:
                    self.anchors[closed.anchor] = closed.node
                self._add(closed.node, closed.node.mark)

    def _take_scalar(self, event: yaml.ScalarEvent, mark: Mark) -> None:
        self._refuse_tag(event, mark)
        if not event.value.isprintable():
            raise _Hopeless(mark, self._here(), "a line end or another control character in a value")
        self._count(1, mark)
        node = Node(mark, _scalar(event))
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        if self._awaits_key:
            self._add_key(event, mark)
        else:
            self._add(node, mark)

    @property
    def _awaits_key(self) -> bool:
        return (
            bool(self.open) and isinstance(self.open[-1].node.value, dict) and self.open[-1].key_mark is None
        )

    def _start(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent, mark: Mark) -> None:
        if len(self.open) >= MAX_DEPTH:
            raise _Hopeless(mark, self._here(), f"nested deeper than {MAX_DEPTH}")
        node = Node(
            mark,
            {} if isinstance(event, yaml.MappingStartEvent) else [],
            height=1,
            has_end=bool(event.flow_style),
        )
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        self._count(1, mark)
        self.open.append(_Open(node, event.anchor))

    def _anchored(self, name: str | None, mark: Mark) -> Node:
        if name is None or name not in self.anchors:
            raise _Hopeless(mark, self._here(), "an alias without an anchor before it")
        node = self.anchors[name]
        if node is None:
            raise _Hopeless(mark, self._here(), "an alias inside its own anchor")
        if len(self.open) + node.height > MAX_DEPTH:
            raise _Hopeless(mark, self._here(), f"nested deeper than {MAX_DEPTH}")
        return node

    def _count(self, nodes: int, mark: Mark) -> None:
        self.count += nodes
        if self.count > MAX_NODES:
            raise _Hopeless(mark, self._here(), f"more than {MAX_NODES} values, aliases written out")

    def _add_key(self, event: yaml.ScalarEvent, mark: Mark) -> None:
        top, key = self.open[-1], event.value
        if key == "<<" and event.style in (None, ""):
            raise _Hopeless(mark, self._here(), "merge keys are not part of YAML 1.2; write the keys out")
        top.key_mark, top.key = mark, key
        entries = top.node.value
        if isinstance(entries, dict) and (first := entries.get(key)) is not None:
            line, column = first.key_mark
            self._flaw(mark, f"duplicate key; the first is at line {line}, column {column}")
            top.key = None

    def _add(self, node: Node, mark: Mark) -> None:
        if not self.open:
            self.root = node
            return
        if self._awaits_key:
            self._flaw(mark, "a key must be plain text")
            self.open[-1].key_mark = mark
            return
        top = self.open[-1]
        top.node.size += node.size + isinstance(top.node.value, dict)
        top.node.height = max(top.node.height, node.height + 1)
        match top.node.value:
            case list() as nodes:
                nodes.append(node)
            case dict() as entries:
                if top.key is not None and top.key_mark is not None:
                    entries[top.key] = KeyValue(top.key_mark, node)
                top.key = top.key_mark = None

    def _refuse_tag(
        self, event: yaml.ScalarEvent | yaml.MappingStartEvent | yaml.SequenceStartEvent, mark: Mark
    ) -> None:
        if event.tag is not None:
            self._flaw(mark, "tags such as !!str have no place in a policy")

    def _flaw(self, mark: Mark, message: str) -> None:
        self.flaws.append(Flaw(mark, self._here(), message))
        if len(self.flaws) >= MAX_FLAWS:
            raise _Hopeless(mark, (), "too much is wrong; not read any further")

    def _here(self) -> tuple[Step, ...]:
        steps: list[Step] = []
        for collection in self.open:
            match collection.node.value:
                case list() as nodes:
                    steps.append(len(nodes))
                case _ if collection.key is not None:
                    steps.append(collection.key)
        return tuple(steps)
