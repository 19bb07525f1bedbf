"""Whether an upstream is used just now: carries out what two tables of `relay.verdicts` say.

They are of its state (`health`), and of an operator's pause beside that (`operator_pause`).

How long a rest lasts is `rest_ns`'s to say.  A refusal of the account is looked into each hour, or as
seldom as the refusal or its rule asks for.  The time of a rest is no message's age (`paused_ns`).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from relay.clock import SECOND_NS
from relay.mail.age import Here
from relay.queue.routes import Availability
from relay.telemetry.telemetry import Telemetry
from relay.verdicts.health import (
    GRAVITY,
    RESTING,
    STOPPED,
    TABLE,
    USED,
    Effect,
    Happening,
    Health,
    goes_on,
    refusal,
)
from relay.verdicts.operator_pause import WORDS, OperatorPause, Word
from relay.verdicts.outcome import Answer, Outcome, is_any_relayed
from relay.verdicts.pause_record import PROBE_NS, Paused, PauseRecord, Pauses, rest_ns, window_ns
from relay.verdicts.slow_start import SlowStart
from relay.verdicts.verdict import Ruling, Scope, Verdict

NEVER_NS = 366 * 24 * PROBE_NS
"""Where no look is allowed: until an operator acts."""


class Heard(NamedTuple):
    """A happening, and what comes with it."""

    happening: Happening
    text: str = ""
    length_ns: int = 0
    answer: Answer | None = None
    refused: int = 0
    """Recipients that the upstream did not take."""
    proofs: int = 0
    """How many recipients prove the upstream."""
    pause: OperatorPause | None = None

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
        on_refused: Callable[[Answer], None],
        here: Here,
        on_word: Callable[[], None] = lambda: None,
    ) -> None:
        """`keep` is given what a restart has to know, each time that it changes.

        `on_refused` is told of each pause after a success.  `leaves_in_ns` tells in how many nanoseconds
        the oldest entry that the history has within the last so many leaves that window; None if it has
        none there.  `here` tells when something of another boot was.  `on_word` is called when
        `operator` has changed.
        """
        self.health = Health.UNTRIED
        self.operator: OperatorPause | None = None
        """The operator's pause, while it lasts."""
        self.paused_until_ns = 0
        """Until when the state rests, the operator's pause aside (boottime); without meaning in use."""
        self.slow_start = SlowStart()
        """How many recipients a transaction may have after a refusal, and for a while."""
        self.in_a_row = 0
        """Pauses since the last success."""
        self._doublings = 0
        """How often the back-off was doubled: as `in_a_row`, but from zero once somebody acts."""
        self.relayed_from_ns = 0
        """When the latest transaction began that relayed something."""
        self._upstream = upstream
        self._events, self._metrics, self._clock = telemetry
        self._because = ""
        self._before = ""  # the last that was shown, until something went well
        self._keep = keep
        self._leaves_in_ns = leaves_in_ns
        self._on_refused = on_refused
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
            Effect.ANEW: self._begin_anew,
            Effect.END: self._end,
            Effect.PUT_OFF: self._hear_later,
            Effect.HEAR: self._hear,
            Effect.RECORD: self._record,
            Effect.TELL_PAUSED: self._tell_paused,
            Effect.TELL_STOPPED: self._tell_stopped,
            Effect.TELL_PROVING: lambda _: self._events.upstream_proving(upstream=upstream),
            Effect.TELL_RESUMED: lambda _: self._events.upstream_resumed(upstream=upstream),
            Effect.KEEP_BACK: self._keep_back,
            Effect.LET: self._let,
            Effect.FOLLOW: lambda _: on_word(),
            Effect.PROVE: lambda _: self._meet_state(Heard(Happening.LEAVE)),
            Effect.TELL_KEPT_BACK: self._tell_kept_back,
            Effect.TELL_LET: lambda heard: self._events.operator_pause_ended(
                upstream=upstream, reason=heard.happening
            ),
            Effect.LEARN: self._learn,
        }

    @property
    def because(self) -> str:
        """Why nothing is sent, to show; empty while it is used or proving."""
        return self._because if self.operator is None else self.operator.words

    @property
    def proving_after(self) -> str:
        """What it rested for before it has to prove itself, to show; empty if that is not known."""
        return self._before if self.is_proving and self.operator is None else ""

    @property
    def rests_until_ns(self) -> int:
        """Until when nothing is sent (boottime), as far as is known; without meaning while it is used."""
        until_ns = self.paused_until_ns if self.health in RESTING else 0
        return until_ns if self.operator is None else max(until_ns, self.operator.until_ns)

    @property
    def is_stopped(self) -> bool:
        """Whether it rests until an operator acts, or a look finds it well."""
        return self.health in STOPPED

    @property
    def is_refused(self) -> bool:
        return self.is_stopped and self.health is not Health.UNCOUNTED

    @property
    def is_used(self) -> bool:
        """Whether it neither rests nor has to prove itself."""
        return self.health in USED and self.operator is None

    @property
    def standing(self) -> Availability:
        """Return what routing sees: one pause lasts until something is relayed, the proving included.

        Each change of it is one that a restart has to know (`keep`).
        """
        if self.is_used:
            return Availability()
        begun_ns = self._pauses.last_begun_ns
        down_since_ns = self._clock.boottime_ns() if begun_ns is None else begun_ns
        return Availability(down_since_ns, self.is_proving and self.operator is None)

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

    def pauses(self) -> Pauses:
        """Return a copy of what is known of past pauses."""
        return Pauses(self._pauses.spans)

    def rested_ns(self, now_ns: int) -> int:
        """Return how long it has rested, pause after pause; 0 while it is used."""
        spans = self._pauses.spans
        return max(0, now_ns - spans[-1][0]) if self._is_resting and spans else 0

    def recall(self, record: PauseRecord) -> None:
        now_ns = self._clock.boottime_ns()
        record = record.moved(self._clock.boot_id(), now_ns, self._clock.wall_ns(), self._here)
        left_ns = record.until_ns - now_ns
        self.in_a_row, self._doubts = record.in_a_row, record.doubts
        self._doublings = record.in_a_row if record.doublings is None else record.doublings
        self._pauses = Pauses(record.spans)
        self.health, self.paused_until_ns = record.health, record.until_ns
        self.operator = record.operator
        self._meet_state(Heard(_restart(left_ns), record.because, left_ns))
        if self.operator is not None:
            self._meet_word(Heard(_restart(self.operator.until_ns - now_ns)))
        if not self._is_resting:
            self._pauses.end(min(now_ns, record.over_ns))

    def until_ns(self, now_ns: int) -> int | None:
        """Return until when it rests (boottime), or None if it is used; ends a rest that is over.

        None also where the history is to be read anew: only `trust_history` ends that.
        """
        if self.operator is not None and now_ns >= self.operator.until_ns:
            self._meet(Heard(Happening.LAPSE))
        if self.operator is not None:
            return self.operator.until_ns
        if self.health not in RESTING:
            return None
        if now_ns >= self.paused_until_ns:
            self._meet(Heard(Happening.OVER, length_ns=NEVER_NS))
        return self.paused_until_ns if self.health in RESTING and now_ns < self.paused_until_ns else None

    def rest(self, answer: Answer, refused: int = 0) -> None:
        """Rest after a refusal about us; `refused` is how many recipients were not taken."""
        self._refused_at_ns = self._clock.boottime_ns()
        happening = refusal(answer)
        self._meet(Heard(happening, answer.text, self._asked_ns(happening, answer), answer, refused))

    def feel(self, outcome: Outcome, began_ns: int = 0) -> None:
        if is_any_relayed(outcome):
            self.relayed_from_ns = max(self.relayed_from_ns, began_ns)
        taken = sum(answer.verdict is Verdict.RELAYED for answer in outcome.answers)
        if outcome.pause is not None and outcome.pause.scope is Scope.UPSTREAM:
            self.rest(outcome.pause, len(outcome.answers) - taken)
            return
        proofs = sum(map(_is_proof, outcome.answers))
        self._meet(Heard(Happening.PROOF if proofs else Happening.ANSWER, proofs=proofs))

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

    def edited(self) -> None:
        """Use the upstream again, carefully, as an edit may have mended it; an operator's pause goes on."""
        self._meet(Heard(Happening.EDIT))

    def keep_back(self, pause: OperatorPause, rested_ns: int = 0) -> None:
        """Send nothing by an operator's word; what is in flight goes on.

        `rested_ns`: how long nothing was sent up to now, by the same word.
        """
        self._meet(Heard(pause.begins, length_ns=rested_ns, pause=pause))

    def tell_sender(self, reverse_path: str, answer: Answer, length_ns: int) -> None:
        """Tell that the mail of one sender waits, and that of all others goes on."""
        self._metrics.sender_paused(self._upstream)
        self._events.sender_paused(
            upstream=self._upstream,
            reverse_path=reverse_path,
            reason=answer.text,
            until_at_ns=self._clock.wall_ns() + length_ns,
        )

    @property
    def _is_resting(self) -> bool:
        return self.health in RESTING or self.operator is not None

    def _meet(self, heard: Heard) -> None:
        self._meet_word(heard)
        self._meet_state(heard)

    def _meet_word(self, heard: Heard) -> None:
        word = Word.FREE if self.operator is None else self.operator.word
        for effect in WORDS[word, heard.happening].effects:
            self._hands[effect](heard)

    def _meet_state(self, heard: Heard) -> None:
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
        step = self.slow_start.step(ruling, self._doublings, now_ns)
        return rest_ns(ruling, self._doublings, self._leaves_in_ns, step)

    def _slow_again(self, heard: Heard) -> None:
        is_mail = heard.answer is None or heard.refused > 0
        self.slow_start.refused(heard.ruling, is_again=is_mail and self.in_a_row > 0)

    def _more(self, _: Heard) -> None:
        self.in_a_row += 1
        self._doublings += 1

    def _rest(self, heard: Heard) -> None:
        self._because = heard.text or "no reason given"
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
        self._doubts = heard.text

    def _settle(self, _: Heard) -> None:
        self._doubts, self._put_off = "", None

    def _trust(self, heard: Heard) -> None:
        self._before = ""
        self.slow_start.took(heard.proofs)
        self.in_a_row = self._doublings = 0

    def _begin_anew(self, _: Heard) -> None:
        self._doublings = 0
        self.slow_start.begin_anew()

    def _end(self, _: Heard) -> None:
        self._before, self._because = self._because or self._before, ""
        self.paused_until_ns = self._clock.boottime_ns()
        if not self._is_resting:
            self._pauses.end(self.paused_until_ns)
        self._metrics.upstream_resumed(self._upstream)

    def _keep_back(self, heard: Heard) -> None:
        self.operator = heard.pause
        since_ns = self._clock.boottime_ns() - heard.length_ns
        self._pauses.begin(since_ns, goes_on=self.in_a_row > 0)

    def _let(self, _: Heard) -> None:
        if self.operator is None:
            raise AssertionError("there is no pause to end")
        over_ns, self.operator = max(self.paused_until_ns, self.operator.until_ns), None
        if not self._is_resting:
            self.paused_until_ns = min(self._clock.boottime_ns(), over_ns)
            self._pauses.end(self.paused_until_ns)

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
            self._on_refused(heard.answer)

    def _tell_paused(self, heard: Heard) -> None:
        until_at_ns = self._clock.wall_ns() + heard.length_ns
        self._events.upstream_paused(upstream=self._upstream, reason=self._because, until_at_ns=until_at_ns)

    def _tell_kept_back(self, _: Heard) -> None:
        if (pause := self.operator) is None:
            raise AssertionError("there is no pause to tell of")
        left_ns = pause.until_ns - self._clock.boottime_ns()
        until_at_ns = None if pause.word is Word.LASTING else self._clock.wall_ns() + left_ns
        self._events.operator_paused(
            upstream=self._upstream, by=pause.by, until_at_ns=until_at_ns, holds_new=pause.holds_new
        )

    def _tell_stopped(self, _: Heard) -> None:
        self._events.upstream_stopped(upstream=self._upstream, reason=self._because)

    def _record(self, heard: Heard) -> None:
        health, because, until_ns = self.health, self._because, self.paused_until_ns
        if self._put_off is not None:
            heard, until_ns = self._put_off
            health = TABLE[Health.PROVING, heard.happening].health
            because = heard.text or "no reason given"
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
                doublings=self._doublings,
                operator=self.operator,
            )
        )


def _restart(left_ns: int) -> Happening:
    return Happening.RESTART if left_ns > 0 else Happening.LATE_RESTART


def _is_proof(answer: Answer) -> bool:
    """Whether the answer shows the upstream at work; it never saw what we refuse ourselves."""
    return answer.verdict is Verdict.RELAYED or (
        answer.verdict is Verdict.BOUNCE and answer.reply is not None
    )
