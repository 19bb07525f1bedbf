"""The state of an account as one value, and the events that change it.  Pure.

A refusal that is about us pauses or stops the account, not the message.  After the pause one transaction goes
first and has to prove that the upstream is well: accounts get blocked for good if the whole backlog goes at
the end of a pause.  After a refusal for too much, that transaction has one recipient, and each later one at
most one more than were taken since: 1, 2, 4, 8.

`step(state, event)` returns the state after an event; `TABLE`, which docs/dev/decisions.md prints, has the
health.  An operator's pause and a fault of our own history stand beside it.  While any of the three lasts,
nothing is sent, and no message grows old.  Two pauses without a success between them count as one, together
with the proving transaction between them.

Losing the record loses no mail.  But a restart then tries at once an upstream that may extend its block for
that, and ages include pauses.  Instants are boottime of the current boot in nanoseconds; `PauseRecord`
converts those of another boot.  The wall clock tells when a pause ends.  If it was set back meanwhile, the
pause is as long again as when it was written, and never longer.
"""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from relay.clock import SECOND_NS, shift_ns
from relay.mail.formats import utc
from relay.mail.text import clean
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import BEFORE_MAIL, Ruling, Scope, Verdict
from relay.verdicts.wording import LONGEST_RETRY_NS

FOREVER_NS = 1 << 62
"""The end of a pause that has not ended."""
MOST_SPANS = 256
"""Older spans are forgotten: they count as age."""
FIRST_NS = 15 * SECOND_NS
LONGEST_NS = 15 * 60 * SECOND_NS
PROBE_NS = 3600 * SECOND_NS
"""Time between two looks at an upstream that refused the account, or where a look may make it worse."""
NO_REASON = "no reason given"
_NO_RULING = Ruling(Verdict.PAUSE, Scope.UPSTREAM)
PauseSpan = tuple[int, int]
"""Begin and end, half-open."""


class Health(enum.StrEnum):
    USED = "used"
    """Mail goes, within connections and limits."""
    PROVING = "proving"
    """One transaction at a time, until one succeeds."""
    PAUSED = "paused"
    """The upstream refused us; the pause ends at an instant."""
    STOPPED = "stopped"
    """It refused the account, or the shield tripped.  An operator has to act, or a look has to find the
    upstream well: one transaction, at an instant or after a restart.  A rule may forbid looks."""


RESTING = frozenset({Health.PAUSED, Health.STOPPED})


class EventKind(enum.StrEnum):
    PAUSE = "a refusal that pauses"
    STOP = "a refusal of the account, or the shield trips"
    PROOF = "a transaction succeeded"
    OVER = "the end of the pause"
    RESUME = "`relay resume`"
    EDIT = "an edit that may repair it"
    """Of the account or its verdicts, or another password."""
    KEEP = "the operator pauses it"
    LAPSE = "its time is over"
    FAULT = "the history fails"
    SOUND = "the history is sound again"
    RESTART = "a restart"


_S = Health
_CHANGES = {
    EventKind.PAUSE: {_S.USED: _S.PAUSED, _S.PROVING: _S.PAUSED},
    EventKind.STOP: dict.fromkeys(_S, _S.STOPPED),
    # While an account rests, this is a transaction that was in flight when the rest began.
    EventKind.PROOF: {_S.PROVING: _S.USED},
    EventKind.OVER: dict.fromkeys(RESTING, _S.PROVING),
    EventKind.RESUME: dict.fromkeys(RESTING, _S.PROVING),
    EventKind.EDIT: dict.fromkeys(RESTING, _S.PROVING),
    # Nobody told us why the operator paused it, nor what was sent while the history failed.
    EventKind.LAPSE: {_S.USED: _S.PROVING},
    EventKind.SOUND: {_S.USED: _S.PROVING},
}
TABLE: Mapping[tuple[Health, EventKind], Health] = {
    (health, kind): _CHANGES.get(kind, {}).get(health, health) for health in Health for kind in EventKind
}


