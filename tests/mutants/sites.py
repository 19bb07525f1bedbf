"""The places in a module at which something that keeps a promise can be left out.

- a *sync*: a statement whose call makes something durable, removed;
- an *order*: two neighbouring statements that both touch the disk, exchanged;
- a *check*: an `if` that does nothing but raise, leave, or go on with the next, removed.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

SYNCS = frozenset({"sync", "sync_content", "sync_directory", "sync_each", "sync_above", "_sync_all"})


@dataclass(frozen=True, slots=True)
class Site:
    """One mutant: lines of a file, from and until (1-based, half-open), and what takes their place."""

    kind: str
    line: int
    until: int
    instead: tuple[str, ...]
    told: str
    """The statement, cut to one short line."""


def sites(source: str) -> list[Site]:
    """Return all mutants of a module, in the order of its lines."""
    lines = source.splitlines()
    found = [site for block in _blocks(ast.parse(source)) for site in _of_block(block, lines)]
    return sorted(found, key=lambda site: (site.line, site.kind))


def mutated(source: str, site: Site) -> str:
    """Return the module with one thing left out."""
    lines = source.splitlines()
    lines[site.line - 1 : site.until - 1] = site.instead
    return "\n".join(lines) + "\n"


def _blocks(tree: ast.AST) -> Iterator[Sequence[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and not isinstance(node, ast.ClassDef | ast.Module):
                yield [statement for statement in block if isinstance(statement, ast.stmt)]


def _of_block(block: Sequence[ast.stmt], lines: list[str]) -> Iterator[Site]:
    for statement in block:
        if _is_sync(statement):
            yield _without("sync", statement, lines)
        if _is_check(statement):
            yield _without("check", statement, lines)
    for one, two in pairwise(block):
        if _touches_disk(one) and _touches_disk(two):
            first, second = _span(one), _span(two)
            instead = (*lines[second[0] - 1 : second[1] - 1], *lines[first[0] - 1 : first[1] - 1])
            yield Site("order", first[0], second[1], instead, _told(two, lines))


def _is_sync(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.For):
        return bool(_calls(statement.iter) & SYNCS)
    return isinstance(statement, ast.Expr) and bool(_calls(statement) & SYNCS)


def _is_check(statement: ast.stmt) -> bool:
    leaves = ast.Raise | ast.Return | ast.Continue | ast.Break
    return (
        isinstance(statement, ast.If)
        and not statement.orelse
        and len(statement.body) == 1
        and isinstance(statement.body[0], leaves)
    )


def _without(kind: str, statement: ast.stmt, lines: list[str]) -> Site:
    begin, end = _span(statement)
    return Site(kind, begin, end, (f"{' ' * statement.col_offset}pass",), _told(statement, lines))


def _span(statement: ast.stmt) -> tuple[int, int]:
    return statement.lineno, (statement.end_lineno or statement.lineno) + 1


def _told(statement: ast.stmt, lines: list[str]) -> str:
    return lines[statement.lineno - 1].strip()[:70]


def _calls(statement: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            names.add(node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func))
    return names


def _touches_disk(statement: ast.stmt) -> bool:
    """Return whether a plain statement calls the disk, or something that changes it."""
    if not isinstance(statement, ast.Expr | ast.Assign):
        return False
    return any(
        (isinstance(node, ast.Attribute) and node.attr in ("_disk", "disk"))
        or (isinstance(node, ast.Name) and node.id == "disk")
        for node in ast.walk(statement)
    )
