"""Whether an upstream is used just now: carries out what the table of `relay.verdicts.health` says.

How long a rest lasts is `rest_ns`'s to say.  A refusal of the account is looked into each hour, or as
seldom as the refusal or its rule asks for.  The time of a rest is no message's age (`paused_ns`).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from relay.clock import SECOND_NS
from relay.mail.age import Here
from relay.telemetry.telemetry import Telemetry
from relay.throttle.limit_hints import Tally
from relay.verdicts.health import (
    GRAVITY,
    RESTING,
    STOPPED,
    TABLE,
    Effect,
    Happening,
    Health,
    goes_on,
    refusal,
)
from relay.verdicts.outcome import Answer, Outcome, is_any_relayed
from relay.verdicts.pause_record import PROBE_NS, Paused, PauseRecord, Pauses, rest_ns, window_ns
from relay.verdicts.slow_start import SlowStart
from relay.verdicts.verdict import Ruling, Scope, Verdict

NOTHING = Tally()
NEVER_NS = 366 * 24 * PROBE_NS
"""Where no look is allowed: until an operator acts."""


class Heard(NamedTuple):
    """A happening, and what comes with it."""

    happening: Happening
    text: str = ""
    length_ns: int = 0
    answer: Answer | None = None
    refused: Tally = NOTHING
    """The part of our own history that the upstream did not take."""
    proofs: int = 0
    """How many recipients prove the upstream."""

    @property
    def ruling(self) -> Ruling | None:
        return None if self.answer is None else self.answer.ruling


class Pausing:
    def __init__(
        self,
        upstream: str,
        telemetry: Telemetry,
        *,
        keep: Callable[[PauseRecord], None],
        leaves_in_ns: Callable[[int], int | None],
        on_refusal: Callable[[Answer, Tally], None],
        here: Here,
    ) -> None:
        """`keep` is given what a restart has to know, each time that it changes.

        `leaves_in_ns` tells in how many nanoseconds the oldest entry that the history has within the last so
        many leaves that window; None if it has none there.  `on_refusal` is told of a pause after a success,
        and what was refused.  `here` tells when something of another boot was.
        """
        self.health = Health.USED
        self.because = ""
        """Why it rests, to show; empty while it is used."""
        self.paused_until_ns = 0
        """Boottime; without meaning while it is used."""
        self.slow_start = SlowStart()
        """How many recipients a transaction may have after a refusal, and for a while."""
        self.in_a_row = 0
        """Pauses since the last success."""
        self.relayed_from_ns = 0
        """When the latest transaction began that relayed something."""
        self._upstream = upstream
        self._events, self._metrics, self._redaction, self._clock = telemetry
        self._keep = keep
        self._leaves_in_ns = leaves_in_ns
        self._on_refusal = on_refusal
        self._here = here
        self._doubts = ""  # what the shield asks, until something proves it well or somebody acts
        self._put_off: tuple[Heard, int] | None = None  # a refusal while the history failed; and its end
        self._pauses = Pauses()
        self._refused_at_ns = 0
        self._hands: dict[Effect, Callable[[Heard], None]] = {
            Effect.SLOW: lambda heard: self.slow_start.refused(heard.ruling, is_again=False),
            Effect.SLOW_AGAIN: self._slow_again,
            Effect.MORE: self._more,
            Effect.REST: self._rest,
            Effect.LENGTHEN: self._lengthen,
            Effect.LOOK_LATER: self._look_later,
            Effect.COUNT: lambda _: self._metrics.upstream_paused(upstream),
            Effect.DOUBT: self._doubt,
            Effect.SETTLE: self._settle,
            Effect.TRUST: self._trust,
            Effect.END: self._end,
            Effect.PUT_OFF: self._hear_later,
            Effect.HEAR: self._hear,
            Effect.RECORD: self._record,
            Effect.TELL_PAUSED: self._tell_paused,
            Effect.TELL_STOPPED: self._tell_stopped,
            Effect.TELL_RESUMED: lambda _: self._events.upstream_resumed(upstream=upstream),
            Effect.LEARN: self._learn,
        }

    @property
    def is_stopped(self) -> bool:
        """Whether it rests until an operator acts, or a look finds it well."""
        return self.health in STOPPED

    @property
    def is_refused(self) -> bool:
        return self.is_stopped and self.health is not Health.UNCOUNTED

    @property
    def is_proving(self) -> bool:
        return self.health is Health.PROVING

    @property
    def is_well(self) -> bool:
        """Whether it relayed what it was asked to after its last refusal about us."""
        return self.relayed_from_ns > self._refused_at_ns

    def paused_ns(self, since_ns: int, until_ns: int, rests: Sequence[Paused] = ()) -> int:
        """Return for how long, between two instants of this boot, it was paused or a sender rested."""
        return self._pauses.within_ns(since_ns, until_ns, rests)

    def rested_ns(self, now_ns: int) -> int:
        """Return how long it has rested, pause after pause; 0 while it is used."""
        spans = self._pauses.spans
        return max(0, now_ns - spans[-1][0]) if self.health in RESTING and spans else 0

    def recall(self, record: PauseRecord) -> None:
        now_ns = self._clock.boottime_ns()
        record = record.moved(self._clock.boot_id(), now_ns, self._clock.wall_ns(), self._here)
        left_ns = record.until_ns - now_ns
        self.in_a_row, self._doubts = record.in_a_row, self._redaction.hide(record.doubts)
        self._pauses = Pauses(record.spans)
        self.health, self.paused_until_ns = record.health, record.until_ns
        is_late = left_ns <= 0
        happening = Happening.LATE_RESTART if is_late else Happening.RESTART
        self._meet(Heard(happening, record.because, left_ns))
        if self.health not in RESTING:
            self._pauses.end(min(now_ns, record.until_ns))

    def until_ns(self, now_ns: int) -> int | None:
        """Return until when it rests (boottime), or None if it is used; ends a rest that is over.

        None also where the history is to be read anew: only `trust_history` ends that.
        """
        if self.health not in RESTING:
            return None
        if now_ns >= self.paused_until_ns:
            self._meet(Heard(Happening.OVER, length_ns=NEVER_NS))
        return self.paused_until_ns if self.health in RESTING and now_ns < self.paused_until_ns else None

    def rest(self, answer: Answer, refused: Tally = NOTHING) -> None:
        """Rest after a refusal about us; `refused` is the part of our own history that was not taken."""
        self._refused_at_ns = self._clock.boottime_ns()
        happening = refusal(answer)
        self._meet(Heard(happening, answer.text, self._asked_ns(happening, answer), answer, refused))

    def feel(self, outcome: Outcome, began_ns: int = 0) -> None:
        if is_any_relayed(outcome):
            self.relayed_from_ns = max(self.relayed_from_ns, began_ns)
        if outcome.pause is not None and outcome.pause.scope is Scope.UPSTREAM:
            taken = sum(answer.verdict is Verdict.RELAYED for answer in outcome.answers)
            self.rest(outcome.pause, Tally(0 if taken else 1, len(outcome.answers) - taken))
        elif proofs := sum(map(_is_proof, outcome.answers)):
            self._meet(Heard(Happening.PROOF, proofs=proofs))

    def stop(self, because: str, length_ns: int) -> int:
        """Send nothing because our own history failed; return until when (boottime)."""
        self._meet(Heard(Happening.FAULT, because, length_ns))
        return self.paused_until_ns

    def trust_history(self) -> None:
        """Go on: the history was read and is sound."""
        self._meet(Heard(Happening.SOUND))

    def end(self) -> None:
        """Use the upstream again, carefully, by an operator's word: what the shield asked is answered."""
        self._meet(Heard(Happening.RESUME))

    def tell_sender(self, reverse_path: str, answer: Answer, length_ns: int) -> None:
        """Tell that the mail of one sender waits, and that of all others goes on."""
        self._metrics.sender_paused(self._upstream)
        self._events.sender_paused(
            upstream=self._upstream,
            reverse_path=reverse_path,
            reason=self._redaction.hide(answer.text),
            until_at_ns=self._clock.wall_ns() + length_ns,
        )

    def _meet(self, heard: Heard) -> None:
        self.health, effects = TABLE[self.health, heard.happening]
        for effect in effects:
            self._hands[effect](heard)

    def _asked_ns(self, happening: Happening, answer: Answer) -> int:
        now_ns, ruling = self._clock.boottime_ns(), answer.ruling
        if happening is Happening.BAR:
            return NEVER_NS
        if happening is not Happening.PAUSE:
            left_ns = self.paused_until_ns - now_ns if self.health in RESTING else 0
            return max(PROBE_NS, left_ns, 0 if ruling is None else ruling.wait_ns or 0)
        if self.health is Health.PAUSED:
            return rest_ns(ruling, 0, self._leaves_in_ns)
        if self.is_refused:
            return 0
        step = self.slow_start.step(ruling, self.in_a_row, now_ns)
        return rest_ns(ruling, self.in_a_row, self._leaves_in_ns, step)

    def _slow_again(self, heard: Heard) -> None:
        is_mail = heard.answer is None or heard.refused.recipients > 0
        self.slow_start.refused(heard.ruling, is_again=is_mail and self.in_a_row > 0)

    def _more(self, _: Heard) -> None:
        self.in_a_row += 1

    def _rest(self, heard: Heard) -> None:
        self.because = self._shown(heard.text)
        now_ns = self._clock.boottime_ns()
        self.paused_until_ns = now_ns + heard.length_ns
        # Refused again before anything went well: it is one pause, the proving included.
        self._pauses.begin(now_ns, goes_on=self.in_a_row > 1)

    def _lengthen(self, heard: Heard) -> None:
        if (ruling := heard.ruling) is None:
            return
        is_asked = ruling.wait_ns is not None or window_ns(ruling) is not None or not ruling.may_probe
        if is_asked and self._clock.boottime_ns() + heard.length_ns > self.paused_until_ns + SECOND_NS:
            self._rest(heard)
            self._record(heard)
            self._tell_paused(heard)

    def _look_later(self, heard: Heard) -> None:
        self.paused_until_ns = self._clock.boottime_ns() + heard.length_ns

    def _doubt(self, heard: Heard) -> None:
        self._doubts = self._redaction.hide(heard.text)

    def _settle(self, _: Heard) -> None:
        self._doubts, self._put_off = "", None

    def _trust(self, heard: Heard) -> None:
        self.slow_start.took(heard.proofs)
        self.in_a_row = 0

    def _end(self, _: Heard) -> None:
        self.because = ""
        self.paused_until_ns = self._clock.boottime_ns()
        self._pauses.end(self.paused_until_ns)
        self._metrics.upstream_resumed(self._upstream)

    def _hear_later(self, heard: Heard) -> None:
        until_ns = self._clock.boottime_ns() + heard.length_ns
        if self._put_off is not None:
            before, before_until_ns = self._put_off
            until_ns = max(until_ns, before_until_ns)
            heard = max(before, heard, key=lambda each: GRAVITY.index(each.happening))
        self._put_off = heard, until_ns

    def _hear(self, _: Heard) -> None:
        if self._put_off is not None:
            (heard, until_ns), self._put_off = self._put_off, None
            now_ns = self._clock.boottime_ns()
            self._meet(heard._replace(length_ns=until_ns - now_ns))
            self.until_ns(now_ns)  # its time may be over

    def _learn(self, heard: Heard) -> None:
        # The next ones in a row are of the same block, and tell nothing new.
        if self.in_a_row == 1 and heard.answer is not None:
            self._on_refusal(heard.answer, heard.refused)

    def _tell_paused(self, heard: Heard) -> None:
        until_at_ns = self._clock.wall_ns() + heard.length_ns
        self._events.upstream_paused(upstream=self._upstream, reason=self.because, until_at_ns=until_at_ns)

    def _tell_stopped(self, _: Heard) -> None:
        self._events.upstream_stopped(upstream=self._upstream, reason=self.because)

    def _record(self, heard: Heard) -> None:
        health, because, until_ns = self.health, self.because, self.paused_until_ns
        if self._put_off is not None:
            heard, until_ns = self._put_off
            health = TABLE[Health.PROVING, heard.happening].health
            because = self._shown(heard.text)
        is_kept = goes_on(health)
        self._keep(
            PauseRecord(
                self._clock.boot_id(),
                self._clock.boottime_ns(),
                self._clock.wall_ns(),
                because if is_kept else "",
                0 if health is Health.USED else until_ns,
                self.in_a_row,
                self._pauses.spans,
                is_stopped=is_kept and health in STOPPED,
                doubts=because if health is Health.DOUBTED else self._doubts,
            )
        )

    def _shown(self, text: str) -> str:
        """Return a reason made fit to show: an upstream may echo what it was told."""
        return self._redaction.hide(text) or "no reason given"


def _is_proof(answer: Answer) -> bool:
    """Whether the answer shows the upstream at work; it never saw what we refuse ourselves."""
    return answer.verdict is Verdict.RELAYED or (
        answer.verdict is Verdict.BOUNCE and answer.reply is not None
    )