@dataclass(frozen=True, slots=True)
class PauseAsked:
    by: str
    length_ns: int | None = None
    """None: until `relay resume`."""

    def begun(self, now_ns: int, wall_ns: int) -> "OperatorPause":
        until_ns = FOREVER_NS if self.length_ns is None else now_ns + self.length_ns
        return OperatorPause(until_ns, clean(self.by), wall_ns)


@dataclass(frozen=True, slots=True)
class OperatorPause:
    """An operator's pause.  Replies during it still change the health, which counts when it is over."""

    until_ns: int
    """Boottime; FOREVER_NS if only `relay resume` ends it."""
    by: str
    since_at_ns: int
    """Wall clock, to show."""

    @property
    def is_lasting(self) -> bool:
        return self.until_ns == FOREVER_NS

    @property
    def who(self) -> str:
        return f"{self.by}, since {utc(self.since_at_ns)}"


@dataclass(frozen=True, slots=True)
class AccountState:
    health: Health = Health.USED
    because: str = ""
    """The last refusal, until a transaction succeeds."""
    until_ns: int = 0
    """When its rest ends, or ended; FOREVER_NS if no look is allowed."""
    in_a_row: int = 0
    """Refusals since the last success, or since an operator acted."""
    taken: int | None = field(default=None, compare=False)
    """Recipients taken since a refusal for too much, or of a proving transaction; None without one."""
    operator: OperatorPause | None = None
    fault: str = ""
    """Why our own history of it cannot be trusted; empty if it can."""
    fault_until_ns: int = 0
    spans: tuple[PauseSpan, ...] = ()

    @property
    def is_resting(self) -> bool:
        return self.health in RESTING or self.operator is not None or self.fault != ""

    @property
    def is_used(self) -> bool:
        return self.health is Health.USED and not self.is_resting

    @property
    def is_proving(self) -> bool:
        return self.health is Health.PROVING

    @property
    def is_stopped(self) -> bool:
        return self.health is Health.STOPPED

    @property
    def shown(self) -> Health:
        """Return the health to show: a history that fails is a stop."""
        return Health.STOPPED if self.fault and self.health not in RESTING else self.health

    @property
    def why(self) -> str:
        """Return why nothing is sent, to show; empty while mail goes."""
        if self.operator is not None:
            return f"by {self.operator.who}"
        return (self.because or NO_REASON) if self.health in RESTING else self.fault

    @property
    def ends(self) -> list[tuple[int, EventKind]]:
        """Return when each cause that keeps mail back ends, in order, and the event that ends it."""
        ends = [(self.until_ns, EventKind.OVER)] if self.health in RESTING else []
        ends += [(self.fault_until_ns, EventKind.SOUND)] if self.fault else []
        ends += [] if self.operator is None else [(self.operator.until_ns, EventKind.LAPSE)]
        return sorted(ends)

    @property
    def over_ns(self) -> int:
        """Return when the last cause that keeps mail back ends; 0 if there is none."""
        return max((end_ns for end_ns, _ in self.ends), default=0)


class Event(NamedTuple):
    kind: EventKind
    at_ns: int
    text: str = ""
    ruling: Ruling = _NO_RULING
    is_mail: bool = True
    """The refusal was of a transaction, not of a connection."""
    recipients: int = 0
    until_ns: int = 0
    """When a fault is checked again."""
    pause: OperatorPause | None = None
    leaves_in_ns: int | None = None
    """In how many ns the oldest entry of our history leaves the window that the refusal names."""


def refusal_event(answer: Answer, at_ns: int, oldest_leaves_in_ns: Callable[[int], int | None]) -> Event:
    """Return the event for a refusal about us, by the upstream or by the shield.

    `oldest_leaves_in_ns` takes a window; it returns in how many ns the oldest entry of our history leaves it.
    """
    kind = EventKind.STOP if answer.verdict is Verdict.STOP else EventKind.PAUSE
    ruling = answer.ruling or _NO_RULING
    leaves_in_ns = None if ruling.window_ns is None else oldest_leaves_in_ns(ruling.window_ns)
    is_mail = answer.phase not in BEFORE_MAIL
    return Event(kind, at_ns, answer.text, ruling, is_mail, leaves_in_ns=leaves_in_ns)


