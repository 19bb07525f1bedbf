"""Whether an upstream is used just now: holds the state of its account, keeps and tells each change.

What changes the state says `relay.verdicts.account`.  A refusal of the account is looked into each hour, or
as seldom as the refusal or its rule asks for.  The time of a rest is no message's age.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from relay.mail.text import clean
from relay.queue.routes import Availability
from relay.sender.state_file import AccountFile
from relay.telemetry.metrics import Telemetry
from relay.verdicts.account import (
    MOST_SPANS,
    RESTING,
    AccountState,
    Event,
    Happening,
    OperatorPause,
    PauseRecord,
    adopted,
    lapsed,
    refused,
    step,
    together,
)
from relay.verdicts.outcome import Answer, Outcome, is_any_relayed
from relay.verdicts.shield import Shield
from relay.verdicts.verdict import Scope, Verdict

if TYPE_CHECKING:
    from relay.sender.account_row import AccountRow


class Pausing:
    def __init__(
        self,
        upstream: str,
        telemetry: Telemetry,
        kept: AccountFile,
        *,
        row: "AccountRow | None" = None,
        leaves_in_ns: Callable[[int], int | None],
        on_refused: Callable[[Answer], None],
        on_change: Callable[[Availability], None],
    ) -> None:
        """`leaves_in_ns` tells when the oldest entry that the history has within a span leaves that window.

        `row` is what all hosts that use the account share; None: it is this host's alone.
        `on_refused` is told of each pause after a success; `on_change` what routing sees, at each change.
        """
        self.state, self.kept, self.row, self.shield = AccountState(), kept, row, Shield()
        self.is_tried = False
        """A transaction or a refusal has shown since the start whether it works."""
        self.on_change = on_change
        self.may_keep: Callable[[], bool] = lambda: True
        """Whether the record is this account's, and no other's by now."""
        self.relayed_from_ns = 0
        """When the latest transaction began that relayed something."""
        self._refused_at_ns = 0
        self._upstream = upstream
        self._events, self._metrics, self._clock = telemetry
        self._leaves_in_ns, self._on_refused = leaves_in_ns, on_refused

    @property
    def availability(self) -> Availability:
        """Return what routing sees: one pause lasts until something is relayed, the proving included."""
        state = self.state
        if state.is_used:
            return Availability(pauses=state.spans)
        down_since_ns = state.spans[-1][0] if state.spans else self._clock.boottime_ns()
        return Availability(down_since_ns, state.is_proving and not state.is_resting, state.spans)

    @property
    def is_well(self) -> bool:
        """Whether it relayed what it was asked to after its last refusal about us."""
        return self.relayed_from_ns > self._refused_at_ns

    async def recall(self, replaced: AccountState | None) -> None:
        """Go on from what was kept before a restart; call it ahead of all else.

        `replaced` is the state of the account that an edit replaced by this one: what the operator said of it
        counts, and not what was said when this one was used before.
        """
        record, why = None, ""
        try:
            record = await asyncio.to_thread(self.kept.load)
        except (OSError, ValueError) as error:
            why = clean(f"{self.kept.path}: {error}")
        if record is not None:
            now_ns = self._clock.boottime_ns()
            record = record.moved(self._clock.boot_id(), now_ns, self._clock.wall_ns())
            self._become(record.at_a_start(now_ns))
            self.shield.recall(record.state.doubts)
        if self.row is not None:
            why = await asyncio.to_thread(self.row.look) or why
            self.learn()
            self.shield.recall(self.state.doubts)
            self.apply(Happening.RESTART)
        if why:
            self._events.tell("pause_unrecorded", upstream=self._upstream, error=why)
        if replaced is not None:
            # What stands in its line waited for the account of before.
            now_ns = self._clock.boottime_ns()
            before = [(since_ns, min(until_ns, now_ns)) for since_ns, until_ns in replaced.spans]
            spans = together((*self.state.spans, *before))
            self._become(replace(self.state, spans=tuple(spans[-MOST_SPANS:])))
        if replaced is not None and replaced.operator is not None:
            self.apply(Happening.KEEP, at_ns=replaced.spans[-1][0], pause=replaced.operator)
        elif replaced is not None and self.state.operator is not None:
            self.end()

    def learn(self) -> None:
        """Go on as another host that uses the account came to it."""
        if self.row is not None and (shared := self.row.news()) is not None:
            self._become(adopted(self.state, shared, self._clock.boottime_ns()))

    def ask_history(self) -> None:
        """Have a history that failed be read at once: it answers again."""
        if self.state.fault:
            now_ns = self._clock.boottime_ns()
            self._become(replace(self.state, fault_until_ns=min(now_ns, self.state.fault_until_ns)))

    async def recorded(self) -> str:
        """Wait until a restart would know the state; return nothing, or why it would not."""
        return await self.kept.written() or ("" if self.row is None else await self.row.written())

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
        self._apply(refused(answer, self._refused_at_ns, self._leaves_in_ns))
        # The next ones in a row are of the same block, and tell nothing new.
        if in_a_row == 0 and self.state.in_a_row == 1 and answer.verdict is Verdict.PAUSE:
            self._on_refused(answer)

    def observe(self, outcome: Outcome, began_ns: int = 0) -> None:
        """Learn from a transaction that began then."""
        if is_any_relayed(outcome):
            self.relayed_from_ns = max(self.relayed_from_ns, began_ns)
        if outcome.pause is not None and outcome.pause.scope is Scope.UPSTREAM:
            self.rest(outcome.pause)
            return
        self.is_tried = True
        if proofs := sum(map(_is_proof, outcome.answers)):
            self.apply(Happening.PROOF, recipients=proofs)

    def trust_history(self) -> None:
        """Go on: the history was read and is sound."""
        if self.state.fault:
            self.apply(Happening.SOUND)
        if self.row is not None:
            self.row.write()

    def end(self, why: Happening = Happening.RESUME) -> None:
        """Use the upstream again, carefully, by an operator's word, which answers what the shield asks.

        By an EDIT that may have mended it, an operator's pause goes on.
        """
        self.apply(why)
        self.shield.clear()

    def apply(self, happening: Happening, *, at_ns: int | None = None, **about: Any) -> None:
        """Go on after what came to pass now, or then."""
        self._apply(Event(happening, self._clock.boottime_ns() if at_ns is None else at_ns, **about))

    def _apply(self, event: Event) -> None:
        before = self.state
        self._become(step(before, event))
        if self.row is not None and self.state != before and self.may_keep():
            self.row.keep(event)

    def _become(self, after: AccountState) -> None:
        """Go on with a state; keep and tell what is different from the one before."""
        before, self.state = self.state, after
        if after == before:
            return
        rested, rests = (state.health in RESTING or state.fault != "" for state in (before, after))
        if rests != rested:
            change = "pauses" if rests else "resumes"
            self._metrics.count(f"relay_upstream_{change}_total", self._upstream)
        clock = self._clock
        if self.may_keep():
            self.kept.keep(PauseRecord(clock.boot_id(), clock.boottime_ns(), clock.wall_ns(), after))
        self.on_change(self.availability)
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
            self._events.tell(
                "operator_pause_ended",
                upstream=self._upstream,
                reason=Happening.LAPSE if is_over else Happening.RESUME,
            )

    def _tell_health(self, before: AccountState, state: AccountState) -> None:
        if state.health in RESTING:
            if (state.health, state.until_ns) == (before.health, before.until_ns):
                return
            if state.is_refused:
                self._events.tell("upstream_stopped", upstream=self._upstream, reason=state.because)
            else:
                self._events.tell(
                    "upstream_paused",
                    upstream=self._upstream,
                    reason=state.because,
                    until_at_ns=self._wall_ns(state.until_ns),
                )
        elif state.fault:
            if not before.fault:
                self._events.tell("upstream_stopped", upstream=self._upstream, reason=state.fault)
        elif state.is_proving:
            if not before.is_proving or before.fault:
                self._events.tell("upstream_proving", upstream=self._upstream)
        elif before.is_proving:
            # Told only now: what a probe finds refused again was never resumed.
            self._events.tell("upstream_resumed", upstream=self._upstream)

    def _wall_ns(self, at_ns: int) -> int:
        return self._clock.wall_ns() + at_ns - self._clock.boottime_ns()


def _is_proof(answer: Answer) -> bool:
    """Whether the answer shows the upstream at work; it never saw what we refuse ourselves."""
    return answer.verdict is Verdict.RELAYED or (
        answer.verdict is Verdict.BOUNCE and answer.reply is not None
    )
