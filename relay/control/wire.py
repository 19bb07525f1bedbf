"""What goes over the socket in a spool's folder where a running relay is asked: `control.sock`, mode 0600.

HTTP over a unix socket: `GET /snapshot`, `GET /breakdown`, `GET /policy`, `GET /queue` (a line of JSON per
message), `GET /queue/ID`, `GET /queue/ID/content`, `POST /queue/VERB` with ids, `POST /listing` and `POST
/summary` with what is wanted, `POST /plan?path=PATH` with the text of a policy, `POST /upstreams/NAME/VERB`.
Values go over the wire as they are in `relay.status`, in nanoseconds; fields may be added with a default, so
that a command line and a relay of different versions understand each other; but a filter that a relay does
not know is an error.

A path to a unix socket has at most 107 bytes (unix(7)), a spool's may be longer: both
ends go through `/proc/self/fd/N/`, where N is the opened folder.

`server` is the relay's end.  `client` is the command line's: it imports no server, so that verbs start fast.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import TypeAdapter

from relay.mail.envelope import QueueId
from relay.status.breakdown import Breakdown
from relay.status.filters import By, Filters, Group, Wanted
from relay.status.snapshot import READ_ONLY, MessageView, Snapshot
from relay.verdicts.operator_pause import PauseAsked

if TYPE_CHECKING:
    from relay.status.estimate.plan import Plan

SOCKET_NAME = "control.sock"

SNAPSHOT = TypeAdapter(Snapshot)
BREAKDOWN = TypeAdapter(Breakdown)
VIEW = TypeAdapter(MessageView)
RESULTS: TypeAdapter[dict[QueueId, str]] = TypeAdapter(dict[QueueId, str])
PAUSE = TypeAdapter(PauseAsked)
WANTED = TypeAdapter(Wanted)
GROUPS = TypeAdapter(list[Group])
_WIRE: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
_ON_THE_WIRE = {"recipient_statuses": "recipients"}
"""A message that was read goes as {"message": what a listing has, …: its other fields}, by these names."""


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    path: Path
    """Of the file that it is of, absolute; by now the file may hold something else."""
    text: str
    """As a policy file would say it, with absolute paths."""


@dataclass(frozen=True, slots=True)
class SummaryWanted:
    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    filters: Filters
    by: By
    limit: int | None = None


@cache
def plans() -> "TypeAdapter[Plan]":
    # Imported only here: with a plan comes the whole sender, and every other verb does without.
    from relay.status.estimate.plan import Plan  # noqa: PLC0415 - see above

    return TypeAdapter(Plan)


POLICY = TypeAdapter(PolicyInForce)
SUMMARY_OF = TypeAdapter(SummaryWanted)


@contextlib.contextmanager
def short_path(spool: Path) -> Iterator[str]:
    """Give a path of bounded length while the context lasts.  Raises OSError."""
    folder = os.open(spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET_NAME}"
    finally:
        os.close(folder)


def to_wire(view: MessageView) -> bytes:
    listed = VIEW.dump_python(view, mode="json")
    read = {_ON_THE_WIRE.get(field, field): listed.pop(field) for field in READ_ONLY}
    return _WIRE.dump_json({"message": listed, **read})


def from_wire(content: bytes) -> MessageView:
    """Return a message that was read.  Raises ValidationError."""
    wire = _WIRE.validate_json(content)
    names = {field: _ON_THE_WIRE.get(field, field) for field in READ_ONLY}
    read = {field: wire[name] for field, name in names.items() if name in wire}
    return VIEW.validate_python({**_WIRE.validate_python(wire.get("message")), **read})
