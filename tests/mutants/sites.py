"""The places in a module at which something that keeps a promise can be left out.

- a *sync*: a statement whose call makes something durable, or writes in place what a sync is to
  make durable, removed; where its result is used, no sync and no error instead;
- an *order*: two statements that both change the disk, with none between them that does: one of
  them moved over the other (`←` ahead, `→` behind);
- a *check*: an `if` whose body ends in raising, leaving, or going on with the next, removed; where
  it has an `else`, that is what is left of it.

To who calls the spool, a call that its interface says is durable is one that changes the disk.

No order is counted where the second statement needs a name that the first one binds (that is no
order somebody could choose otherwise), and where neither changes more than what processes see of
an open file (closing, reading).
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

SYNCS = frozenset(
    {"sync", "sync_content", "_sync_content", "sync_directory", "sync_each", "sync_all"}
    | {"fsync", "fdatasync", "_sync_new", "_sync_what_others_wrote", "_make_folder", "write_marks_again"}
    | {"_write", "_mark_what_was_reported"}
)
CHANGES = SYNCS | frozenset(
    {"write_all", "write_at", "truncate", "link", "rename", "unlink", "make_directory", "make_fifo", "mkdir"}
    | {"open_new", "put_in_place", "set_aside", "move", "prepare", "accept"}
    | {"append", "rewrite", "enter", "leave", "put_aside", "go_on", "_append", "_rewrite", "_add_group"}
    | {"_publish", "discard", "write_marks", "write_warned", "_remove_ended", "_remove_orphaned_notes"}
    | {"remove_abandoned_drafts", "clear_the_way", "forget_removals", "keep", "spend", "_fill", "_carry_out"}
    | {"_shorten_ledger", "_clear_notes", "make_trigger", "move_unusable", "_look_at"}
    | {"_note_end", "_leave_a_lock", "_leave_a_folder"}
)
"""Methods of the disk, and those of the spool and the history that change it, by name."""
OF_THE_SPOOL = frozenset(
    {"note", "mark", "mark_reported", "mark_warned", "publish_report", "finish", "commit"}
)
"""Methods of relay.spool.interface.Spool that change it or make that durable: called on a `spool`."""
WRITES_IN_PLACE = frozenset({"write_at"})
OF_LISTS = frozenset({"append", "move", "discard", "keep"})
"""Names of those that also plain collections have."""
LEAVES = ast.Raise | ast.Return | ast.Continue | ast.Break


@dataclass(frozen=True, slots=True)
class Site:
    """One mutant: a span of a module's bytes, and what takes its place."""

    kind: str
    where: str
    """The function or class, with dots; empty for the module itself."""
    told: str
    """What is changed, as a person reads it; with `where` and `kind` it names the site."""
    begin: int
    end: int
    instead: str
    lines: range
    """Only a test that executes one of these lines can notice; empty for what an import executes."""


def sites(source: str) -> list[Site]:
    """Return all mutants of a module that leave something out, in the order of its lines."""
    text = Text(source)
    found = [
        site for where, block in blocks(ast.parse(source)) if where for site in _of_block(text, where, block)
    ]
    return sorted(found, key=lambda site: (site.begin, site.kind))


def mutated(source: str, site: Site) -> str:
    """Return the module with one thing changed."""
    raw = source.encode()
    return (raw[: site.begin] + site.instead.encode() + raw[site.end :]).decode()


class Text:
    """A module's source, by the positions that its syntax tree gives."""

    def __init__(self, source: str) -> None:
        self._raw = source.encode()
        self._starts = [0]
        for line in self._raw.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        """Return where a node begins and ends, in bytes."""
        last, column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[last - 1] + column

    def between(self, begin: int, end: int) -> str:
        """Return a part of the source."""
        return self._raw[begin:end].decode()

    def line_at(self, begin: int) -> str:
        """Return the line that a byte stands in."""
        start = max(start for start in self._starts if start <= begin)
        return self._raw[start:].splitlines()[0].decode().strip()

    def of(self, node: ast.stmt | ast.expr) -> str:
        """Return the source of a node."""
        return self.between(*self.span(node))


def blocks(tree: ast.AST, where: str = "") -> Iterator[tuple[str, Sequence[ast.stmt]]]:
    """Yield each list of statements with the dotted name of what it stands in."""
    for child in ast.iter_child_nodes(tree):
        inside = where
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{where}.{child.name}".lstrip(".")
        yield from blocks(child, inside)
    if isinstance(tree, ast.ClassDef | ast.Module):
        return
    for name in ("body", "orelse", "finalbody"):
        block = getattr(tree, name, None)
        if isinstance(block, list):
            yield where, [statement for statement in block if isinstance(statement, ast.stmt)]


def head_lines(statement: ast.stmt) -> range:
    """Return the lines of a statement, without those of the statements in it."""
    inner = [each.lineno for each in ast.iter_child_nodes(statement) if isinstance(each, ast.stmt)]
    end = min(inner) if inner else (statement.end_lineno or statement.lineno) + 1
    return range(statement.lineno, max(end, statement.lineno + 1))


