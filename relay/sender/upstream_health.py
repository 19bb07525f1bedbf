"""Whether an upstream is used just now: holds the state of its account, and tells and keeps its changes.

What changes it says `relay.verdicts.account`.  A refusal of the account is looked into each hour, or as
seldom as the refusal or its rule asks for.  The time of a rest is no message's age (`paused_ns`).
"""

from collections.abc import Callable, Sequence

from relay.queue.routes import Availability
from relay.telemetry.telemetry import Telemetry
from relay.verdicts.account import AccountState, Event, PauseRecord, lapsed, refused, step
from relay.verdicts.health import RESTING, Happening, Health
from relay.verdicts.operator_pause import OperatorPause
from relay.verdicts.outcome import Answer, Outcome, is_any_relayed
from relay.verdicts.pauses import Paused, within_ns
from relay.verdicts.verdict import Scope, Verdict


class Pausing:
    def __init__(
        self,
        upstream: str,
        telemetry: Telemetry,
        *,
        keep: Callable[[PauseRecord], None],
        leaves_in_ns: Callable[[int], int | None],
        on_refused: Callable[[Answer], None],
    ) -> None:
        """`keep` is given what a restart has to know, each time that it changes.

        `leaves_in_ns` tells in how many nanoseconds the oldest entry that the history has within the last so
        many leaves that window; None if it has none there.  `on_refused` is told of each pause after a
        success.
        """
        self.state = AccountState()
        self.is_tried = False
        """A transaction or a refusal has shown since the start whether it works."""
        self.relayed_from_ns = 0
        """When the latest transaction began that relayed something."""
        self._refused_at_ns = 0
        self._upstream = upstream
        self._events, self._metrics, self._clock = telemetry
        self._keep = keep
        self._leaves_in_ns, self._on_refused = leaves_in_ns, on_refused

    @property
    def standing(self) -> Availability:
        """Return what routing sees: one pause lasts until something is relayed, the proving included.

        Each change of it is one that a restart has to know (`keep`).
        """
        state = self.state
        if state.is_used:
            return Availability()
        down_since_ns = state.spans[-1][0] if state.spans else self._clock.boottime_ns()
        return Availability(down_since_ns, state.is_proving and not state.is_resting)

    @property
    def is_well(self) -> bool:
        """Whether it relayed what it was asked to after its last refusal about us."""
        return self.relayed_from_ns > self._refused_at_ns

    def paused_ns(self, since_ns: int, until_ns: int, rests: Sequence[Paused] = ()) -> int:
        """Return for how long, between two instants of this boot, it was paused or a sender rested."""
        return within_ns((*self.state.spans, *rests), since_ns, until_ns)

    def recall(self, record: PauseRecord) -> None:
        now_ns = self._clock.boottime_ns()
        record = record.moved(self._clock.boot_id(), now_ns, self._clock.wall_ns())
        self._become(record.at_a_start(now_ns))

    def until_ns(self, now_ns: int) -> int | None:
        """Return until when it rests (boottime), or None if it is used; ends a rest that is over.

        None also where the history is to be read anew: only `trust_history` ends that.
        """
        self._become(lapsed(self.state, now_ns))
        return min((end_ns for end_ns in self.state.ends_ns if end_ns > now_ns), default=None)

    def rest(self, answer: Answer) -> None:
        """Rest after a refusal about us."""
        self.is_tried, self._refused_at_ns = True, self._clock.boottime_ns()
        in_a_row = self.state.in_a_row
        self._hear(refused(answer, self._refused_at_ns, self._leaves_in_ns))
        # The next ones in a row are of the same block, and tell nothing new.
        if in_a_row == 0 and self.state.in_a_row == 1 and answer.verdict is Verdict.PAUSE:
            self._on_refused(answer)

    def feel(self, outcome: Outcome, began_ns: int = 0) -> None:
        if is_any_relayed(outcome):
            self.relayed_from_ns = max(self.relayed_from_ns, began_ns)
        if outcome.pause is not None and outcome.pause.scope is Scope.UPSTREAM:
            self.rest(outcome.pause)
            return
        self.is_tried = True
        if proofs := sum(map(_is_proof, outcome.answers)):
            self._hear(Event(Happening.PROOF, self._clock.boottime_ns(), recipients=proofs))

    def stop(self, because: str, length_ns: int) -> int:
        """Send nothing because our own history failed; return until when (boottime)."""
        now_ns = self._clock.boottime_ns()
        self._hear(Event(Happening.FAULT, now_ns, because, until_ns=now_ns + length_ns))
        return now_ns + length_ns

    def trust_history(self) -> None:
        """Go on: the history was read and is sound."""
        if self.state.fault:
            self._hear(Event(Happening.SOUND, self._clock.boottime_ns()))

    def end(self) -> None:
        """Use the upstream again, carefully, by an operator's word: what the shield asked is answered."""
        self._hear(Event(Happening.RESUME, self._clock.boottime_ns()))

    def edited(self) -> None:
        """Use the upstream again, carefully, as an edit may have mended it; an operator's pause goes on."""
        self._hear(Event(Happening.EDIT, self._clock.boottime_ns()))

    def keep_back(self, pause: OperatorPause, since_ns: int | None = None) -> None:
        """Send nothing by an operator's word; what is in flight goes on.

        `since_ns`: since when nothing was sent, by the same word; None: from now on.
        """
        at_ns = self._clock.boottime_ns() if since_ns is None else since_ns
        self._hear(Event(Happening.KEEP, at_ns, pause=pause))

    def tell_sender(self, reverse_path: str, answer: Answer, length_ns: int) -> None:
        """Tell that the mail of one sender waits, and that of all others goes on."""
        self._metrics.count("relay_sender_pauses_total", self._upstream)
        self._events.tell(
            "sender_paused",
            upstream=self._upstream,
            reverse_path=reverse_path,
            reason=answer.text,
            until_at_ns=self._clock.wall_ns() + length_ns,
        )

    def _hear(self, event: Event) -> None:
        self._become(step(self.state, event))

    def _become(self, after: AccountState) -> None:
        """Go on with a state; keep and tell what is different from the one before."""
        before, self.state = self.state, after
        if after == before:
            return
        rested, rests = (state.health in RESTING or state.fault != "" for state in (before, after))
        if rests and not rested:
            self._metrics.count("relay_upstream_pauses_total", self._upstream)
        elif rested and not rests:
            self._metrics.count("relay_upstream_resumes_total", self._upstream)
        clock = self._clock
        self._keep(PauseRecord(clock.boot_id(), clock.boottime_ns(), clock.wall_ns(), after))
        self._tell_word(before.operator, after.operator)
        self._tell_health(before, after)

    def _tell_word(self, before: OperatorPause | None, pause: OperatorPause | None) -> None:
        if pause is not None and pause != before:
            until_at_ns = None if pause.is_lasting else self._wall_ns(pause.until_ns)
            self._events.tell(
                "operator_paused", upstream=self._upstream, by=pause.by, until_at_ns=until_at_ns
            )
        elif pause is None and before is not None:
            is_over = before.until_ns <= self._clock.boottime_ns()
            reason = Happening.LAPSE if is_over else Happening.RESUME
            self._events.tell("operator_pause_ended", upstream=self._upstream, reason=reason)

    def _tell_health(self, before: AccountState, state: AccountState) -> None:
        name, events = self._upstream, self._events
        if state.fault and not before.fault and state.health not in RESTING:
            events.tell("upstream_stopped", upstream=name, reason=state.fault)
        if state.health in RESTING:
            if (state.health, state.until_ns) == (before.health, before.until_ns):
                return
            if state.is_refused:
                events.tell("upstream_stopped", upstream=name, reason=state.because)
            else:
                until_at_ns = self._wall_ns(state.until_ns)
                events.tell("upstream_paused", upstream=name, reason=state.because, until_at_ns=until_at_ns)
        elif state.is_proving and not state.fault:
            if not before.is_proving or before.fault:
                events.tell("upstream_proving", upstream=name)
        elif before.is_proving and state.health is Health.USED:
            # Told only now: what a probe finds refused again was never resumed.
            events.tell("upstream_resumed", upstream=name)

    def _wall_ns(self, at_ns: int) -> int:
        return self._clock.wall_ns() + at_ns - self._clock.boottime_ns()


def _is_proof(answer: Answer) -> bool:
    """Whether the answer shows the upstream at work; it never saw what we refuse ourselves."""
    return answer.verdict is Verdict.RELAYED or (
        answer.verdict is Verdict.BOUNCE and answer.reply is not None
    )
