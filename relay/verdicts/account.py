"""The state of an account as one value, what changes it, and how it is kept on disk.  Pure.

`step(state, event)` is the state after an event; `told` is what its change tells.  Three things keep mail
back: the account's health (`relay.verdicts.health`), an operator's pause, and a fault of our own history.
They stand beside each other; while any of them lasts nothing is sent, and no message grows old.

A pause that the next one follows without a success in between is one with it, the proving transaction
included.  The first transaction after a refusal for too much goes to one recipient, and each later one to
no more than were taken since, and one: 1, 2, 4, 8.  Nor does one message that was taken end a block: where
the upstream speaks of a window and refuses again within an hour, the back-off goes on one step below where
it ended.  Without a window the refusal may be one message's fault, and then everybody would wait for it.

Losing the record loses no mail: a restart then knocks at once at an upstream that may extend its block
for that, and ages include pauses.  Instants are boottime of the current boot in nanoseconds;
`PauseRecord.moved` brings those of another boot here.  The wall clock tells when a pause ends: if it was set
back meanwhile, the pause is as long again as it was when it was written, and never longer.
"""

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from relay.clock import SECOND_NS, shift_ns
from relay.mail.age import Here
from relay.verdicts.health import ENDLESS, RESTING, TABLE, Happening, Health
from relay.verdicts.operator_pause import FOREVER_NS, OperatorPause
from relay.verdicts.outcome import Answer
from relay.verdicts.pauses import LAST_STEP, PROBE_NS, Paused, begun, ended, rest_ns, window_ns
from relay.verdicts.verdict import BEFORE_MAIL, Ruling, Scope, Verdict

CALM_NS = PROBE_NS
"""So long after the last refusal for too much in a window, the next one begins anew."""
_BY_REFUSAL = {
    Happening.PAUSE: Health.PAUSED,
    Happening.REFUSE: Health.REFUSED,
    Happening.STOP: Health.STOPPED,
}


NO_REASON = "no reason given"
_NO_RULING = Ruling(Verdict.PAUSE, Scope.UPSTREAM)


@dataclass(frozen=True, slots=True)
class AccountState:
    health: Health = Health.USED
    because: str = ""
    """What it was refused with last, until something goes well."""
    until_ns: int = 0
    """When its rest ends, or ended; FOREVER_NS where no look is allowed."""
    doubts: str = ""
    """Why the shield stopped it, until the upstream proves itself or somebody acts; else empty."""
    in_a_row: int = 0
    """Refusals since the last success."""
    step: int = -1
    """Of the back-off, at the last refusal."""
    windowed_at_ns: int | None = None
    """When it last refused for too much in a window."""
    taken: int | None = field(default=None, compare=False)
    """How many recipients it took since it refused for too much; None where it did not refuse."""
    operator: OperatorPause | None = None
    fault: str = ""
    """Why our own history of it cannot be trusted."""
    fault_until_ns: int = 0
    spans: tuple[Paused, ...] = ()
    """When nothing was sent."""

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
    def is_refused(self) -> bool:
        """Whether the account is, or the shield says so."""
        return self.health in ENDLESS

    @property
    def shown(self) -> Health:
        """Return its health, to show: a history that fails is a stop."""
        return Health.STOPPED if self.fault and self.health not in RESTING else self.health

    @property
    def why(self) -> str:
        """Return why nothing is sent, to show; empty while mail goes."""
        if self.operator is not None:
            return self.operator.words
        return (self.because or NO_REASON) if self.health in RESTING else self.fault

    @property
    def ends_ns(self) -> tuple[int, ...]:
        """Return when each thing that keeps mail back is over."""
        ends = [self.until_ns] if self.health in RESTING else []
        ends += [self.fault_until_ns] if self.fault else []
        return (*ends, *(() if self.operator is None else (self.operator.until_ns,)))

    @property
    def over_ns(self) -> int:
        """Return when all that keeps mail back is over; 0 while nothing does."""
        return max(self.ends_ns, default=0)


class Event(NamedTuple):
    happening: Happening
    at_ns: int
    text: str = ""
    """The refusal, or the fault."""
    ruling: Ruling | None = None
    is_mail: bool = True
    """A transaction was refused, not a connection."""
    is_doubted: bool = False
    """The shield refuses it."""
    recipients: int = 0
    """How many the upstream took."""
    until_ns: int = 0
    """When a fault is looked at again."""
    pause: OperatorPause | None = None
    leaves_in_ns: Callable[[int], int | None] = lambda _span_ns: None
    """In how many nanoseconds the oldest entry of our history within so many leaves that window."""


