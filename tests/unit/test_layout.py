"""The laws of the layout: what may know what, how long a thing may be, which words are used.

Each law is one test, and a broken one lists every offender.  They hold ARCHITECTURE.md
to the code: it says why, this file says that it is so.
"""

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "relay"

ROOMS = (
    *("mail", "smtp", "verdicts", "queue", "policy", "spool", "throttle", "listener", "upstream", "practice"),
    *("telemetry", "hooks", "sender", "status", "control", "daemon", "submission", "cli"),
)
"""From the bottom up: a room may import those before it."""
PURE = {"mail", "smtp", "verdicts", "queue", "policy"}
DISK = {"spool", "throttle"}
NETWORK = {"listener", "upstream", "practice"}
LOOSE = {"__init__.py", "__main__.py", "clock.py"}
NEVER_SEES = {
    "listener": DISK | {"upstream"},
    "upstream": DISK | {"listener"},
    "practice": DISK | {"listener", "upstream"},
    "telemetry": NETWORK,
    "hooks": NETWORK,
    "sender": {"listener", "practice"},
}
"""Below them, and yet none of their business: disk and network meet in `sender` and above."""
OF_THE_DISK = {"relay.spool.disk.durable", "relay.spool.disk.replacing", "relay.spool.finding"}
"""All that `throttle` may know of `spool`."""
MOST_ARROWS = 90
MOST_FILES = 20
LARGEST_SHARE = 0.18
MOST_PARAMETERS = 8
"""Of a function, `self` and `cls` not counted."""
MOST_COLLABORATORS = 10


def _words(text: str) -> set[str]:
    return set(text.split())


PLAIN = _words(
    "int str bytes float bool bytearray None dict list set frozenset tuple deque Counter OrderedDict "
    "Path object Sequence Mapping Iterable Iterator Collection Hashable Literal SimpleQueue StringIO TextIO"
)
RECORDS = _words("NamedTuple Enum StrEnum IntEnum BaseModel Section")
OF_OBJECTS = _words("Telemetry Backlog AccountBacklog KnownUpstream UpstreamInUse SlowStart")
"""Records that hold others together: what is taken out of them counts."""
NEVER_PURE = _words(
    "aiohttp aiosmtpd aiosmtplib asyncio click concurrent fcntl http io logging multiprocessing mmap os "
    "prometheus_client random rich secrets select selectors shutil signal smtplib socket ssl subprocess sys "
    "tempfile textual threading time urllib uvloop watchfiles"
)
NEVER_ON_DISK = _words("aiohttp aiosmtpd aiosmtplib asyncio http select selectors socket ssl urllib uvloop")
READS_FILES = {
    "clock.py": "the boot id, and time itself",
    "policy/source.py": "the policy",
    "policy/shipped.py": "the rules about replies, beside it",
    "policy/provider_names.py": "the providers, beside it",
    "policy/named_file.py": "how the policy and what it names are opened",
    "policy/secrets.py": "the passwords and certificates that a policy names",
}
LEASES_ONLY = "relay/policy/named_file.py"
"""Asks by fcntl(2) for a lease, to see whether a file is being written; makes nothing durable."""
FILE_METHODS = _words(
    "chmod exists hardlink_to is_dir is_file iterdir lstat mkdir open read_bytes read_text rename rglob "
    "rmdir stat symlink_to touch unlink write_bytes write_text"
)
DURABLE_CALLS = _words(
    "os.fsync os.fdatasync os.link os.rename os.renames os.replace os.sync fcntl.flock fcntl.lockf "
    "fcntl.fcntl shutil.move"
)
WALL_CLOCK = _words("time.time time.time_ns datetime.now datetime.utcnow datetime.today date.today")
BANNED_CALLS = {
    "asyncio.get_event_loop": "asyncio.get_running_loop",
    "eval": "a parser",
    "exec": "a parser",
    "fcntl.lockf": "relay.spool.disk.durable: a POSIX lock is lost when any descriptor of the file closes",
    "logging.getLogger": "relay.telemetry.events",
    "os.popen": "subprocess.run with a list",
    "os.system": "subprocess.run with a list",
    "pickle.loads": "relay.spool.message.message_file, or JSON",
    "print": "click.echo in cli, relay.telemetry.events elsewhere",
    "tempfile.mktemp": "tempfile.mkstemp",
    "time.sleep": "waiting for what is waited for",
    "yaml.load": "relay.policy.document",
    "yaml.unsafe_load": "relay.policy.document",
}
NAMES_OF_OTHERS = {
    "auth_data": "aiosmtpd's",
    "data_received": "asyncio's",
    "_data": "the command DATA",
    "data_s": "the timeout of the command DATA",
}
BANNED_WORDS = _words("data body job task item manager util helper")


