"""Law-like tests of the mutants themselves: a mutant that is none would count as nothing to catch."""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.mutants.__main__ import JUDGED, PROMISES, modules
from tests.mutants.equivalents import Equivalents
from tests.mutants.operators import KINDS, operators
from tests.mutants.sites import Site, mutated, sites

pytestmark = pytest.mark.crash(least_s=60)

ROOT = Path(__file__).parents[2]


def found(source: str) -> set[tuple[str, str]]:
    """Return the kind of each mutant that leaves something out, and the source with it."""
    text = textwrap.dedent(source).lstrip()
    return {(site.kind, mutated(text, site)) for site in sites(text)}


def slips(expression: str, kind: str) -> set[str]:
    """Return what the general mutants of one kind make of an expression."""
    text = f"def f():\n    x = {expression}\n"
    made = {mutated(text, site) for site in operators(text) if site.kind == kind}
    return {each.partition("x = ")[2].strip() for each in made}


def test_every_sync_order_and_check_is_left_out_once() -> None:
    source = """
        def f(disk):
            if disk.size(1) > 2:
                raise ValueError
            disk.write_all(1, b"")
            disk.sync(1)
    """
    begin = "def f(disk):\n    "
    check = "if disk.size(1) > 2:\n        raise ValueError\n    "
    write, sync = 'disk.write_all(1, b"")', "disk.sync(1)"

    assert found(source) == {
        ("check", f"{begin}pass\n    {write}\n    {sync}\n"),
        ("order", f"{begin}{check}{sync}\n    {write}\n"),
        ("sync", f"{begin}{check}{write}\n    pass\n"),
    }


def test_a_check_ends_in_leaving_and_its_else_is_left() -> None:
    several = "def f(a):\n    if a:\n        a.pop()\n        return 1\n    return 2\n"
    last = "    else:\n        a.pop()\n"
    other = f"def f(a):\n    if a:\n        return 1\n    elif a is None:\n        raise ValueError\n{last}"
    none = "def f(a):\n    if a:\n        return 1\n        a.pop()\n"

    assert found(several) == {("check", "def f(a):\n    pass\n    return 2\n")}
    assert found(other) == {
        ("check", other.replace("if a:", "if False:")),
        ("check", other.replace("elif a is None:", "elif False:")),
    }
    assert found(none) == set()


def test_an_order_changes_by_whichever_statement_may_move() -> None:
    def orders(*lines: str) -> set[str]:
        text = "def f(disk):\n" + "".join(f"    {line}\n" for line in lines)
        return {made.partition("\n")[2] for kind, made in found(text) if kind == "order"}

    rename, sync = "disk.rename(a, b)", "disk.sync(c)"
    assert orders(rename, "x = 1", sync) == {
        f"    {sync}\n    {rename}\n    x = 1\n",
        f"    x = 1\n    {sync}\n    {rename}\n",
    }
    assert orders(rename, "c = 1", sync) == {f"    c = 1\n    {sync}\n    {rename}\n"}
    assert orders("x = disk.rename(a, b)", "y = x", sync) == {
        f"    {sync}\n    x = disk.rename(a, b)\n    y = x\n"
    }
    assert orders("x = disk.rename(a, b)", "c = x", sync) == set()


def test_a_loop_that_stays_inside_moves_and_what_leaves_does_not() -> None:
    loop = "    for a in disk.names('a'):\n        if a:\n            continue\n        disk.unlink(a)\n"
    left = "    if disk.rename('a', 'b'):\n        return\n"
    sync = "    disk.sync(1)\n"

    assert ("order", f"def f(disk):\n{sync}{loop}") in found(f"def f(disk):\n{loop}{sync}")
    assert {kind for kind, _ in found(f"def f(disk):\n{left}{sync}")} == {"check", "sync"}


def test_spool_verbs_and_writes_in_place_count_as_syncs() -> None:
    source = "def f(disk, note):\n    self.spool.mark(1)\n    note(2)\n    disk.write_at(1, b'', 0)\n"

    assert {made for kind, made in found(source) if kind == "sync"} == {
        source.replace("self.spool.mark(1)", "pass"),
        source.replace("disk.write_at(1, b'', 0)", "pass"),
    }