def refused(answer: Answer, at_ns: int, leaves_in_ns: Callable[[int], int | None]) -> Event:
    """Return the event that a refusal about us, or the shield's, is to its account."""
    happening, ruling = Happening.PAUSE, answer.ruling
    if answer.verdict is Verdict.STOP:
        is_last = answer.is_doubted or (ruling is not None and not ruling.may_probe)
        happening = Happening.STOP if is_last else Happening.REFUSE
    is_mail = answer.phase not in BEFORE_MAIL
    return Event(happening, at_ns, answer.text, ruling, is_mail, answer.is_doubted, leaves_in_ns=leaves_in_ns)


def step(state: AccountState, event: Event) -> AccountState:
    """Return the state after an event."""
    if event.happening is Happening.PROOF and state.is_used and state.in_a_row == 0 and state.taken is None:
        return state  # as nearly always
    health, now_ns = TABLE[state.health, event.happening], event.at_ns
    if event.happening is Happening.RESUME and state.operator is not None:
        health = TABLE[health, Happening.LAPSE]
    after = replace(_changed(state, event), health=health)
    if state.health in RESTING and health is Health.PROVING:
        after = replace(after, until_ns=min(now_ns, state.until_ns))
    if after.is_resting and not state.is_resting:
        return replace(after, spans=begun(state.spans, now_ns, goes_on=state.in_a_row > 0))
    if state.is_resting and not after.is_resting:
        return replace(after, spans=ended(state.spans, min(now_ns, state.over_ns)))
    return after


def _changed(state: AccountState, event: Event) -> AccountState:
    """Return the state after an event, but for its health."""
    match event.happening:
        case Happening.PAUSE | Happening.REFUSE | Happening.STOP:
            return _refused(state, event)
        case Happening.PROOF:
            taken = None if state.taken is None else state.taken + event.recipients
            because = state.because if state.health in RESTING else ""
            doubts = state.doubts if state.health in ENDLESS else ""
            return replace(state, because=because, in_a_row=0, taken=taken, doubts=doubts)
        case Happening.RESUME | Happening.EDIT:
            operator = None if event.happening is Happening.RESUME else state.operator
            # A history that failed is read at once.
            return replace(
                state, doubts="", step=-1, windowed_at_ns=None, operator=operator, fault_until_ns=0
            )
        case Happening.KEEP | Happening.LAPSE:
            return replace(state, operator=event.pause)
        case Happening.FAULT:
            return replace(state, fault=event.text or NO_REASON, fault_until_ns=event.until_ns)
        case Happening.SOUND | Happening.RESTART:
            return replace(state, fault="", because=state.because or state.fault)
        case Happening.OVER:
            return state


def _refused(state: AccountState, event: Event) -> AccountState:
    ruling, now_ns = event.ruling or _NO_RULING, event.at_ns
    is_again = event.is_mail and state.health is Health.PROVING and state.in_a_row > 0
    state = replace(state, taken=0 if ruling.is_too_much or is_again else state.taken)
    is_new = TABLE[state.health, event.happening] is not state.health
    if not is_new and state.health is not _BY_REFUSAL[event.happening]:
        return state  # it rests for something graver
    next_step, windowed_at_ns = 0, state.windowed_at_ns
    if ruling.is_too_much and window_ns(ruling) is not None:
        is_soon = windowed_at_ns is not None and now_ns - windowed_at_ns < CALM_NS
        next_step, windowed_at_ns = max(0, state.step - 1) if is_soon else 0, now_ns
    if state.in_a_row > 0:
        next_step = min(LAST_STEP, state.step + 1)
    asks, doubts = not ruling.may_probe, event.text if event.is_doubted else state.doubts
    if event.happening is Happening.PAUSE:
        until_ns = now_ns + rest_ns(ruling, next_step if is_new else 0, event.leaves_in_ns)
        asks = asks or ruling.wait_ns is not None or window_ns(ruling) is not None
    elif asks:
        # Only somebody's word ends a rest without looks, and that answers the shield's question too.
        until_ns, doubts = FOREVER_NS, ""
    else:
        left_ns = state.until_ns if state.health in RESTING else 0
        until_ns = max(left_ns, now_ns + max(PROBE_NS, ruling.wait_ns or 0))
    if is_new:
        state = replace(state, in_a_row=state.in_a_row + 1, step=next_step, windowed_at_ns=windowed_at_ns)
    elif not asks or until_ns <= state.until_ns + SECOND_NS:
        return state  # it was in flight when the rest began: only what it asks for makes that longer
    return replace(state, because=event.text or NO_REASON, until_ns=until_ns, doubts=doubts)


