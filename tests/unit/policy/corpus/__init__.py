"""Replies that real servers gave, with their sources, and what each has to mean."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from relay.policy.units import duration_ns
from relay.smtp.reply import Phase, Reply, ReplyParser

FOLDER = Path(__file__).parent
WINDOW_NS = {
    name: duration_ns(text)
    for name, text in (("second", "1s"), ("minute", "1m"), ("hour", "1h"), ("day", "1d"), ("month", "31d"))
}


@dataclass(frozen=True)
class Case:
    place: str
    phase: Phase
    reply: Reply
    source: str
    verdicts: frozenset[str]
    """Any of these verdicts is right.  They are written as in a rule."""
    host: str = ""
    """The upstream's host.  If it is empty (unknown), only the general rules count."""
    sender: str = ""
    is_generic: bool = True
    """Whether the general rules alone must give one of these verdicts too."""
    wait_ns: int | None = None
    retry_after_ns: int | None = None
    window_ns: int | None = None
    probe: bool = True
    known: bool | None = None
    """Whether a rule must match, or must not, so that the shield doubts it; None if either is right."""


READ: dict[str, tuple[str, Callable[[Any], object]]] = {
    "phase": ("phase", Phase),
    "verdict": ("verdicts", lambda its: frozenset([its] if isinstance(its, str) else its)),
    "generic": ("is_generic", lambda its: its == "same"),
    "wait": ("wait_ns", duration_ns),
    "retry_after": ("retry_after_ns", duration_ns),
    "span": ("window_ns", WINDOW_NS.__getitem__),
}
"""For a key of an entry: the field of Case and its parser.  Other keys are taken as written."""


def parsed(line: str) -> Reply:
    parser = ReplyParser()
    parser.feed(line.encode() + b"\r\n")
    reply = parser.next_reply()
    assert reply is not None
    return reply


@functools.cache
def cases(name: str) -> list[Case]:
    """Return the refusals of one file: `own` or `theirs`."""
    # The C loader, because the files are long and each test process reads them.
    entries = yaml.load((FOLDER / f"{name}.yaml").read_text("utf-8"), Loader=yaml.CSafeLoader)["replies"]
    found = []
    for index, entry in enumerate(entries):
        reply = parsed(entry.pop("reply"))
        told = {key: READ.get(key, (key, lambda its: its)) for key in entry}
        others: dict[str, Any] = {field: read(entry[key]) for key, (field, read) in told.items()}
        found.append(Case(f"{name}[{index}]", reply=reply, **others))
    return found
