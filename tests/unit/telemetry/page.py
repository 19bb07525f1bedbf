"""Writes the tables of docs/events-and-metrics.md that are made from the code: `make docs`."""

import re
from pathlib import Path

from relay.telemetry.event_table import KINDS, Kind
from relay.telemetry.metric_table import METRICS

PAGE = Path(__file__).parents[3] / "docs" / "events-and-metrics.md"


def _named(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def fields_of(kind: Kind) -> set[str]:
    return {field for field, _ in kind.shown if field[0] != "_"} | {*kind.only_json}


def _line(kind: Kind) -> str:
    """Return a template with what may be left out in brackets."""
    shown = [
        f"[{around.replace('%', f'{{{name}}}')}]" if around else f"{{{name.lstrip('_')}}}"
        for name, around in kind.shown
    ]
    return kind.pattern % tuple(shown)


def _events() -> str:
    rows = [
        f"| `{kind.name}` | {kind.level.name.lower()} | `{_line(kind)}` | {_named(kind.only_json)} |\n"
        for kind in KINDS.values()
    ]
    return "| event | level | as text | only in JSON |\n| --- | --- | --- | --- |\n" + "".join(rows)


def _metrics() -> str:
    rows = [
        f"| `{m.name}` | {m.type} | {_named(tuple(m.labels))} | {m.meaning} |\n" for m in METRICS.values()
    ]
    return "| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n" + "".join(rows)


def made(page: str) -> str:
    """Return the page with its tables of events and of metrics made anew."""
    for first, table in (("event", _events()), ("metric", _metrics())):
        page = re.sub(rf"(?m)^\| {first} \|.*\n(?:\|.*\n)+", lambda _, table=table: table, page)  # type: ignore[misc]  # a default binds it
    return page


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text()))
