"""Whether an upstream is used just now: pauses, and how they end.

A refusal that is about us stops the upstream, not the message: it rests, longer each
time in a row, and comes back with one transaction to prove that it is well before the
others follow.  Releasing the whole backlog at the end of a pause is how accounts get
blocked for good.
"""

from relay.clock import SECOND_NS, Clock
from relay.outcome import Answer, Outcome
from relay.service.events import Events
from relay.service.metrics import Metrics
from relay.service.redaction import Redaction
from relay.verdict import Verdict

FIRST_NS = 15 * SECOND_NS
LONGEST_NS = 15 * 60 * SECOND_NS


class Pausing:
    """The state of one upstream."""

    def __init__(
        self, upstream: str, events: Events, metrics: Metrics, clock: Clock, redaction: Redaction
    ) -> None:
        self.because = ""
        """Why it rests; empty while it is used."""
        self.paused_until_ns = 0
        """Boottime; of no meaning while it is used."""
        self.is_stopped = False
        """It rests because of our own history, not because of what it said."""
        self.is_proving = False
        """One transaction must go well before the others follow."""
        self._upstream = upstream
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._redaction = redaction
        self._in_a_row = 0

    def until_ns(self, now_ns: int) -> int | None:
        """Return until when it rests (boottime), or None if it is used; ends a pause that is over.

        None also where a stop is to be looked into again: only `trust_history` ends that.
        """
        if not self.because:
            return None
        if now_ns < self.paused_until_ns:
            return self.paused_until_ns
        if not self.is_stopped:
            self.end()
        return None

    def rest(self, answer: Answer) -> None:
        """Begin a pause because of a refusal that is about us; longer if the last one did not help."""
        if self.because:
            return
        length_ns = min(LONGEST_NS, FIRST_NS << min(self._in_a_row, 10))
        self._in_a_row += 1
        self._begin(answer.text, length_ns)
        self._events.upstream_paused(
            upstream=self._upstream, reason=self.because, until_at_ns=self._clock.wall_ns() + length_ns
        )

    def stop(self, because: str, length_ns: int) -> int:
        """Send nothing for a while because of a fault of ours; return until when to look again."""
        if self.is_stopped:
            self.paused_until_ns = self._clock.boottime_ns() + length_ns
        else:
            self.is_stopped = True
            self._begin(because, length_ns)
            self._events.upstream_stopped(upstream=self._upstream, reason=self.because)
        return self.paused_until_ns

    def trust_history(self) -> None:
        """End a stop: the history was read and is sound."""
        if self.is_stopped:
            self.end()

    def end(self) -> None:
        """Use the upstream again, carefully."""
        if self.because:
            self.because, self.is_stopped, self.is_proving = "", False, True
            self._events.upstream_resumed(upstream=self._upstream)
            self._metrics.upstream_resumed(self._upstream)

    def feel(self, outcome: Outcome) -> None:
        """Learn from a transaction: pause, or trust again."""
        if outcome.pause is not None:
            self.rest(outcome.pause)
        elif any(answer.verdict in (Verdict.RELAYED, Verdict.BOUNCE) for answer in outcome.answers):
            self.is_proving, self._in_a_row = False, 0

    def _begin(self, because: str, length_ns: int) -> None:
        if not self.because:
            self._metrics.upstream_paused(self._upstream)
        # An upstream may echo what it was told, and this is shown.
        self.because = self._redaction.hide(because) or "no reason given"
        self.paused_until_ns = self._clock.boottime_ns() + length_ns