def test_a_sync_whose_result_is_used_is_taken_for_good() -> None:
    one = "def f(disk):\n    error = disk.sync_directory('a')\n    return error\n"
    several = "def f(disk, fds):\n    return disk.sync_each(fds, content_only=True)\n"

    assert found(one) == {("sync", one.replace("disk.sync_directory('a')", "None"))}
    assert found(several) == {
        ("sync", several.replace("disk.sync_each(fds, content_only=True)", "[None] * len(fds)"))
    }


def test_no_order_is_changed_that_could_not_be_another() -> None:
    needs = "def f(disk):\n    fd = disk.open_new('a')\n    disk.sync(fd)\n"
    reads = "def f(disk):\n    disk.inode('a')\n    disk.length('a')\n"

    assert {kind for kind, _ in found(needs)} == {"sync"}
    assert found(reads) == set()


@pytest.mark.parametrize(
    ("kind", "expression", "made"),
    [
        ("comparison", "a < b", {"a <= b"}),
        ("comparison", "a is not None", {"a is None"}),
        ("comparison", "0 <= a < b", {"0 < a < b", "0 <= a <= b"}),
        ("negation", "not a", {"(a)"}),
        ("negation", "a and b or c", {"a or b or c", "a and b and c"}),
        ("negation", "b if a else c", {"b if (not (a)) else c"}),
        ("negation", "[a for a in b if c(a)]", {"[a for a in b if (not (c(a)))]"}),
        ("negation", "f(wait=True)", {"f(wait=False)"}),
        ("constant", "a[1]", {"a[2]", "a[0]"}),
        ("constant", "'one'", set()),
        ("arithmetic", "(a +\n  b)", {"(a -\n  b)"}),
        ("arithmetic", "a // b * c", {"a * b * c", "a // b // c"}),
        ("arithmetic", "f'{a}' + b", set()),
    ],
)
def test_a_slip_changes_one_thing(kind: str, expression: str, made: set[str]) -> None:
    assert slips(expression, kind) == made


def test_what_is_for_a_reader_has_no_mutants() -> None:
    source = '''
        """Says 1 + 1."""
        LARGEST_BYTES = 256 * 1024
        Shares = tuple[int, 1]
        def f(a: "list[1]") -> "list[2]":
            """Return 3."""
            raise ValueError(f"{a + 1} of {2}")
    '''
    assert operators(textwrap.dedent(source)) == []


@pytest.mark.parametrize("module", modules((*JUDGED, *PROMISES)))
def test_every_mutant_is_another_program(module: str) -> None:
    source = (ROOT / module).read_text()
    original = ast.dump(ast.parse(source))
    # Of the many general ones every twentieth: each takes a parser's time.
    made: list[Site] = [*sites(source), *operators(source)[::20]]

    assert [site for site in made if ast.dump(ast.parse(mutated(source, site))) == original] == []


def test_every_kind_of_mutant_is_there() -> None:
    general = {site.kind for module in modules(JUDGED) for site in operators((ROOT / module).read_text())}
    left_out = {site.kind for module in modules(PROMISES) for site in sites((ROOT / module).read_text())}

    assert general == set(KINDS)
    assert left_out == {"sync", "order", "check"}


def test_what_is_listed_as_equivalent_is_there_and_has_a_reason() -> None:
    there = {
        (module, site.where, site.kind, site.told)
        for module in modules((*JUDGED, *PROMISES))
        for source in [(ROOT / module).read_text()]
        for site in [*sites(source), *operators(source)]
    }
    reasons = Equivalents.load().reasons

    assert set(reasons) - there == set()
    assert all(len(why) > 30 for why in reasons.values())


SWAPPED = """
import sys
from tests.mutants.operators import operators
from tests.mutants.sites import mutated
from tests.mutants.swap import swap
import relay.spool.root.headroom as room

source = open(room.__file__).read()
sites = [site for site in operators(source) if site.where == "why_no_room()" and site.kind == "comparison"]
keep = room.why_no_room
assert keep((room.HEADROOM_BYTES, None)) is not None
swap(room.__file__, source, mutated(source, sites[0]))
assert keep((room.HEADROOM_BYTES, None)) is None, "the mutant is not in force"
try:
    swap(room.__file__, source, source)
except ValueError:
    sys.exit(0)
"""


def test_a_mutant_swapped_in_is_in_force_and_a_wrong_one_refused() -> None:
    # In a process of its own: nobody else may run with a mutant.
    subprocess.run([sys.executable, "-c", SWAPPED], cwd=ROOT, check=True, timeout=60)
