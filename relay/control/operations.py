"""The operator's verbs and questions, to a running relay or to the spool of one that is down.

`TABLE` is the only list of verbs.  Commands use a `Session`: that of `relay.control.client` asks a running
relay, that of `relay.control.offline` works on the spool of a relay that is down.  In both cases
`relay.control.operator.Operator` carries out the request.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from relay.mail.envelope import QueueId
from relay.queue.queued import State
from relay.status.filters import EVERYTHING, By, Filters, GroupRow, arranged
from relay.status.snapshot import MessageView, QueueState, Snapshot
from relay.verdicts.account import PauseAsked

if TYPE_CHECKING:
    from relay.status.plan import Plan

OK = "ok"
UNCHANGED = "unchanged"
"""The message or the upstream is already in the state that the verb asks for."""
ABSENT, BUSY, UNREAD, UNANSWERED = "absent", "busy", "unread", "unanswered"
"""A message may answer UNREAD while a start still reads the queue."""
NO_UPSTREAM = "there is no such upstream"
HELD_ALREADY = "held: release it first"
CHANGED = "its state has changed since it was listed; nothing was done"
"""For a message that was listed by its state."""
FAULT = "a fault of the relay; see its log"
ONLY_REPORT_LEFT = "only its report is left (reports.per_hour); `delete` ends it without the report"

Results = Mapping[QueueId, str]
"""For each id: OK, UNCHANGED, a key of WORDS, or the text of what went wrong."""
WORDS: Mapping[str, str] = {
    ABSENT: "there is no such message in the queue; for a corrupt one see docs/operating.md",
    BUSY: "it is in a transaction, try again later",
    UNREAD: "the relay is still reading its queue after the start; try again later",
    UNANSWERED: "result unknown: the relay stopped answering; see its log, then repeat the command",
}
"""What people read for results that decide an exit code, or what is asked next."""

MessageVerb = Literal["hold", "release", "retry", "bounce", "delete"]
VERBS: tuple[MessageVerb, ...] = get_args(MessageVerb)
Verb = Literal[MessageVerb, "pause", "resume"]
"""The last two are verbs on an upstream."""


@dataclass(frozen=True, slots=True)
class VerbRow:
    done: str
    unless: Mapping[State, str] = field(default_factory=dict)
    """The states in which nothing is done, with the result of each.  No verb acts on an ACTIVE message."""
    summary: str = ""
    """Empty for a verb on an upstream."""
    already: str = ""
    """The text for UNCHANGED."""

    @property
    def changes(self) -> tuple[QueueState, ...]:
        """The states in which the verb changes a message."""
        return tuple(QueueState(each) for each in State if each not in (State.ACTIVE, *self.unless))


TABLE: Mapping[Verb, VerbRow] = {
    "hold": VerbRow(
        "held",
        {State.HELD: UNCHANGED, State.REPORTING: ONLY_REPORT_LEFT},
        "Set messages aside until they are released.",
        "was held already",
    ),
    "release": VerbRow(
        "released",
        {State.WAITING: UNCHANGED, State.DEFERRED: UNCHANGED, State.REPORTING: ONLY_REPORT_LEFT},
        "Let held messages go now; limits still hold.",
        "was not held; nothing changed",
    ),
    "retry": VerbRow(
        "back-off ended",
        # A waiting message has no back-off, and would lose its turn.
        {State.WAITING: UNCHANGED, State.HELD: HELD_ALREADY, State.REPORTING: ONLY_REPORT_LEFT},
        "Let deferred messages go now; limits still hold.",
        "has no back-off; nothing changed",
    ),
    "bounce": VerbRow(
        "bounced",
        {State.REPORTING: ONLY_REPORT_LEFT},
        "End messages and report their remaining recipients to the sender.",
    ),
    "delete": VerbRow("deleted", summary="End messages and tell nobody."),
    "pause": VerbRow("paused"),
    "resume": VerbRow(
        "resumed; one message goes first", already="neither paused nor stopped; nothing changed"
    ),
}

CALLS = ("snapshot", "policy", "rows", "summary", "plan", "show", "content", "act", "pause", "resume")
"""The methods of `relay.control.operator.Operator` that a session may call."""
IDS_AT_ONCE = 256
"""Ids in one call of a verb: their results are known only when the call ends."""
_Kind = TypeVar("_Kind")


class Unreachable(Exception):  # noqa: N818 - a state, not an error of ours
    """The relay did not answer, or its answer is incomplete or unreadable; the text says which."""


class NotDone(Exception):  # noqa: N818 - as above
    """There is nothing to show, or no more of it; the text is a key of WORDS or says why."""


class Session(ABC):
    """All methods raise Unreachable.  Ids match QUEUE_ID_PATTERN.

    Only a running relay has the answers of `plan`, `pause` and `resume`.
    """

    @abstractmethod
    def ask(self, kind: type[_Kind], name: str, **arguments: object) -> Iterator[_Kind]:
        """Yield the values of one of CALLS."""

    def _one(self, kind: type[_Kind], name: str, **arguments: object) -> _Kind:
        for value in self.ask(kind, name, **arguments):
            return value
        raise Unreachable("the relay gave an empty answer; see its log")

    def snapshot(self) -> Snapshot:
        return self._one(Snapshot, "snapshot")

    def policy(self) -> str:
        """Return the policy in force as the text of a policy file, with absolute paths."""
        return self._one(str, "policy")

    def rows(self, filters: Filters = EVERYTHING, *, is_whole: bool = False) -> Iterator[list[MessageView]]:
        """Yield the messages that match, in slices, oldest first and corrupt ones last.

        Of long lists of recipients only the first ones, unless `is_whole` or the filters need them.  The
        queue changes meanwhile: a message that is there from the beginning to the end is listed once, one
        that comes or goes is listed once or not at all.
        """
        return self.ask(list[MessageView], "rows", filters=filters, is_whole=is_whole)

    def queue(
        self, filters: Filters = EVERYTHING, sort: str = "", limit: int | None = None
    ) -> list[MessageView]:
        """Sort and cut the listing here, so that the relay keeps no list."""
        return arranged((view for some in self.rows(filters) for view in some), sort, limit)

    def summary(self, filters: Filters, by: By, limit: int | None = None) -> list[GroupRow]:
        """Return the row of all messages, then the `limit` rows with most messages."""
        return self._one(list[GroupRow], "summary", filters=filters, by=by, limit=limit)

    def plan(self, text: str, path: Path) -> "Plan":
        """Return what the text of a policy file would do.  Changes nothing.  Raises NotDone."""
        from relay.status.plan import Plan  # noqa: PLC0415 - with the whole policy, which takes 0.2 s to load

        return self._one(Plan, "plan", text=text, path=str(path))

    def show(self, queue_id: QueueId) -> MessageView:
        """Return one message with all its recipients.  Raises NotDone."""
        return self._one(MessageView, "show", queue_id=queue_id)

    def content(self, queue_id: QueueId) -> Iterator[bytes]:
        """Yield the content as it is stored.  Raises NotDone, also after its first bytes."""
        return self.ask(bytes, "content", queue_id=queue_id)

    def act(
        self, verb: MessageVerb, queue_ids: Sequence[QueueId], states: Collection[QueueState] = ()
    ) -> dict[QueueId, str]:
        """Return the result of each message.  A failure of one does not stop the others.

        With `states`, leave alone a message that is in none of them by now.  If the relay stops answering
        midway, the rest is UNANSWERED.
        """
        results: dict[QueueId, str] = {}
        for start in range(0, len(queue_ids), IDS_AT_ONCE):
            asked = {"verb": verb, "queue_ids": queue_ids[start : start + IDS_AT_ONCE]}
            try:
                results |= self._one(dict[QueueId, str], "act", **asked, states=tuple(states))
            except Unreachable:
                if not results:
                    raise
                return results | dict.fromkeys(queue_ids[start:], UNANSWERED)
        return results

    def pause(self, upstream: str, asked: PauseAsked) -> str:
        """Begin no transaction.  Return OK once the pause is durable, or what went wrong."""
        return self._one(str, "pause", upstream=upstream, asked=asked)

    def resume(self, upstream: str) -> str:
        """Use it again, one transaction first.  Return OK, UNCHANGED, or what went wrong."""
        return self._one(str, "resume", upstream=upstream)
