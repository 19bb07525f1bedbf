"""What an operator may ask for: of a running relay, or of its spool while it is down.

`TABLE` is the one list of verbs, for every room.  Pure.
"""

import enum
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from relay.mail.envelope import QueueId
from relay.queue.queued import Queued, State
from relay.status.filters import WHOLE_QUEUE, By, Filters, GroupRow, Wanted
from relay.status.snapshot import MessageView, QueueState, Snapshot

if TYPE_CHECKING:
    # With a plan comes the whole sender, which takes 0.5 s to load: no verb but `relay plan` needs it.
    from relay.status.plan import Plan
    from relay.verdicts.operator_pause import PauseAsked

OK = "ok"
UNCHANGED = "unchanged"
"""It is as the verb wants it already."""
ABSENT = "absent"
"""There is no such message, or no such upstream."""
UNREAD = "not known yet: the relay still reads its queue after the start; try again later"
"""While a start goes on, of an id that is not in the queue so far."""
BUSY = "busy"
"""The message is in a transaction; try again later."""
HELD_ALREADY = "held: release it first"
CHANGED = "it is in another state by now; nothing changed"
"""Of a message that was listed by its state."""
IS_DOWN = "the relay is down: what goes first is kept in memory, and can be said only while it runs"
FAULT = "a fault of the relay; see its log"
UNANSWERED = "not known: the relay gave no answer about it; see its log, and call this again"
ONLY_REPORT_LEFT = "only its report is left, which waits for reports.per_hour: `delete` ends it without"

Results = Mapping[QueueId, str]
"""For each id: OK, UNCHANGED, ABSENT, BUSY, UNREAD, or the text of what went wrong."""

Verb = Literal["hold", "release", "retry", "first", "bounce", "delete", "pause", "resume", "believe"]


class Deed(enum.Enum):
    NOTHING = "nothing"
    """It is as the verb wants it."""
    HOLD = "hold"
    RELEASE = "release"
    RETRY = "retry"
    FIRST = "first"
    """As RETRY, and ahead of everything else in its account."""
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
    """Of each state; a text is why nothing is done.  Empty: it acts on no message."""
    already: str = ""
    """What is said of UNCHANGED."""
    done_but_waits: str = ""
    """What is said instead of `done` where the upstream holds the message; empty: `done` ends its wait."""
    needs_upstream: bool = False
    """It names an upstream, and acts on no message but those whose refusals its shield doubts."""

    @property
    def reads_content(self) -> bool:
        return any(isinstance(deed, Deed) and deed.reads_content for deed in self.deeds.values())

    @property
    def changes(self) -> tuple[QueueState, ...]:
        """The states in which it does something to a message."""
        deeds = self.deeds.items()
        return tuple(
            QueueState(state.value)
            for state, deed in deeds
            if isinstance(deed, Deed) and deed is not Deed.NOTHING
        )

    def deed_of(self, message: "Queued | MessageView") -> Deed | str:
        """Raise ValueError for a state that is of no queued message."""
        return self.deeds[State(message.state.value)]


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
        "held",
        "Set messages aside until they are released.",
        _deeds(Deed.HOLD, held=Deed.NOTHING),
        "was held already",
    ),
    "release": VerbRow(
        "released",
        "Let held messages go on.",
        _deeds(Deed.NOTHING, held=Deed.RELEASE),
        "was not held; nothing changed",
        "released",
    ),
    "retry": VerbRow(
        "to be tried at once",
        "Let deferred messages go now; limits still hold.",
        # One that waits has no back-off, and would lose its turn.
        {**_deeds(Deed.RETRY, held=HELD_ALREADY), State.WAITING: Deed.NOTHING},
        "has no back-off; nothing changed",
        "its back-off is over",
    ),
    "first": VerbRow(
        "goes next in its account",
        "Let messages go before all others of their account, while this relay runs; limits still hold.",
        _deeds(Deed.FIRST, held=HELD_ALREADY),
        done_but_waits="goes next in its account",
    ),
    "bounce": VerbRow(
        "bounced",
        "End messages and report their remaining recipients to the sender.",
        _deeds(Deed.BOUNCE),
    ),
    "delete": VerbRow(
        "deleted", "End messages and tell nobody.", _deeds(Deed.DELETE, reporting=Deed.END_REPORT)
    ),
    "pause": VerbRow(
        "paused",
        "Send nothing more through an upstream until a time, or `relay resume`.",
        {},
        needs_upstream=True,
    ),
    "resume": VerbRow(
        "used again, one message first",
        "Use an upstream that rests again, and try again what its shield doubts.",
        _deeds(Deed.RETRY, held=Deed.NOTHING, reporting=Deed.NOTHING),
        "neither paused nor stopped; nothing changed",
        "used again, one message first",
        needs_upstream=True,
    ),
    "believe": VerbRow(
        "used again, one message first",
        "Use an upstream that rests again, and bounce what its shield doubts.",
        _deeds(Deed.BELIEVE, reporting=Deed.NOTHING),
        "neither paused nor stopped, and its shield doubts nothing; nothing changed",
        "used again, one message first",
        needs_upstream=True,
    ),
}
VERBS = tuple(verb for verb, row in TABLE.items() if not row.needs_upstream)
"""Those that name messages."""


