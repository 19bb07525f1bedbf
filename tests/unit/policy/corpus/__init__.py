"""Replies that real servers gave, with their sources, and what each has to mean."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
    host: str
    """Empty where nobody says; then only the general rules count."""
    sender: str
    verdicts: frozenset[str]
    """Any of these is right, in the words of a rule."""
    generic: bool
    """It must be judged so without the provider's rules as well."""
    wait_ns: int | None
    retry_after_ns: int | None
    window_ns: int | None
    probe: bool
    known: bool | None
    """Whether a rule has to know it, or must not: else the shield doubts it."""
    source: str


def parsed(line: str) -> Reply:
    """Return a reply as it comes off the wire."""
    parser = ReplyParser()
    parser.feed(line.encode() + b"\r\n")
    reply = parser.next_reply()
    assert reply is not None
    return reply


def cases(name: str) -> list[Case]:
    """Return the refusals of one file: `own` or `theirs`."""
    return list(_cases(name))


def _cases(name: str) -> Iterator[Case]:
    entries = yaml.safe_load((FOLDER / f"{name}.yaml").read_text("utf-8"))["replies"]
    for index, entry in enumerate(entries):
        verdict = entry.pop("verdict")
        wait, retry_after, span = (entry.pop(key, None) for key in ("wait", "retry_after", "span"))
        yield Case(
            f"{name}[{index}]",
            Phase(entry.pop("phase")),
            parsed(entry.pop("reply")),
            entry.pop("host", ""),
            entry.pop("sender", ""),
            frozenset([verdict] if isinstance(verdict, str) else verdict),
            entry.pop("generic", "same") == "same",
            duration_ns(wait) if wait else None,
            duration_ns(retry_after) if retry_after else None,
            WINDOW_NS[span] if span else None,
            entry.pop("probe", True),
            entry.pop("known", None),
            entry.pop("source"),
        )
        assert not entry, f"{name}[{index}]: unknown keys {entry}"
