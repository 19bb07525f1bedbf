"""Generates the tables of docs/events-and-metrics.md from the code; `make docs` runs it."""

import re
from collections.abc import Iterable
from pathlib import Path
from string import Formatter

from relay.telemetry.events import KINDS, Kind
from relay.telemetry.metrics import METRICS

PAGE = Path(__file__).parents[3] / "docs" / "events-and-metrics.md"


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def shown_fields(kind: Kind) -> list[str]:
    return [field for _, field, _, _ in Formatter().parse(kind.template) if field]


def fields_of(kind: Kind) -> set[str]:
    return {field for field in shown_fields(kind) if field[0] != "_"} | {*kind.only_json.split()}


def _line(kind: Kind) -> str:
    """Return the template of an event; optional text stands in brackets."""
    shown = ""
    for literal, name, around, _ in Formatter().parse(kind.template):
        field = f"{{{(name or '').lstrip('_')}}}" if name else ""
        shown += literal + (f"[{around.replace('%', field)}]" if around else field)
    return shown


def _events() -> str:
    rows = [
        f"| `{its.name}` | {its.level.name.lower()} | `{_line(its)}` | {_named(its.only_json.split())} |\n"
        for its in KINDS.values()
    ]
    return "| event | level | as text | only in JSON |\n| --- | --- | --- | --- |\n" + "".join(rows)


def _metrics() -> str:
    rows = [f"| `{m.name}` | {m.type} | {_named(m.labels)} | {m.meaning} |\n" for m in METRICS.values()]
    return "| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n" + "".join(rows)


def made(page: str) -> str:
    """Return the page with its tables of events and of metrics made again."""
    for first, table in (("event", _events()), ("metric", _metrics())):
        page = re.sub(rf"(?m)^\| {first} \|.*\n(?:\|.*\n)+", lambda _, table=table: table, page)  # type: ignore[misc]  # a default binds it
    return page


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text()))