CALLS = ("snapshot", "rows", "summary", "plan", "show", "content", "act", "pause", "resume", "policy")
"""What can be asked of a relay that runs: the methods of `Session`, and the policy in force."""

Write = Callable[[bytes], Awaitable[None]]
Found = AsyncGenerator[Sequence[MessageView], None]


class Unreachable(Exception):  # noqa: N818 - a state, not an error of ours
    """The relay did not answer, or not properly; the text says how."""


class Session(Protocol):
    """What can be asked.  Ids passed QUEUE_ID_PATTERN; every result names every id."""

    async def snapshot(self) -> Snapshot: ...

    def rows(self, wanted: Wanted = WHOLE_QUEUE) -> Found:
        """Yield the queue, or part of it, as it is found; of each message's recipients only the first ones.

        Oldest first.  The queue changes meanwhile: what is there from the beginning to the end is listed
        once, what comes or goes once or not at all.
        """
        ...

    async def queue(self, wanted: Wanted = WHOLE_QUEUE) -> Sequence[MessageView]:
        """Return all that `rows` yields."""
        return [view async for some in self.rows(wanted) for view in some]

    async def summary(self, filters: Filters, by: By, limit: int | None = None) -> Sequence[GroupRow]:
        """Return the row of all, then those with most messages, `limit` of them."""
        ...

    async def plan(self, text: bytes, path: Path) -> "Plan | str":
        """Return what the text of a policy's file would do, or why nobody can tell; changes nothing.

        Raises PolicyError where it is no policy.
        """
        ...

    async def show(self, queue_id: QueueId) -> MessageView | str:
        """Return one message with all its recipients, or ABSENT, or what went wrong."""
        ...

    async def content(self, queue_id: QueueId, write: Write) -> str:
        """Write the content as it is stored; OK, ABSENT, or what went wrong, also behind its first bytes."""
        ...

    async def act(
        self, verb: Verb, queue_ids: Sequence[QueueId], states: Collection[QueueState] = ()
    ) -> Results:
        """With `states`, leave alone and tell of what is in none of them by now.

        What goes wrong with one message is its result; the others go on.
        """
        ...

    async def pause(self, upstream: str, asked: "PauseAsked") -> str:
        """Begin no transaction; OK once that is durable, ABSENT, or what is in the way."""
        ...

    async def resume(self, upstream: str, *, believes: bool = False) -> str:
        """Send one transaction first; OK, UNCHANGED, ABSENT, or what is in the way.

        `believes`: the row `believe`.
        """
        ...

    async def close(self) -> None: ...