def with_shared(state: AccountState, shared: AccountState, now_ns: int) -> AccountState:
    """Return the state after another host came to `shared`.  Faults and spans of no sending stay its own."""
    after = replace(shared, fault=state.fault, fault_until_ns=state.fault_until_ns, spans=state.spans)
    return _with_spans(state, after, now_ns)


def step(state: AccountState, event: Event) -> AccountState:
    if event.kind is EventKind.PROOF and state.is_used and state.in_a_row == 0 and state.taken is None:
        return state  # the usual case
    health, now_ns = TABLE[state.health, event.kind], event.at_ns
    if event.kind is EventKind.RESUME and state.operator is not None:
        health = TABLE[health, EventKind.LAPSE]
    after = replace(_changed(state, event), health=health)
    if state.health in RESTING and health is Health.PROVING:
        after = replace(after, until_ns=min(now_ns, state.until_ns))
    return _with_spans(state, after, now_ns)


def _with_spans(state: AccountState, after: AccountState, now_ns: int) -> AccountState:
    """Return `after`, with the span that begins or ends between `state` and it."""
    if after.is_resting == state.is_resting:
        return after
    spans, (since_ns, until_ns) = state.spans, state.spans[-1] if state.spans else (now_ns, -1)
    if state.is_resting:
        if until_ns == FOREVER_NS:
            spans = (*spans[:-1], (since_ns, max(since_ns, min(now_ns, state.over_ns))))
    elif spans and (state.in_a_row > 0 or until_ns >= now_ns):
        spans = (*spans[:-1], (since_ns, FOREVER_NS))
    else:
        spans = (*spans[-MOST_SPANS:], (now_ns, FOREVER_NS))
    return replace(after, spans=spans)


def _changed(state: AccountState, event: Event) -> AccountState:
    """Return the state after an event, without the change of its health."""
    match event.kind:
        case EventKind.PAUSE | EventKind.STOP:
            return _after_refusal(state, event)
        case EventKind.PROOF:
            taken = None if state.taken is None else state.taken + event.recipients
            because = state.because if state.health in RESTING else ""
            return replace(state, because=because, in_a_row=0, taken=taken)
        case EventKind.RESUME | EventKind.EDIT:
            operator = None if event.kind is EventKind.RESUME else state.operator
            # Read a failed history at once.
            fault_until_ns = min(state.fault_until_ns, event.at_ns)
            return replace(state, in_a_row=0, operator=operator, fault_until_ns=fault_until_ns)
        case EventKind.KEEP | EventKind.LAPSE:
            return replace(state, operator=event.pause)
        case EventKind.FAULT:
            return replace(state, fault=event.text or NO_REASON, fault_until_ns=event.until_ns)
        case EventKind.SOUND | EventKind.RESTART:
            until_ns = state.until_ns
            if event.kind is EventKind.RESTART and state.is_stopped and until_ns != FOREVER_NS:
                # A look is due: the operator may have corrected the password.  A pause goes on: otherwise
                # each restart would try an upstream that extends its block for it.
                until_ns = min(until_ns, event.at_ns)
            return replace(state, fault="", because=state.because or state.fault, until_ns=until_ns)
        case EventKind.OVER:
            return state


