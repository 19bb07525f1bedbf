"""What an operator may ask for: of a running relay, or of its spool while it is down.

`TABLE` is the one list of verbs, for every room.  Pure.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from relay.mail.envelope import QueueId
from relay.queue.scheduler import State
from relay.status.snapshot import MessageView, Snapshot

OK = "ok"
ABSENT = "absent"
"""There is no such message, or no such upstream."""
BUSY = "busy"
"""The message is in a transaction; try again later."""
HELD_ALREADY = "held: release it first"
ONLY_REPORT_LEFT = "only its report is left, which waits for reports.per_hour: `delete` ends it without"

Results = Mapping[QueueId, str]
"""For each id: OK, ABSENT, BUSY, or the text of what went wrong."""

Verb = Literal["hold", "release", "retry", "bounce", "delete", "resume", "believe"]


class Deed(enum.Enum):
    NOTHING = "nothing"
    """It is as the verb wants it."""
    HOLD = "hold"
    RELEASE = "release"
    RETRY = "retry"
    BOUNCE = "bounce"
    BELIEVE = "believe"
    """Bounce the recipients whose refusals the shield doubts; the others go on."""
    DELETE = "delete"
    END_REPORT = "end without the report"

    @property
    def reads_content(self) -> bool:
        return self in (Deed.BOUNCE, Deed.BELIEVE, Deed.DELETE, Deed.END_REPORT)


@dataclass(frozen=True, slots=True)
class VerbRow:
    done: str
    summary: str
    deeds: Mapping[State, Deed | str]
    """Of each state; a text is why nothing is done."""
    needs_upstream: bool = False
    """It names an upstream, and acts on the messages whose refusals its shield doubts."""

    @property
    def reads_content(self) -> bool:
        return any(isinstance(deed, Deed) and deed.reads_content for deed in self.deeds.values())


def _deeds(
    otherwise: Deed, *, held: Deed | str | None = None, reporting: Deed | str = ONLY_REPORT_LEFT
) -> Mapping[State, Deed | str]:
    return {
        State.WAITING: otherwise,
        State.DEFERRED: otherwise,
        State.HELD: held or otherwise,
        State.REPORTING: reporting,
        State.ACTIVE: BUSY,
    }


TABLE: Mapping[Verb, VerbRow] = {
    "hold": VerbRow(
        "held", "Set messages aside until they are released.", _deeds(Deed.HOLD, held=Deed.NOTHING)
    ),
    "release": VerbRow("released", "Let held messages go on.", _deeds(Deed.NOTHING, held=Deed.RELEASE)),
    "retry": VerbRow(
        "to be tried at once",
        "Let deferred messages go now; limits still hold.",
        _deeds(Deed.RETRY, held=HELD_ALREADY),
    ),
    "bounce": VerbRow(
        "bounced",
        "End messages and report their remaining recipients to the sender.",
        _deeds(Deed.BOUNCE),
    ),
    "delete": VerbRow(
        "deleted", "End messages and tell nobody.", _deeds(Deed.DELETE, reporting=Deed.END_REPORT)
    ),
    "resume": VerbRow(
        "used again, one message first",
        "Use an upstream that rests again, and try again what its shield doubts.",
        _deeds(Deed.RETRY, held=Deed.NOTHING, reporting=Deed.NOTHING),
        needs_upstream=True,
    ),
    "believe": VerbRow(
        "used again, one message first",
        "Use an upstream that rests again, and bounce what its shield doubts.",
        _deeds(Deed.BELIEVE, reporting=Deed.NOTHING),
        needs_upstream=True,
    ),
}
VERBS = tuple(verb for verb, row in TABLE.items() if not row.needs_upstream)
"""Those that name messages."""


class Unreachable(Exception):  # noqa: N818 - a state, not an error of ours
    """The relay did not answer, or not properly; the text says how."""


class Operations(Protocol):
    """What can be asked.  Ids passed QUEUE_ID_PATTERN; every result names every id."""

    async def snapshot(self) -> Snapshot: ...

    async def queue(self) -> Sequence[MessageView]:
        """Return the queue, oldest first; of each message's recipients only the first ones."""
        ...

    async def show(self, queue_id: QueueId) -> MessageView | str:
        """Return one message with all its recipients, or ABSENT, or what went wrong."""
        ...

    async def act(self, verb: Verb, queue_ids: Sequence[QueueId]) -> Results: ...

    async def resume(self, upstream: str, *, believes: bool = False) -> str:
        """Send one transaction first; OK, ABSENT, or what is in the way.  `believes`: the row `believe`."""
        ...


class Session(Operations, Protocol):
    async def close(self) -> None: ...