class Told(enum.StrEnum):
    """What a change of the state tells, by the name of its event."""

    PAUSED = "upstream_paused"
    STOPPED = "upstream_stopped"
    PROVING = "upstream_proving"
    RESUMED = "upstream_resumed"
    KEPT_BACK = "operator_paused"
    LET = "operator_pause_ended"


def told(before: AccountState, after: AccountState) -> Iterator[Told]:
    """Yield what a change tells, in order."""
    if after.operator != before.operator:
        yield Told.LET if after.operator is None else Told.KEPT_BACK
    if after.fault and not before.fault and after.health not in RESTING:
        yield Told.STOPPED
    if after.health in RESTING:
        if (after.health, after.until_ns) != (before.health, before.until_ns):
            yield Told.STOPPED if after.health in ENDLESS else Told.PAUSED
    elif after.health is Health.PROVING and not after.fault:
        if before.health is not Health.PROVING or before.fault:
            yield Told.PROVING
    elif before.health is Health.PROVING and after.health is Health.USED:
        # Told only now: what a probe finds refused again was never resumed.
        yield Told.RESUMED


def largest(usual: int, taken: int | None) -> int:
    """Return how many recipients a transaction may have after so many were taken; None: it is trusted."""
    return usual if taken is None else min(usual, taken + 1)


@dataclass(frozen=True, slots=True)
class PauseRecord:
    boot_id: str
    """Of the boot whose instants these are."""
    written_at_ns: int
    wall_ns: int
    """The wall clock at that instant."""
    state: AccountState

    def moved(self, boot_id: str, now_ns: int, wall_ns: int, here: Here) -> Self:
        """Return it in the time of this boot; past pauses move as ages do, as they are taken from these."""
        if boot_id == self.boot_id:
            return self
        by_ns, state = shift_ns(self.written_at_ns, self.wall_ns, now_ns, wall_ns), self.state

        def moved(at_ns: int) -> int:
            here_ns = here(self.boot_id, at_ns)
            return at_ns + by_ns if here_ns is None else here_ns

        since_ns, pause = state.windowed_at_ns, state.operator
        here_now = replace(
            state,
            until_ns=state.until_ns if state.until_ns in (0, FOREVER_NS) else state.until_ns + by_ns,
            fault_until_ns=state.fault_until_ns and state.fault_until_ns + by_ns,
            windowed_at_ns=None if since_ns is None else since_ns + by_ns,
            operator=pause
            if pause is None or pause.is_lasting
            else replace(pause, until_ns=pause.until_ns + by_ns),
        )
        # The one under way is over if it is so by the wall clock; it was under way until then.
        end_ns = FOREVER_NS if here_now.over_ns > now_ns else min(now_ns, moved(state.over_ns))
        spans = tuple(
            (moved(begin), max(moved(begin), end_ns) if end == FOREVER_NS else moved(end))
            for begin, end in state.spans
        )
        return replace(
            self,
            boot_id=boot_id,
            written_at_ns=self.written_at_ns + by_ns,
            state=replace(here_now, spans=spans),
        )

    def at_a_start(self, now_ns: int) -> AccountState:
        """Return what a start at that instant makes of a record of this boot."""
        state = step(self.state, Event(Happening.RESTART, now_ns))
        return lapsed(state, now_ns)

    def fault(self) -> str:
        """Return what makes no sense in it, or nothing."""
        state = self.state
        edges = [edge for span in state.spans for edge in span]
        is_sound = (
            edges == sorted(edges)
            and state.in_a_row >= 0
            and state.step >= -1
            and max(state.until_ns, state.fault_until_ns, state.over_ns, *edges, 0) <= FOREVER_NS
        )
        return "" if is_sound else "its instants are out of order"


def lapsed(state: AccountState, now_ns: int) -> AccountState:
    """Return a state without what is over by then; of a fault only a sound history is the end."""
    if state.operator is not None and now_ns >= state.operator.until_ns:
        state = step(state, Event(Happening.LAPSE, now_ns))
    if state.health in RESTING and now_ns >= state.until_ns:
        state = step(state, Event(Happening.OVER, now_ns))
    return state
