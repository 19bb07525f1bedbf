"""Whether an upstream is used just now: pauses, and how they end.

A refusal that is about us stops the upstream, not the message: it rests, longer each
time in a row, and comes back with one transaction to prove that it is well before the
others follow.  Releasing the whole backlog at the end of a pause is how accounts get
blocked for good.  A refusal of the account itself (STOP) is not ended by time: somebody
acts, or a probe finds it well, where the rule allows probes at all: each hour, or as seldom
as the refusal or its rule asks for.

How long: as the upstream asks for; where it speaks of a window ("per hour"), until the
oldest of what our own history has in that window leaves it; else our own back-off, which
is also the least once a pause did not help.

A restart goes on with a pause (`recall`): else each one would knock at once at an
upstream that extends its block for it.  It goes on with a stop where no probe is allowed,
and with the shield's, which is a question to the operator: else each restart would bounce
as many more as the shield allows in a row.  The time of a pause is no message's age
(`paused_ns`).
"""

from collections.abc import Callable, Sequence

from relay.clock import SECOND_NS, Clock
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from relay.telemetry.redaction import Redaction
from relay.throttle.limit_hints import Tally
from relay.verdicts.outcome import Answer, Outcome, is_any_relayed
from relay.verdicts.pauses import PROBE_NS, Paused, PauseRecord, Pauses, rest_ns, window_ns
from relay.verdicts.slow_start import SlowStart
from relay.verdicts.verdict import Scope, Verdict

NOTHING = Tally()
NEVER_NS = 366 * 24 * PROBE_NS
"""Where no look is allowed: until somebody acts."""