def _after_refusal(state: AccountState, event: Event) -> AccountState:
    ruling, now_ns, health = event.ruling, event.at_ns, TABLE[state.health, event.kind]
    is_again = event.is_mail and state.is_proving and state.in_a_row > 0
    state = replace(state, taken=0 if ruling.is_too_much or is_again else state.taken)
    is_new = health is not state.health
    if not is_new and health is not TABLE[Health.USED, event.kind]:
        return state  # it rests for a graver reason
    asks = not ruling.may_probe or ruling.wait_ns is not None or ruling.window_ns is not None
    if event.kind is EventKind.PAUSE:
        until_ns = now_ns + rest_ns(ruling, state.in_a_row if is_new else 0, event.leaves_in_ns)
    elif ruling.may_probe:
        left_ns = state.until_ns if state.health in RESTING else 0
        until_ns = max(left_ns, now_ns + max(PROBE_NS, ruling.wait_ns or 0))
    else:
        until_ns = FOREVER_NS  # only an operator ends a rest without looks
    if not is_new and (not asks or until_ns <= state.until_ns + SECOND_NS):
        return state  # it was in flight when the rest began: only a wait that it asks for extends the rest
    because, in_a_row = event.text or NO_REASON, state.in_a_row + is_new
    return replace(state, because=because, until_ns=until_ns, in_a_row=in_a_row)


def lapsed(state: AccountState, now_ns: int) -> AccountState:
    """Return the state without what is over by then; only a sound history ends a fault."""
    # The last end closes the span.
    for end_ns, kind in state.ends:
        if now_ns >= end_ns and kind is not EventKind.SOUND:
            state = step(state, Event(kind, now_ns))
    return state


def at_a_start(state: AccountState, now_ns: int) -> AccountState:
    """Return the state in which a start at that instant begins, by a saved state in the time of this boot."""
    return lapsed(step(state, Event(EventKind.RESTART, now_ns)), now_ns)


def max_recipients_now(usual: int, taken: int | None) -> int:
    """Return how many recipients a transaction may have; `taken` None: no limit but `usual`."""
    return usual if taken is None else min(usual, taken + 1)


def rest_ns(ruling: Ruling | None, step: int, leaves_in_ns: int | None = None) -> int:
    """Return how long to rest after a refusal that is about us.

    If the upstream or its rule asks for a wait: that wait.  If the reply names a window: until the oldest
    entry of our own history leaves it (`leaves_in_ns`), but at most two days; or the whole window, if an
    earlier look makes it worse.  Otherwise our own back-off, doubled `step` times.  After a pause that did
    not help, at least that back-off.
    """
    ruling = ruling or _NO_RULING
    back_off_ns, asked_ns = min(LONGEST_NS, FIRST_NS << min(step, 10)), 0
    if ruling.wait_ns is not None:
        asked_ns = ruling.wait_ns
    elif not ruling.may_probe:
        asked_ns = ruling.window_ns or PROBE_NS
    elif ruling.window_ns is not None:
        asked_ns = min(LONGEST_RETRY_NS, leaves_in_ns or 0)
    return asked_ns if asked_ns and step == 0 else max(asked_ns, back_off_ns)


def within_ns(spans: Sequence[PauseSpan], since_ns: int, until_ns: int) -> int:
    """Return how much time between two instants these spans cover; any order, overlaps count once."""
    return sum(max(0, min(end, until_ns) - max(begin, since_ns)) for begin, end in merge_spans(spans))


def merge_spans(spans: Iterable[PauseSpan]) -> list[PauseSpan]:
    """Return the spans in order, with those that meet joined."""
    joined: list[PauseSpan] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


@dataclass(frozen=True, slots=True)
class PauseRecord:
    boot_id: str
    written_at_ns: int
    wall_ns: int
    """The wall clock at `written_at_ns`."""
    state: AccountState

    def state_at(self, boot_id: str, now_ns: int, wall_ns: int) -> AccountState:
        """Return the state in the time of this boot, converted by the wall clock, as ages are."""
        state = self.state
        if boot_id == self.boot_id:
            return state
        by_ns = shift_ns(self.written_at_ns, self.wall_ns, now_ns, wall_ns)

        def later(at_ns: int) -> int:
            return at_ns if at_ns in (0, FOREVER_NS) else at_ns + by_ns

        pause = state.operator
        return replace(
            state,
            until_ns=later(state.until_ns),
            operator=None if pause is None else replace(pause, until_ns=later(pause.until_ns)),
            spans=tuple((later(begin), later(end)) for begin, end in state.spans),
        )