OF_THEIR_TIME = {"CHANGELOG.md", "MUTANTS.md"}
"""Pages that name files of the time they tell of."""


class Module:
    """One Python file, read once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text("utf-8")
        self.lines = self.text.splitlines()
        self.tree = ast.parse(self.text)
        self.name = str(path.relative_to(ROOT))

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def room(self) -> str:
        """Return the folder below relay/, or "" for relay/ itself."""
        parts = self.path.relative_to(PACKAGE).parts
        return parts[0] if len(parts) > 1 else ""

    @functools.cached_property
    def imports(self) -> list[tuple[int, str]]:
        """Line and dotted name of everything imported, wherever the import stands."""
        return [
            (node.lineno, alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}")
            for node in self.nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        ]

    @functools.cached_property
    def calls(self) -> list[tuple[ast.Call, str]]:
        """Every call with its dotted name; names imported from a module carry it in front."""
        origin = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in self.nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        named = [(call, *ast.unparse(call.func).partition(".")) for call in calls]
        return [(call, origin.get(first, first) + dot + rest) for call, first, dot, rest in named]

    @functools.cached_property
    def prose(self) -> list[tuple[int, str]]:
        """Return docstrings and comments, each with its first line."""
        texts = [
            (node.lineno, node.value.value)
            for node in self.nodes
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ]
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return texts + [(each.start[0], each.string) for each in tokens if each.type == tokenize.COMMENT]

    @functools.cached_property
    def names(self) -> set[str]:
        """Return what it defines, as a module, in a class or of `self`."""
        return {name for _, name in _defined_names(self.tree)}


@functools.cache
def _modules(*folders: str) -> list[Module]:
    return [Module(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def _relay() -> list[Module]:
    return [module for module in _modules("relay") if module.name != "relay/__main__.py"]


def _none(offenders: list[str]) -> None:
    assert not offenders, "\n" + "\n".join(offenders)


def _is(name: str, known: set[str]) -> bool:
    """Whether a dotted name is one of these, also through a module such as `datetime.datetime.now`."""
    return any(name == each or name.endswith("." + each) for each in known)


def test_every_file_is_in_a_room() -> None:
    rooms = {module.room for module in _modules("relay")}
    loose = {path.name for path in PACKAGE.glob("*.py")}

    assert rooms == {*ROOMS, ""}
    assert loose == LOOSE


def test_no_room_is_too_large() -> None:
    lines = {room: sum(len(m.lines) for m in _modules(f"relay/{room}")) for room in ROOMS}
    folders = {path.parent for path in PACKAGE.rglob("*.py")}

    _none([
        f"relay/{room} has {count} of {sum(lines.values())} lines"
        for room, count in lines.items()
        if count > LARGEST_SHARE * sum(lines.values())
    ] + [
        f"{folder.relative_to(ROOT)} has {count} files"
        for folder in folders
        if (count := len(list(folder.glob("*.py")))) > MOST_FILES
    ])  # fmt: skip


def test_imports_between_rooms_point_down() -> None:
    _none(
        [f"{module.name}:{line} imports {name}" for module, line, name in _arrows() if not _may(module, name)]
    )


def _arrows() -> Iterator[tuple["Module", int, str]]:
    """Yield each import of another room."""
    for module in _relay():
        for line, name in module.imports:
            if name.split(".")[0] == "relay" and _room_of(name) not in {module.room, ""}:
                yield module, line, name


def _may(module: "Module", name: str) -> bool:
    room, other = module.room, _room_of(name)
    if room == "" or ROOMS.index(other) > ROOMS.index(room) or other in NEVER_SEES.get(room, set()):
        return False
    return (room, other) != ("throttle", "spool") or any(f"{name}.".startswith(f"{m}.") for m in OF_THE_DISK)


def test_nobody_outside_the_spool_knows_an_engine() -> None:
    """`relay.spool.engines` opens one."""
    _none(
        [
            f"{module.name}:{line} imports {name}"
            for module, line, name in _arrows()
            if f"{name}.".startswith(tuple(f"relay.spool.{engine}." for engine in _engines()))
        ]
    )


def test_no_engine_imports_another() -> None:
    """Nor does what they stand on: `relay.spool.engines` alone names both."""
    _none(
        [
            f"{module.name}:{line} imports {name}"
            for module in _modules("relay/spool")
            if module.name != "relay/spool/engines.py"
            for line, name in module.imports
            for engine in _engines()
            if f"{name}.".startswith(f"relay.spool.{engine}.") and module.path.parent.name != engine
        ]
    )


def test_the_disk_knows_nothing_of_the_spool() -> None:
    _none(
        [
            f"{module.name}:{line} imports {name}"
            for module in _modules("relay/spool/disk")
            for line, name in module.imports
            if name.startswith("relay.") and not f"{name}.".startswith(("relay.spool.disk.", "relay.clock."))
        ]
    )


def _engines() -> list[str]:
    engines = [path.parent.name for path in (PACKAGE / "spool").glob("*/engine.py")]
    assert sorted(engines) == ["log", "maildir"]
    return engines


def test_few_rooms_know_each_other() -> None:
    assert len({(module.room, _room_of(name)) for module, _, name in _arrows()}) <= MOST_ARROWS


def _room_of(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else ""


def test_the_pure_core_does_no_input_and_no_output() -> None:
    core = [
        module for module in _relay() if module.room in {*PURE, ""} and _inside(module) not in READS_FILES
    ]

    _none([
        f"{module.name}:{line} imports {name}"
        for module in core
        for line, name in module.imports
        if name.split(".")[0] in NEVER_PURE
    ] + [
        f"{module.name}:{call.lineno} calls {name}"
        for module in core
        for call, name in module.calls
        if name == "open" or (isinstance(call.func, ast.Attribute) and call.func.attr in FILE_METHODS)
    ])  # fmt: skip


def _inside(module: Module) -> str:
    return str(module.path.relative_to(PACKAGE))


def test_disk_code_knows_no_network_and_no_event_loop() -> None:
    _none(
        [
            f"{module.name}:{line} imports {name}"
            for module in _relay()
            if module.room in DISK
            for line, name in module.imports
            if name.split(".")[0] in NEVER_ON_DISK
        ]
    )


def test_only_durable_makes_anything_durable() -> None:
    _none(
        [
            f"{module.name}:{call.lineno} calls {name}: use relay.spool.disk.durable"
            for module in _relay()
            if _inside(module) != "spool/disk/durable.py"
            for call, name in module.calls
            if name in DURABLE_CALLS or _is_path_rename(call)
            if (module.name, name) != (LEASES_ONLY, "fcntl.fcntl")
        ]
    )


def _is_path_rename(call: ast.Call) -> bool:
    """Whether it is Path.rename, .hardlink_to or .replace; a text's `replace` has two arguments."""
    if not isinstance(call.func, ast.Attribute) or ast.unparse(call.func.value).endswith("disk"):
        return False  # a Disk is the port that durable.py defines
    if call.func.attr == "replace":
        return len(call.args) == 1 and not call.keywords
    return call.func.attr in {"rename", "hardlink_to"}


