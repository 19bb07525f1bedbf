"""Replies that real servers gave, with their sources, and what each has to mean."""

import functools
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, BeforeValidator, Field

from relay.policy.units import Duration
from relay.smtp.reply import Phase, Reply, ReplyParser

FOLDER = Path(__file__).parent


def parsed(line: str) -> Reply:
    parser = ReplyParser()
    parser.feed(line.encode() + b"\r\n")
    reply = parser.next_reply()
    assert reply is not None
    return reply


class Case(BaseModel, frozen=True, extra="forbid"):
    place: str
    phase: Phase
    reply: Annotated[Reply, BeforeValidator(parsed)]
    source: str
    verdicts: Annotated[
        frozenset[str], BeforeValidator(lambda its: [its] if isinstance(its, str) else its)
    ] = Field(alias="verdict")
    """Any of these verdicts is right.  They are written as in a rule."""
    host: str = ""
    """The upstream's host.  If it is empty (unknown), only the general rules count."""
    sender: str = ""
    is_generic: bool = Field(default=True, alias="generic")
    """Whether the general rules alone must give one of these verdicts too."""
    wait_ns: Duration | None = Field(default=None, alias="wait")
    retry_after_ns: Duration | None = Field(default=None, alias="retry_after")
    window_ns: Duration | None = Field(default=None, alias="span")
    probe: bool = True
    known: bool | None = None
    """Whether a rule must match, or must not, so that the shield doubts it; None if either is right."""


@functools.cache
def cases(name: str) -> list[Case]:
    """Return the refusals of one file: `own` or `theirs`."""
    # The C loader, because the files are long and each test process reads them.
    entries = yaml.load((FOLDER / f"{name}.yaml").read_text("utf-8"), Loader=yaml.CSafeLoader)["replies"]
    return [Case(place=f"{name}[{index}]", **entry) for index, entry in enumerate(entries)]
