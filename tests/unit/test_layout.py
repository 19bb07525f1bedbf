"""The laws of the layout: which room may know what, and which calls no room makes.

Each law is one test, and a broken one lists every offender.
"""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.changes import CHANGES
from tests.size import ROOMS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "relay"

PURE = {"mail", "smtp", "verdicts", "queue", "policy", ""}
DISK = {"spool", "throttle"}
NETWORK = {"listener", "upstream", "practice"}
NEVER_SEES = {
    "listener": DISK | {"upstream"},
    "upstream": DISK | {"listener"},
    "practice": DISK | {"listener", "upstream"},
    "telemetry": NETWORK,
    "hooks": NETWORK,
    "sender": {"listener", "practice"},
}
"""Rooms below them that they must not import: disk and network meet only in `sender` and above."""
OF_THE_DISK = ("relay.spool.disk.", "relay.spool.database.")
"""The only parts of `spool` that `throttle` may import."""


def _words(text: str) -> set[str]:
    return set(text.split())


NEVER_PURE = _words(
    "aiohttp aiosmtpd aiosmtplib asyncio click concurrent fcntl http io logging multiprocessing mmap os "
    "prometheus_client random rich secrets select selectors shutil signal smtplib socket ssl subprocess sys "
    "tempfile textual threading time urllib uvloop watchfiles"
)
NEVER_ON_DISK = _words("aiohttp aiosmtpd aiosmtplib asyncio http select selectors socket ssl urllib uvloop")
READS_FILES = {
    *("relay/clock.py", "relay/__main__.py", "relay/policy/source.py", "relay/policy/shipped.py"),
    *("relay/policy/named_file.py", "relay/policy/secrets.py"),
}
"""In pure rooms, for the boot id, the policy, shipped rules and providers, and files that a policy names."""
FILE_METHODS = _words(
    "chmod exists hardlink_to is_dir is_file iterdir lstat mkdir open read_bytes read_text rename rglob "
    "rmdir stat symlink_to touch unlink write_bytes write_text"
)
DURABLE_CALLS = _words(
    "os.fsync os.fdatasync os.link os.rename os.renames os.replace os.sync fcntl.flock fcntl.lockf "
    "fcntl.fcntl shutil.move"
)
WALL_CLOCK = re.compile(
    r"(.*\.)?(time\.time|time\.time_ns|datetime\.now|datetime\.utcnow|datetime\.today|date\.today)"
)
BETTER = _words(
    "asyncio.get_event_loop eval exec logging.getLogger os.popen os.system pickle.loads print "
    "tempfile.mktemp time.sleep yaml.load yaml.unsafe_load"
)
"""Each of these calls has a safer equivalent, in the standard library or in relay."""


class Module:
    """One file of relay/ or tests/, parsed and walked once."""

    def __init__(self, path: Path) -> None:
        self.name = str(path.relative_to(ROOT))
        parts = path.relative_to(ROOT).parts[1:]
        self.room = parts[0] if len(parts) > 1 else ""
        self.imports: list[tuple[int, str]] = []
        self.calls: list[tuple[ast.Call, str]] = []
        origin: dict[str, str] = {}
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import():
                    self.imports += [(node.lineno, alias.name) for alias in node.names]
                case ast.ImportFrom():
                    named = {
                        alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
                    }
                    self.imports += [(node.lineno, name) for name in named.values()]
                    origin |= named
                case ast.Call():
                    self.calls.append((node, _dotted(node.func)))
        for at, (call, name) in enumerate(self.calls):
            first, dot, rest = name.partition(".")
            self.calls[at] = call, origin.get(first, first) + dot + rest


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return f"{_dotted(node.value)}.{node.attr}"
        case _:
            return ""


@functools.cache
def _relay() -> list[Module]:
    return [Module(path) for path in sorted(PACKAGE.rglob("*.py"))]


def _none(offenders: list[str]) -> None:
    assert not offenders, "\n" + "\n".join(offenders)


def _room_of(name: str) -> str:
    package, _, rest = name.partition(".")
    room = rest.partition(".")[0]
    return room if package == "relay" and room in ROOMS else ""


def _imported(is_banned: Callable[[Module, str], bool]) -> list[str]:
    return [
        f"{module.name}:{line} imports {name}"
        for module in _relay()
        for line, name in module.imports
        if is_banned(module, f"{name}.")
    ]


def _called(is_banned: Callable[[Module, ast.Call, str], object]) -> list[str]:
    return [
        f"{module.name}:{call.lineno} calls {ast.unparse(call.func)}"
        for module in _relay()
        for call, name in module.calls
        if is_banned(module, call, name)
    ]


def test_imports_between_rooms_point_down() -> None:
    order = [*ROOMS]

    def points_up(module: Module, name: str) -> bool:
        room, other = module.room, _room_of(name)
        if module.name == "relay/__main__.py" or other in {room, ""}:
            return False
        if room == "" or order.index(other) > order.index(room) or other in NEVER_SEES.get(room, ()):
            return True
        return (room, other) == ("throttle", "spool") and not name.startswith(OF_THE_DISK)

    assert {module.room for module in _relay()} == {*ROOMS, ""}
    _none(_imported(points_up))


def test_only_engines_py_imports_an_engine_and_the_disk_imports_only_the_clock() -> None:
    engines = {path.parent.name for path in (PACKAGE / "spool").glob("*/engine.py")}
    assert engines == {"log", "maildir", "postgresql"}

    def knows(module: Module, name: str) -> bool:
        if module.name.startswith("relay/spool/disk/"):
            return name.startswith("relay.") and not name.startswith(("relay.spool.disk.", "relay.clock."))
        return module.name != "relay/spool/engines.py" and any(
            name.startswith(f"relay.spool.{engine}.") and not module.name.startswith(f"relay/spool/{engine}/")
            for engine in engines
        )

    _none(_imported(knows))


