"""The general mutants of a module: what a slip of the hand would leave in any line.

| kind       | what becomes of what                                                              |
| ---------- | --------------------------------------------------------------------------------- |
| comparison | `<` and `<=`, `>` and `>=`, `==` and `!=`, `is` and `is not`, `in` and `not in`   |
| negation   | a condition and its opposite, `and` and `or`, `not x` and `x`, True and False     |
| constant   | a number, one more and one less                                                   |
| arithmetic | `+` and `-`, `*` and `//`, `%` to `*`, the operators of bits                      |
| return     | what is returned and None; where it is a truth, its opposite is a negation        |
| jump       | `continue` and `break`                                                            |
| call       | a statement that is a call, or changes a name in place, removed                   |

Left alone, by principle, is what is for a reader: docstrings, annotations, types and their aliases,
decorators, the text of an error and whatever else stands in a `raise`, `__all__`, `__slots__` and
`__repr__`.  So is a bound that was chosen and not derived, as a module's constant that is a product
or at least 1,000: one more would do as well, and so would the bound itself.  No assignment is
removed: the next line would fail for the name, and not for what it is about.
"""

import ast
from collections.abc import Iterator

from tests.mutants.sites import Site, Text, head_lines

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.Div: "*",
    ast.Mod: "*",
    ast.BitOr: "&",
    ast.BitAnd: "|",
    ast.LShift: ">>",
    ast.RShift: "<<",
}
TYPE_NAMES = frozenset({"TypeVar", "ParamSpec", "NewType", "TypeAlias", "cast"})
FOR_READERS = frozenset({"__all__", "__slots__"})
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
CHOSEN_FROM = 1000
CHOSEN_NAMES = ("LARGEST_", "LONGEST_", "LINES_", "COMPACT_", "SLOW_", "LISTED_", "_REMEMBERED")
KINDS = ("comparison", "negation", "constant", "arithmetic", "return", "jump", "call")


def operators(source: str) -> list[Site]:
    """Return all general mutants of a module, in the order of its lines."""
    tree = ast.parse(source)
    found = {
        (site.begin, site.end, site.instead): site for site in _Finder(Text(source)).of(tree, "", range(0))
    }
    return sorted(found.values(), key=lambda site: (site.begin, site.end, site.instead))


class _Finder:
    """Walks one module."""

    def __init__(self, text: Text) -> None:
        self._text = text

    def of(self, node: ast.AST, where: str, lines: range) -> Iterator[Site]:
        """Yield the mutants in a node, which stands in `where` and is executed with `lines`."""
        if isinstance(node, ast.stmt):
            lines = head_lines(node) if _is_in_function(where) else range(0)
            yield from self._of_statement(node, where, lines)
        if isinstance(node, ast.expr):
            yield from self._of_expression(node, where, lines)
        for child in _children(node):
            inside = where
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and isinstance(child, ast.stmt):
                inside = f"{where}.{node.name}()".lstrip(".")
            if isinstance(node, ast.ClassDef) and isinstance(child, ast.stmt):
                inside = f"{where}.{node.name}".lstrip(".")
            yield from self.of(child, inside, lines)

    def _of_statement(self, node: ast.stmt, where: str, lines: range) -> Iterator[Site]:
        if isinstance(node, ast.If | ast.While):
            yield from self._negated(node.test, where, lines)
        elif isinstance(node, ast.Return) and node.value is not None:
            if _is_truth(node.value):
                yield from self._negated(node.value, where, lines)
            elif not isinstance(node.value, ast.Constant) or not isinstance(node.value.value, bool | None):
                yield self._site("return", node.value, "None", where, lines)
        elif isinstance(node, ast.Continue | ast.Break):
            yield self._site(
                "jump", node, "break" if isinstance(node, ast.Continue) else "continue", where, lines
            )
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield self._site("call", node, "pass", where, lines)
        elif isinstance(node, ast.AugAssign):
            yield self._site("call", node, "pass", where, lines)
            if (sign := ARITHMETIC.get(type(node.op))) is not None:
                told = f"{self._text.of(node.target)} {sign}= {self._text.of(node.value)}"
                yield self._site("arithmetic", node, told, where, lines)

    def _of_expression(self, node: ast.expr, where: str, lines: range) -> Iterator[Site]:
        if isinstance(node, ast.Compare):
            yield from self._of_comparison(node, where, lines)
        elif isinstance(node, ast.BoolOp):
            word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for one, two in zip(node.values, node.values[1:], strict=False):
                yield self._between((one, two), "negation", (word, other), where, lines)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield self._site("negation", node, f"({self._text.of(node.operand)})", where, lines)
        elif isinstance(node, ast.Constant):
            yield from self._of_constant(node, where, lines)
        elif isinstance(node, ast.BinOp) and _is_arithmetic(node):
            signs = (_sign(node.op), ARITHMETIC[type(node.op)])
            yield self._between((node.left, node.right), "arithmetic", signs, where, lines)
        for test in _conditions(node):
            yield from self._negated(test, where, lines)

    def _of_comparison(self, node: ast.Compare, where: str, lines: range) -> Iterator[Site]:
        sides = [node.left, *node.comparators]
        for one, two, operator in zip(sides, sides[1:], node.ops, strict=False):
            if isinstance(operator, _ORDERS) and (_is_bound(one) or _is_bound(two)):
                continue
            signs = (_sign(operator), COMPARISONS[type(operator)])
            yield self._between((one, two), "comparison", signs, where, lines)

    def _of_constant(self, node: ast.Constant, where: str, lines: range) -> Iterator[Site]:
        if isinstance(node.value, bool):
            yield self._site("negation", node, str(not node.value), where, lines)
        elif isinstance(node.value, int):
            for number in (node.value + 1, node.value - 1):
                yield self._site("constant", node, f"({number})" if number < 0 else str(number), where, lines)

    def _negated(self, node: ast.expr, where: str, lines: range) -> Iterator[Site]:
        """Yield the opposite of a condition, unless one of the others is just that."""
        is_opposite = isinstance(node, ast.UnaryOp) or (
            isinstance(node, ast.Compare) and not isinstance(node.ops[0], _ORDERS) and len(node.ops) == 1
        )
        if not is_opposite:
            yield self._site("negation", node, f"(not ({self._text.of(node)}))", where, lines)

    def _site(self, kind: str, node: ast.stmt | ast.expr, instead: str, where: str, lines: range) -> Site:
        begin, end = self._text.span(node)
        told = f"{self._line_of(begin)} ⇒ {_short(instead)} for {_short(self._text.of(node))}"
        return Site(kind, where, told, begin, end, instead, lines)

    def _between(
        self, sides: tuple[ast.expr, ast.expr], kind: str, signs: tuple[str, str], where: str, lines: range
    ) -> Site:
        """Change the operator between two operands, whatever brackets and breaks stand there too."""
        one, two = sides
        begin, end = self._text.span(one)[1], self._text.span(two)[0]
        before = self._text.between(begin, end).partition(signs[0])[0]
        begin += len(before.encode())
        end = begin + len(signs[0])
        told = f"{self._line_of(begin)} ⇒ {signs[1]} for {signs[0]} before {_short(self._text.of(two))}"
        return Site(kind, where, told, begin, end, signs[1], lines)

    def _line_of(self, begin: int) -> str:
        return self._text.line_at(begin)[:90]