class Pausing:
    """The state of one upstream."""

    def __init__(
        self,
        upstream: str,
        events: Events,
        metrics: Metrics,
        clock: Clock,
        redaction: Redaction,
        *,
        keep: Callable[[PauseRecord], None],
        leaves_in_ns: Callable[[int], int | None],
        on_refusal: Callable[[Answer, Tally], None],
    ) -> None:
        """`keep` is given what a restart has to know, each time that it changes.

        `leaves_in_ns` tells in how many nanoseconds the oldest of what the history has
        within the last so many leaves that window, or None if it has nothing there.
        `on_refusal` is told of a pause after something had gone well, and what was refused.
        """
        self.because = ""
        """Why it rests; empty while it is used."""
        self.paused_until_ns = 0
        """Boottime; of no meaning while it is used."""
        self.is_stopped = False
        """It rests until somebody acts: our own history is at fault, or it refused the account."""
        self.is_proving = False
        """One transaction must go well before the others follow."""
        self.slow_start = SlowStart()
        """How many recipients a transaction may have meanwhile, and for a while after."""
        self._upstream = upstream
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._redaction = redaction
        self._keep = keep
        self._leaves_in_ns = leaves_in_ns
        self._on_refusal = on_refusal
        self._is_history = False  # why it is stopped: our own history
        self._may_probe = True
        self._doubts = ""  # why the shield stopped it, until something proves it well or somebody acts
        self._in_a_row = 0
        self._pauses = Pauses()
        self._refused_at_ns = 0
        self.relayed_from_ns = 0
        """When the latest transaction began of those that relayed something."""

    def recall(self, record: PauseRecord) -> None:
        """Go on from what was kept before a restart; its instants are of this boot."""
        now_ns = self._clock.boottime_ns()
        self._in_a_row, self._doubts = record.in_a_row, self._redaction.hide(record.doubts)
        self._pauses = Pauses(record.spans)
        left_ns = record.until_ns - now_ns
        if record.because and left_ns > 0:
            self.is_stopped = record.is_stopped
            self._may_probe = not record.is_stopped or bool(record.doubts)
            self._begin(record.because, left_ns, goes_on=True)
            if self.is_stopped:
                self._events.upstream_stopped(upstream=self._upstream, reason=self.because)
            else:
                self._tell_paused(left_ns)
        else:
            self._pauses.end(min(now_ns, record.until_ns))
            # An upstream that refused us when we last asked has to prove itself first.
            self.is_proving = record.in_a_row > 0
        self.slow_start.refused(None, is_again=record.in_a_row > 0)

    def paused_ns(self, since_ns: int, until_ns: int, rests: Sequence[Paused] = ()) -> int:
        """Return for how long, between two instants of this boot, it was paused or a sender rested."""
        return self._pauses.within_ns(since_ns, until_ns, rests)

    def rested_ns(self, now_ns: int) -> int:
        """Return for how long it has rested by now, pause after pause; 0 while it is used."""
        spans = self._pauses.spans
        return max(0, now_ns - spans[-1][0]) if self.because and spans else 0

    @property
    def in_a_row(self) -> int:
        """Return how many pauses there were since something went well."""
        return self._in_a_row

    @property
    def is_well(self) -> bool:
        """Whether it relayed something that it was asked after its last refusal about us."""
        return self.relayed_from_ns > self._refused_at_ns

    @property
    def is_refused(self) -> bool:
        """Whether it is stopped because the upstream refused the account."""
        return self.is_stopped and not self._is_history

    def until_ns(self, now_ns: int) -> int | None:
        """Return until when it rests (boottime), or None if it is used; ends a pause that is over.

        None also where a stop is to be looked into again: only `trust_history` ends that.
        """
        if not self.because:
            return None
        if now_ns < self.paused_until_ns:
            return self.paused_until_ns
        if not self._is_history:
            self._go_on()
        return None

    def rest(self, answer: Answer, refused: Tally = NOTHING) -> None:
        """Begin a pause because of a refusal that is about us; longer if the last one did not help.

        `refused` is what of our own history it was that the upstream did not take.
        """
        self._refused_at_ns = self._clock.boottime_ns()
        is_again = refused.recipients > 0 and self._in_a_row > 0 and not self.because
        self.slow_start.refused(answer.ruling, is_again=is_again)
        if answer.verdict is Verdict.STOP:
            self._stop_by(answer)
            return
        if self.because:
            self._lengthen(answer)
            return
        self._may_probe = True
        step = self.slow_start.step(answer.ruling, self._in_a_row, self._clock.boottime_ns())
        length_ns = rest_ns(answer.ruling, self._in_a_row, self._leaves_in_ns, step)
        self._in_a_row += 1
        # Refused again before anything went well: it is one pause, the proving included.
        self._begin(answer.text, length_ns, goes_on=self._in_a_row > 1)
        self._tell_paused(length_ns)
        if self._in_a_row == 1:
            # The next ones in a row are of the same block, and tell nothing new.
            self._on_refusal(answer, refused)

    def _lengthen(self, answer: Answer) -> None:
        """Rest for longer if another transaction in flight was told to; what asks for no time adds none."""
        ruling = answer.ruling
        if self.is_stopped or ruling is None:
            return
        is_asked = ruling.wait_ns is not None or window_ns(ruling) is not None or not ruling.may_probe
        length_ns = rest_ns(ruling, 0, self._leaves_in_ns)
        if is_asked and self._clock.boottime_ns() + length_ns > self.paused_until_ns + SECOND_NS:
            self._begin(answer.text, length_ns, goes_on=True)
            self._tell_paused(length_ns)

    def tell_sender(self, reverse_path: str, answer: Answer, length_ns: int) -> None:
        """Tell that the mail of one sender waits, and that of all others goes on."""
        self._metrics.sender_paused(self._upstream)
        self._events.sender_paused(
            upstream=self._upstream,
            reverse_path=reverse_path,
            reason=self._redaction.hide(answer.text),
            until_at_ns=self._clock.wall_ns() + length_ns,
        )

    def stop(self, because: str, length_ns: int) -> int:
        """Send nothing for a while because of a fault of ours; return until when to look again."""
        if self._is_history:
            self.paused_until_ns = self._clock.boottime_ns() + length_ns
        elif not self.is_stopped:
            self.is_stopped = self._is_history = True
            self._begin(because, length_ns, goes_on=bool(self.because))
            self._events.upstream_stopped(upstream=self._upstream, reason=self.because)
        return self.paused_until_ns

    def trust_history(self) -> None:
        """End a stop: the history was read and is sound."""
        if self._is_history:
            self._go_on()

    def end(self) -> None:
        """Use the upstream again, carefully, by somebody's word: what the shield asked is answered."""
        was_doubted, self._doubts = bool(self._doubts), ""
        if self.because:
            self._go_on()
        elif was_doubted:
            self._record()

    def _go_on(self) -> None:
        if self.because:
            self.because, self.is_stopped, self.is_proving = "", False, True
            self._is_history = False
            self._pauses.end(self._clock.boottime_ns())
            self._record()
            self._events.upstream_resumed(upstream=self._upstream)
            self._metrics.upstream_resumed(self._upstream)

    def feel(self, outcome: Outcome, began_ns: int = 0) -> None:
        """Learn from a transaction: pause, or trust again."""
        if is_any_relayed(outcome):
            self.relayed_from_ns = max(self.relayed_from_ns, began_ns)
        if outcome.pause is not None and outcome.pause.scope is Scope.UPSTREAM:
            taken = sum(answer.verdict is Verdict.RELAYED for answer in outcome.answers)
            self.rest(outcome.pause, Tally(0 if taken else 1, len(outcome.answers) - taken))
        elif proofs := sum(map(_is_proof, outcome.answers)):
            self.slow_start.took(proofs)
            was_in_doubt, self.is_proving, self._in_a_row = self._in_a_row > 0, False, 0
            if not self.is_stopped:
                self._doubts = ""
            if was_in_doubt:
                self._record()

    def _stop_by(self, answer: Answer) -> None:
        """Send nothing until somebody acts: it refused the account."""
        if self.is_stopped:
            return
        ruling = answer.ruling
        self._may_probe = ruling is None or ruling.may_probe
        asked_ns = 0 if ruling is None else ruling.wait_ns or 0
        left_ns = self.paused_until_ns - self._clock.boottime_ns() if self.because else 0
        length_ns = max(PROBE_NS, asked_ns, left_ns) if self._may_probe else NEVER_NS
        self._in_a_row += 1
        self.is_stopped = True
        if answer.is_doubted:
            self._doubts = self._redaction.hide(answer.text)
        # As in `rest`: refused again before anything went well is one with the last, the probe included.
        self._begin(answer.text, length_ns, goes_on=bool(self.because) or self._in_a_row > 1)
        self._events.upstream_stopped(upstream=self._upstream, reason=self.because)

    def _begin(self, because: str, length_ns: int, *, goes_on: bool) -> None:
        if not self.because:
            self._metrics.upstream_paused(self._upstream)
        # An upstream may echo what it was told, and this is shown.
        self.because = self._redaction.hide(because) or "no reason given"
        now_ns = self._clock.boottime_ns()
        self.paused_until_ns = now_ns + length_ns
        self._pauses.begin(now_ns, goes_on=goes_on)
        self._record()

    def _tell_paused(self, length_ns: int) -> None:
        self._events.upstream_paused(
            upstream=self._upstream, reason=self.because, until_at_ns=self._clock.wall_ns() + length_ns
        )

    def _record(self) -> None:
        # A start looks at the history anew, and whoever starts us may have mended the password:
        # but where each attempt makes it worse, or the shield asks, only `relay resume` or an edit ends it.
        is_lasting = not self._may_probe or self.because == self._doubts
        is_kept = bool(self.because) and (not self.is_stopped or is_lasting)
        self._keep(
            PauseRecord(
                self._clock.boot_id(),
                self._clock.boottime_ns(),
                self._clock.wall_ns(),
                self.because if is_kept else "",
                self.paused_until_ns if self.because else 0,
                self._in_a_row,
                self._pauses.spans,
                is_stopped=is_kept and self.is_stopped,
                doubts=self._doubts,
            )
        )


def _is_proof(answer: Answer) -> bool:
    """Whether the upstream does its work; what we refuse ourselves it never saw."""
    return answer.verdict is Verdict.RELAYED or (
        answer.verdict is Verdict.BOUNCE and answer.reply is not None
    )