def test_time_comes_from_the_clock() -> None:
    _none(
        [
            f"{module.name}:{call.lineno} calls {name}: use relay.clock"
            for module in _relay()
            if _inside(module) != "clock.py"
            for call, name in module.calls
            if _is(name, WALL_CLOCK) or (module.room in PURE | DISK and name.startswith("time."))
        ]
    )


def test_no_call_is_made_that_has_a_better() -> None:
    _none(
        [
            f"{module.name}:{call.lineno} calls {name}: use {BANNED_CALLS[name]}"
            for module in _relay()
            for call, name in module.calls
            if name in BANNED_CALLS
        ]
    )


def test_no_test_sleeps() -> None:
    _none(
        [
            f"{module.name}:{call.lineno} calls {name}"
            for module in _modules("tests")
            if module.path.name.startswith("test_") or "fakes" in module.path.parts
            for call, name in module.calls
            if name == "time.sleep" or (name == "asyncio.sleep" and ast.unparse(call.args[0]) != "0")
        ]
    )


def test_every_module_opens_with_what_it_is() -> None:
    _none(
        [
            module.name
            for module in _modules("relay", "tests")
            if not ast.get_docstring(module.tree)
            and (module.text or module.name.startswith("relay/"))
            and not module.path.name.startswith("test_")  # it is called what it is about
        ]
    )