def _conditions(node: ast.expr) -> list[ast.expr]:
    """Return what decides in an expression."""
    if isinstance(node, ast.IfExp):
        return [node.test]
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        return [test for generator in node.generators for test in generator.ifs]
    return []


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what stands in a node and is executed."""
    if isinstance(node, ast.Raise) or _is_for_readers(node):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "bases", "decorator_list", "format_spec"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


def _is_for_readers(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name == "__repr__"
    if isinstance(node, ast.Assign):
        names = {target.id for target in node.targets if isinstance(target, ast.Name)}
        is_global = node.col_offset == 0
        return bool(names & FOR_READERS) or (is_global and (_is_type(node.value) or _is_chosen(node)))
    return False


def _is_chosen(node: ast.Assign) -> bool:
    """Return whether a module's constant is a size that somebody chose."""
    value = node.value
    is_product = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult | ast.LShift)
    is_large = isinstance(value, ast.Constant) and isinstance(value.value, int) and value.value >= CHOSEN_FROM
    return is_product or is_large


def _is_type(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).rpartition(".")[2] in TYPE_NAMES
    if isinstance(node, ast.BinOp):
        return _is_type(node.left) and _is_type(node.right)
    return isinstance(node, ast.Subscript) or (isinstance(node, ast.Name) and node.id.istitle())


def _is_bound(node: ast.expr) -> bool:
    """Return whether an expression is, by its name, a size that somebody chose."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.startswith(CHOSEN_NAMES)


def _is_in_function(where: str) -> bool:
    return where.endswith("()")


def _is_truth(node: ast.expr) -> bool:
    return isinstance(node, ast.Compare | ast.BoolOp) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    )


def _is_arithmetic(node: ast.BinOp) -> bool:
    return type(node.op) in ARITHMETIC and not any(map(_is_text, (node.left, node.right)))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _sign(operator: ast.AST) -> str:
    example = (
        ast.Compare(ast.Name("a"), [operator], [ast.Name("b")])
        if isinstance(operator, ast.cmpop)
        else ast.BinOp(ast.Name("a"), operator, ast.Name("b"))  # type: ignore[arg-type]  # only these two
    )
    return ast.unparse(example)[2:-2]


def _short(text: str) -> str:
    return " ".join(text.split())[:50]
