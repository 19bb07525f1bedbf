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
    """One refusal."""

    place: str
    phase: Phase
    reply: Reply
    source: str
    verdicts: frozenset[str]
    """Any of these is right, in the words of a rule."""
    host: str = ""
    """Empty where nobody says; then only the general rules count."""
    sender: str = ""
    is_generic: bool = True
    """It must be judged so without the provider's rules as well."""
    wait_ns: int | None = None
    retry_after_ns: int | None = None
    window_ns: int | None = None
    probe: bool = True
    known: bool | None = None
    """Whether a rule has to know it, or must not: else the shield doubts it."""


READ: dict[str, tuple[str, Callable[[Any], object]]] = {
    "phase": ("phase", Phase),
    "verdict": ("verdicts", lambda its: frozenset([its] if isinstance(its, str) else its)),
    "generic": ("is_generic", lambda its: its == "same"),
    "wait": ("wait_ns", duration_ns),
    "retry_after": ("retry_after_ns", duration_ns),
    "span": ("window_ns", WINDOW_NS.__getitem__),
}
"""By key of an entry: the field, and what it has; other keys are as they are written."""


def parsed(line: str) -> Reply:
    """Return a reply as it comes off the wire."""
    parser = ReplyParser()
    parser.feed(line.encode() + b"\r\n")
    reply = parser.next_reply()
    assert reply is not None
    return reply


@functools.cache
def cases(name: str) -> list[Case]:
    """Return the refusals of one file: `own` or `theirs`."""
    # In C: the files are long, and read by each process that runs tests.
    entries = yaml.load((FOLDER / f"{name}.yaml").read_text("utf-8"), Loader=yaml.CSafeLoader)["replies"]
    found = []
    for index, entry in enumerate(entries):
        reply = parsed(entry.pop("reply"))
        told = {key: READ.get(key, (key, lambda its: its)) for key in entry}
        others: dict[str, Any] = {field: read(entry[key]) for key, (field, read) in told.items()}
        found.append(Case(f"{name}[{index}]", reply=reply, **others))
    return found