def test_a_function_has_few_parameters() -> None:
    _none(
        [
            f"{module.name}:{node.lineno} {node.name}"
            for module in _relay()
            for node in module.nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if len(_parameters(node)) > MOST_PARAMETERS
        ]
    )


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def test_a_class_has_few_collaborators() -> None:
    """An attribute that `__init__` sets to an object of ours with a life of its own, or to a function."""
    plain = PLAIN | {
        each.name for m in _relay() for each in m.nodes if isinstance(each, ast.ClassDef) and _is_plain(each)
    }

    _none(
        [
            f"{module.name}:{node.lineno} {node.name}: {', '.join(hands)}"
            for module in _relay()
            for node in module.nodes
            if isinstance(node, ast.ClassDef)
            if len(hands := _collaborators(node, plain)) > MOST_COLLABORATORS
        ]
    )


def _is_plain(node: ast.ClassDef) -> bool:
    """Whether a class is a record of values: a policy's, a tuple, an enum, a frozen or slotted one."""
    bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
    is_record = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    return node.name not in OF_OBJECTS and (is_record or bool(bases & RECORDS))


def _collaborators(node: ast.ClassDef, plain: set[str]) -> list[str]:
    found: list[str] = []
    for made in node.body:
        if not (isinstance(made, ast.FunctionDef) and made.name == "__init__"):
            continue
        arguments = [*made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs]
        objects = {each.arg for each in arguments if not _are_plain(each.annotation, plain)} - {"self"}
        for step in ast.walk(made):
            if isinstance(step, ast.Assign):
                found += _hands(step.targets[0], step.value, objects, plain)
            elif isinstance(step, ast.AnnAssign) and step.value is not None:
                found += _hands(step.target, step.value, objects, plain)
    return found


def _are_plain(annotation: ast.expr | None, plain: set[str]) -> bool:
    """Whether values of a type are plain; `A | None` goes by A."""
    match annotation:
        case ast.BinOp(left=left):
            return _are_plain(left, plain)
        case ast.Subscript(value=value):
            return _are_plain(value, plain)
        case ast.Constant(value=str(text)):
            return _are_plain(ast.parse(text, mode="eval").body, plain)
        case ast.Name(id=name):
            return name in plain
        case _:
            return True  # asyncio's own, and no annotation


def _hands(target: ast.expr, value: ast.expr, objects: set[str], plain: set[str]) -> list[str]:
    if isinstance(target, ast.Tuple):
        values = value.elts if isinstance(value, ast.Tuple) else [value] * len(target.elts)
        pairs = zip(target.elts, values, strict=True)
        return [hand for pair in pairs for hand in _hands(*pair, objects, plain)]
    is_ours = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
    return [ast.unparse(target)] if is_ours and _is_object(value, objects, plain) else []


def _is_object(value: ast.expr, objects: set[str], plain: set[str]) -> bool:
    match value:
        case ast.Name(id=name):
            return name in objects
        case ast.Attribute(value=inner):
            return _is_object(inner, objects, plain)
        case ast.BoolOp(values=values):
            return any(_is_object(each, objects, plain) for each in values)
        case ast.IfExp(body=body, orelse=other):
            return _is_object(body, objects, plain) or _is_object(other, objects, plain)
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Subscript(value=ast.Name(id=name))):
            return name[0].isupper() and name not in plain
        case _:
            return isinstance(value, ast.Lambda)


def test_identifiers_use_the_projects_words() -> None:
    _none(
        [
            f"{module.name}:{line} {name!r} contains {', '.join(sorted(words))!r}"
            for module in _relay()
            for line, name in _defined_names(module.tree)
            if name not in NAMES_OF_OTHERS and (words := _banned_words(name, module))
        ]
    )


def _defined_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "data_received":
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                yield from ((argument.lineno, argument.arg) for argument in arguments)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def _banned_words(name: str, module: Module) -> set[str]:
    # DATA in capitals is the command of RFC 5321; a task may be one of asyncio's where that is imported.
    parts = [part for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name) if part != "DATA"]
    words = {part.lower() for part in parts} | {part.lower().removesuffix("s") for part in parts}
    banned = words & BANNED_WORDS
    if any(imported.split(".")[0] == "asyncio" for _, imported in module.imports):
        banned -= {"task"}
    return banned


def test_nothing_is_processed() -> None:
    _none(
        [
            f"{module.name}:{node.lineno} {node.name}: say what it does"
            for module in _relay()
            for node in module.nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and re.match(r"_*process(_(?!id|es)|\Z)", node.name)
        ]
    )