LOADS = """
import sys, relay.daemon.listener_process
print(*sys.modules)
import relay.daemon.daemon, relay.status.http
print(*sys.modules)
"""


def test_a_process_loads_nothing_that_it_may_never_need() -> None:
    """Each library costs memory: aiohttp alone a fifth of a listener's, jinja2 5 MB before the first page."""
    ran = subprocess.run([sys.executable, "-c", LOADS], check=True, capture_output=True, text=True, cwd=ROOT)
    of_listeners, of_the_relay = (set(line.split()) for line in ran.stdout.splitlines())

    assert not of_listeners & {"aiohttp", "aiosmtplib", "click", "sqlite3"}
    assert not of_the_relay & {"jinja2", "psycopg", "textual"}


def test_pure_rooms_do_no_input_and_no_output_and_the_disk_imports_no_network() -> None:
    def is_core(module: Module) -> bool:
        return module.room in PURE and module.name not in READS_FILES

    def sees(module: Module, name: str) -> bool:
        top = name.split(".", maxsplit=1)[0]
        return (is_core(module) and top in NEVER_PURE) or (module.room in DISK and top in NEVER_ON_DISK)

    def reads(module: Module, call: ast.Call, name: str) -> bool:
        is_method = isinstance(call.func, ast.Attribute) and call.func.attr in FILE_METHODS
        return is_core(module) and (name == "open" or is_method)

    _none(_imported(sees) + _called(reads))


def test_only_durable_py_syncs_links_renames_or_locks() -> None:
    def renames(call: ast.Call, name: str) -> bool:
        """Return whether Path renames here.  `str.replace` has two arguments, and a Disk is the port.

        The `replace` of a transaction replaces a history.
        """
        of = name.split(".")[-2:-1]
        if not isinstance(call.func, ast.Attribute) or of[0].endswith(("disk", "transaction")):
            return False
        one = len(call.args) == 1 and not call.keywords
        return call.func.attr in {"rename", "hardlink_to"} or (call.func.attr == "replace" and one)

    def makes_durable(module: Module, call: ast.Call, name: str) -> bool:
        is_ours = module.name == "relay/spool/disk/durable.py"
        return not is_ours and (name in DURABLE_CALLS or renames(call, name))

    _none(_called(makes_durable))


def test_no_call_is_made_that_has_a_safer_equivalent() -> None:
    def has_better(module: Module, _: ast.Call, name: str) -> bool:
        is_clock = WALL_CLOCK.fullmatch(name) or (module.room in PURE | DISK and name.startswith("time."))
        return name in BETTER or (bool(is_clock) and module.name != "relay/clock.py")

    _none(_called(has_better))


@functools.cache
def _texts() -> list[tuple[str, str]]:
    """Return the path and the text of each Python file except this one, whose patterns are no offence."""
    paths = [*sorted(PACKAGE.rglob("*.py")), *sorted((ROOT / "tests").rglob("*.py"))]
    return [(str(path.relative_to(ROOT)), path.read_text()) for path in paths if path != Path(__file__)]


def _found(pattern: str, places: str = "") -> list[str]:
    return [
        f"{name}:{text.count(chr(10), 0, found.start()) + 1} {found[0].strip()}"
        for name, text in _texts()
        if re.match(places, name)
        for found in re.finditer(pattern, text)
    ]


def test_nothing_is_unfinished_skipped_or_ignored_without_a_reason() -> None:
    _none(_found(r"# (TODO|FIXME|XXX|HACK)\b|\bNotImplementedError\b|mark\.(skip\(|xfail)|pytest\.xfail"))
    _none(_found(r"# noqa(?!: [A-Z0-9, ]+ - \w)|# type: ignore(?!\[[a-z, -]+\]\s+# \w)"))


def test_no_test_sleeps_and_system_tests_import_no_code_of_the_relay() -> None:
    _none(_found(r"\btime\.sleep\(|\basyncio\.sleep\((?!0\))", r"tests/(.*/)?(test_\w+\.py|fakes/)"))
    paths, offenders = [*sorted((ROOT / "tests" / "system").glob("*.py"))], list[str]()
    for path in paths:  # the list grows by the modules that each file imports
        for _, name in Module(path).imports:
            is_ours = name.split(".")[0] in {"relay", "tests"}
            if is_ours and not f"{name}.".startswith(("tests.system.", "tests.fakes.")):
                offenders.append(f"{path.relative_to(ROOT)} imports {name}")
            module = ROOT.joinpath(*name.split("."))
            files = (module.with_suffix(".py"), module.parent.with_suffix(".py"))
            paths += [each for each in files if each.exists() and each not in paths]
    _none(offenders)


def test_every_path_in_prose_exists() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "Makefile"]
    told = [(page.name, page.read_text()) for page in pages]

    _none(
        [
            f"{where} names {path}"
            for where, text in [*told, *_texts()]
            if where != "CHANGELOG.md"  # it describes past versions
            for path in re.findall(r"(?<![\w./-])(?:relay|tests)/[\w/.]+\.(?:py|yaml)\b", text)
            if not (ROOT / path).exists()
        ]
    )


def test_each_fault_of_make_changes_has_its_place_once() -> None:
    assert [each.fault for each in CHANGES if (PACKAGE / each.file).read_text().count(each.stands) != 1] == []