def _of_block(text: Text, where: str, block: Sequence[ast.stmt]) -> Iterator[Site]:
    for statement in block:
        if _is_sync(statement):
            yield _without(text, "sync", where, statement)
        if isinstance(statement, ast.Assign | ast.Return) and isinstance(statement.value, ast.Call):
            yield from _unsynced(text, where, statement, statement.value)
        if isinstance(statement, ast.If) and isinstance(statement.body[-1], LEAVES):
            yield _unchecked(text, where, statement)
    changing = [number for number, statement in enumerate(block) if _changes_disk(statement)]
    for one, two in pairwise(changing):
        yield from _exchanged(text, where, block[one : two + 1])


def _without(text: Text, kind: str, where: str, statement: ast.stmt) -> Site:
    begin, end = text.span(statement)
    return Site(kind, where, _told(text, statement), begin, end, "pass", head_lines(statement))


def _unsynced(text: Text, where: str, statement: ast.stmt, call: ast.Call) -> Iterator[Site]:
    if _name(call) in SYNCS:
        begin, end = text.span(call)
        # Who syncs several says for each what came of it.
        of_several = any(keyword.arg == "content_only" for keyword in call.keywords)
        instead = f"[None] * len({text.of(call.args[0])})" if of_several else "None"
        yield Site("sync", where, _told(text, statement), begin, end, instead, head_lines(statement))


def _unchecked(text: Text, where: str, statement: ast.If) -> Site:
    if not statement.orelse:
        return _without(text, "check", where, statement)
    begin, end = text.span(statement.test)
    return Site("check", where, _told(text, statement), begin, end, "False", head_lines(statement))


def _exchanged(text: Text, where: str, some: Sequence[ast.stmt]) -> Iterator[Site]:
    """Yield the first and the last of some statements in the other order, as far as it could be chosen.

    Where others stand between them, either one may be what moves.
    """
    one, *between, two = some
    if _binds(one) & _names(two):
        return
    (begin, middle), (after, end) = text.span(one), text.span(two)
    first = text.span(between[0])[0] if between else after
    ahead = text.of(two) + text.between(middle, first) + text.between(begin, text.span(some[-2])[1])
    behind = text.between(first, end) + text.between(middle, first) + text.of(one)
    if not any(_binds(each) & _names(two) for each in between):
        yield Site(
            "order", where, f"{_told(text, two)} ← {_told(text, one)}", begin, end, ahead, head_lines(one)
        )
    if between and not any(_binds(one) & _names(each) for each in between):
        told = f"{_told(text, one)} → {_told(text, two)}"
        yield Site("order", where, told, begin, end, behind, head_lines(one))


def _told(text: Text, statement: ast.stmt) -> str:
    shown = statement.body[0] if isinstance(statement, ast.Try) else statement
    return text.of(shown).splitlines()[0].strip()[:90]


def _is_sync(statement: ast.stmt) -> bool:
    durable = SYNCS | OF_THE_SPOOL
    if isinstance(statement, ast.For):
        return bool(_calls(statement.iter) & durable)
    return isinstance(statement, ast.Expr) and bool(_calls(statement) & (durable | WRITES_IN_PLACE))


def _changes_disk(statement: ast.stmt) -> bool:
    """Return whether a statement that can be moved as it is changes what is on the disk."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Return):
        return False
    return not _leaves(statement) and bool(_calls(statement) & (CHANGES | OF_THE_SPOOL))


def _leaves(statement: ast.AST, *, in_loop: bool = False) -> bool:
    """Return whether a statement leaves what it stands in; what leaves a loop within it stays in it."""
    if isinstance(statement, ast.Return) or (isinstance(statement, ast.Continue | ast.Break) and not in_loop):
        return True
    in_loop = in_loop or isinstance(statement, ast.For | ast.While)
    return any(_leaves(child, in_loop=in_loop) for child in ast.iter_child_nodes(statement))


def _binds(node: ast.AST) -> set[str]:
    """Return the names that a statement binds for those behind it: not those of a comprehension."""
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Store) else set()
    inner = [node.iter, *node.ifs] if isinstance(node, ast.comprehension) else ast.iter_child_nodes(node)
    return {name for child in inner for name in _binds(child)}


def _names(node: ast.AST) -> set[str]:
    """Return the names that a statement needs or binds: not those of a comprehension."""
    if isinstance(node, ast.Name):
        return {node.id}
    names = {name for child in ast.iter_child_nodes(node) for name in _names(child)}
    return names - {name for each in getattr(node, "generators", ()) for name in _names(each.target)}


def _calls(statement: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            name = _name(node)
            if name in OF_THE_SPOOL and not ast.unparse(node.func).endswith(f"spool.{name}"):
                continue
            if name not in OF_LISTS or _is_on_disk(node):
                names.add(name)
    return names


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)


def _is_on_disk(call: ast.Call) -> bool:
    """Return whether a call by a name that lists have too is one of ours: its arguments tell."""
    text = ast.unparse(call)
    ours = ("aside.", "self._aside.", "notes.", "self._reserve.", "self._history.")
    return "disk" in text or text.startswith((*ours, "self.append", "self.discard"))