@pytest.mark.parametrize(
    ("mark", "why"),
    [
        (r"#.*\b(TODO|FIXME|XXX|HACK)\b", "unfinished"),
        (r"\bNotImplementedError\b", "unfinished"),
        (r"pragma: no cover", "every line is worth a test"),
        (r"mark\.(skip\(|xfail)|pytest\.xfail", "say what is lacking: tests.proofs.peers.demand"),
        (r"^\s*#\s*[-=#*~]{4,}", "a file that needs rulers is two files"),
        (r"# noqa(?!: [A-Z0-9, ]+ - \w)", "a reason is needed: # noqa: CODE - reason"),
        (r"# type: ignore(?!\[[a-z, -]+\]\s+# \w)", "mypy takes a reason as # type: ignore[code]  # reason"),
    ],
)  # fmt: skip
def test_no_line_carries_a_mark_of_unfinished_work(mark: str, why: str) -> None:
    pattern = re.compile(mark)

    _none(
        [
            f"{module.name}:{number} {line.strip()}: {why}"
            for module in _modules("relay", "tests")
            if module.path != Path(__file__)
            for number, line in enumerate(module.lines, start=1)
            if pattern.search(line)
        ]
    )


def test_tests_mirror_the_rooms() -> None:
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("*.py")} - {Path()}
    proofs = {"fuzz", "lab", "mutants", "peers"}

    _none([
        f"tests/{folder}"
        for folder in folders
        if not (
            folder.parts[0] in {"bench", "fakes", "simulation", "system"}
            or (folder.parts[0] == "unit" and set(folder.parts[1:2]) <= set(ROOMS))
            or (folder.parts[0] == "proofs" and set(folder.parts[1:2]) <= proofs)
        )
    ] + [
        f"tests/{folder}/__init__.py"
        for folder in folders
        if not (ROOT / "tests" / folder / "__init__.py").exists()
    ])  # fmt: skip


def test_the_system_is_tested_from_outside() -> None:
    _none(
        [
            f"{module.name}:{line} imports {name}"
            for module in _modules("tests/system")
            for line, name in module.imports
            if name.split(".")[0] == "relay"
        ]
    )


def test_the_map_names_every_room() -> None:
    text = (PACKAGE / "__init__.py").read_text()

    _none([room for room in ROOMS if not re.search(rf"^{room}/ ", text, re.MULTILINE)])


def test_every_name_in_prose_is_there() -> None:
    _none(
        [
            f"{module.name}:{line} names {name}"
            for module in _modules("relay", "tests")
            for line, text in module.prose
            for name in re.findall(r"(?<![\w./])(?:relay|tests)(?:\.[A-Za-z_]\w*)+", text)
            if not _is_there(name.split("."))
        ]
    )


def _is_there(parts: Sequence[str]) -> bool:
    """Whether a dotted name leads to a room, a module, or something that a module defines."""
    modules = _by_path()
    for count in range(len(parts), 0, -1):
        path = "/".join(parts[:count])
        module = modules.get(f"{path}.py") or modules.get(f"{path}/__init__.py")
        if module is not None:
            return set(parts[count:]) <= module.names
    return False


@functools.cache
def _by_path() -> dict[str, Module]:
    return {module.name: module for module in _modules("relay", "tests")}


def test_every_path_in_prose_is_there() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "Makefile"]
    told = [(page.name, page.read_text("utf-8")) for page in pages if page.name not in OF_THEIR_TIME]
    told += [(f"{m.name}:{line}", text) for m in _modules("relay", "tests") for line, text in m.prose]

    _none(
        [
            f"{where} names {path}"
            for where, text in told
            for path in re.findall(r"(?<![\w./-])(?:relay|tests)/[\w/.]+\.(?:py|yaml)\b", text)
            if not (ROOT / path).exists()
        ]
    )


def test_every_module_in_backticks_on_a_page_is_there() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    rooms = "|".join(ROOMS)

    _none(
        [
            f"{page.name} names {path}"
            for page in pages
            if page.name not in OF_THEIR_TIME
            for path in re.findall(rf"`((?:{rooms})/[\w/]+)`", page.read_text("utf-8"))
            if not ((PACKAGE / path.rstrip("/")).is_dir() or (PACKAGE / f"{path}.py").exists())
        ]
    )
