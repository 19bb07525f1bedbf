"""What refusals taught of one upstream, and the limits that are in force because of it.

Guarantees: a limit is only ever lowered here, and only where the policy says `adapt:
tighten`; the owner's edit of that limit, or of `adapt`, ends it.  What is lowered is in
force for every decision from then on, before the upstream is used again, and after a
restart before the first.
Does not: judge replies (`relay.verdicts.verdict`), or decide what a refusal teaches
(`relay.throttle.limit_hints`).
"""

from collections.abc import Callable, Iterable, Sequence

from relay.clock import Clock
from relay.policy.limits import LimitSettings
from relay.policy.model import Upstream
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from relay.throttle.gauge import Usage
from relay.throttle.limit_hints import Effective, Hint, Lessons, Tally, compare, in_force, tighten
from relay.verdicts.outcome import Answer

InForce = Sequence[LimitSettings | Effective]


class LoweredLimits:
    """The lessons of one upstream."""

    def __init__(
        self,
        upstream: str,
        events: Events,
        metrics: Metrics,
        clock: Clock,
        *,
        keep: Callable[[Lessons], None],
        tally: Callable[[int], Tally],
        peak: Callable[[int], Tally],
        usage: Callable[[], Iterable[Usage]],
        judge_by: Callable[[InForce, int | None], None],
    ) -> None:
        """`keep` is given what a restart has to know.

        `tally` tells what the history has of a window, `peak` the most that it has of an
        earlier one, `usage` what occupies each limit.  `judge_by` puts other limits in force,
        with the policy's guard, before the next decision.
        """
        self._upstream = upstream
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._keep = keep
        self._tally = tally
        self._peak = peak
        self._usage = usage
        self._judge_by = judge_by
        self._lessons = Lessons()
        self._limits: Sequence[LimitSettings] = ()
        self._guard_ns: int | None = None
        self._adapts = False

    @property
    def findings(self) -> tuple[Hint, ...]:
        """Return what the last refusal said, as long as the policy's limits are not as strict."""
        return self._lessons.findings

    def use(self, upstream: Upstream) -> InForce:
        """Go on under a policy; return the limits that are to be in force."""
        self._limits, self._guard_ns = upstream.limits, upstream.guard_ns
        self._adapts = upstream.adapt is not None
        self._set(self._lessons)
        return in_force(self._limits, self._lessons.lowered)

    def recall(self, kept: Lessons) -> None:
        """Go on from what was kept before a restart, as far as the policy is still the same."""
        self._lessons = kept
        self._set(kept)
        self._judge()

    def refused(self, answer: Answer, refused: Tally) -> None:
        """Compare a refusal with the history; `refused` is in it and was not taken."""
        if answer.ruling is None or not answer.is_about_us:
            return
        findings = compare(
            answer.ruling,
            self._limits,
            lambda span_ns: self._tally(span_ns).less(refused),
            self._clock.wall_ns(),
            peak=self._peak,
            before=self.findings,
            charged={usage.label: usage.used for usage in self._usage() if usage.for_each is None},
        )
        if not findings:
            return
        self._metrics.cut_off(self._upstream)
        for finding in findings:
            self._events.cut_off(upstream=self._upstream, finding=finding)
        lowered = list(self._lessons.lowered)
        if self._adapts:
            for finding in findings:
                if (lower := tighten(finding, self._limits, lowered)) is not None:
                    lowered = [each for each in lowered if each.key != lower.key] + [lower]
                    self._events.limit_lowered(upstream=self._upstream, lowered=lower)
        self._set(Lessons(findings, tuple(lowered)))
        self._judge()

    def _set(self, lessons: Lessons) -> None:
        holds = lessons.under(self._limits, adapts=self._adapts)
        if holds != self._lessons:
            self._lessons = holds
            self._keep(holds)

    def _judge(self) -> None:
        if self._lessons.lowered:
            self._judge_by(in_force(self._limits, self._lessons.lowered), self._guard_ns)
