"""What refusals taught of one upstream, and the limits that are in force because of it.

Guarantees: a limit is only ever lowered here, and only where the policy says `adapt:
tighten`; the owner's edit of that limit, or of `adapt`, ends it.  A lowered limit is in
force for every decision from then on, before the upstream is used again, and after a
restart before the first.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from relay.policy.lane import Lanes, ceilings_of
from relay.policy.limits import LimitSettings
from relay.policy.model import Upstream
from relay.sender.throttle_thread import ThrottleThread
from relay.telemetry.telemetry import Telemetry
from relay.throttle.limit import Limit
from relay.throttle.limit_hints import Hint, Lessons, Tally, compare, in_force, tighten
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Excess, Ruling


def limits_in_force(lessons: Lessons, limits: Sequence[LimitSettings], lanes: Lanes) -> Sequence[Limit]:
    """Return those of a policy, lowered by `lessons`, and the ceilings of its lanes."""
    # Ceilings are parts of what the owner wrote, not of what is in force.
    return (*in_force(limits, lessons.lowered), *ceilings_of(limits, lanes))


class LoweredLimits:
    def __init__(
        self,
        upstream: str,
        telemetry: Telemetry,
        throttle: ThrottleThread,
        keep: Callable[[Lessons], None],
    ) -> None:
        """`keep` is given what a restart has to know, each time that it changes."""
        self._upstream = upstream
        self._events, self._metrics, self._clock = telemetry
        self._throttle = throttle
        self._keep = keep
        self._lessons = Lessons()
        self._limits: Sequence[LimitSettings] = ()
        self._lanes: Lanes = {}
        self._guard_ns: int | None = None
        self._adapts = False

    @property
    def lessons(self) -> Lessons:
        return self._lessons

    @property
    def findings(self) -> tuple[Hint, ...]:
        """Return what the last refusal said, unless the policy's limits are as strict."""
        return self._lessons.findings

    def use(self, upstream: Upstream, lanes: Lanes) -> Sequence[Limit]:
        self._limits, self._guard_ns = upstream.limits, upstream.guard_ns
        self._lanes = lanes
        self._adapts = upstream.adapt is not None
        self._set(self._lessons)
        return self._in_force()

    def recall(self, kept: Lessons) -> None:
        """Go on from what was kept before a restart, as far as the policy is still the same."""
        self._lessons = kept
        self._set(kept)
        self._judge()

    def not_taken(self, refused: Tally) -> None:
        """Remember what is in the history and was refused, over restarts too."""
        if refused.connections and all(limit.unit != "connections" for limit in self._limits):
            return  # it is in no history
        self._set(self._lessons.and_refused(self._clock.wall_ns(), refused))

    def refused(self, answer: Answer) -> None:
        """Compare a refusal with what the upstream took before, if it took anything since the last one."""
        now_ns = self._clock.wall_ns()
        if answer.ruling is None or not answer.is_about_us or self._is_same_block(answer.ruling, now_ns):
            return
        findings = compare(
            answer.ruling,
            self._limits,
            lambda span_ns: self._taken(span_ns, now_ns),
            now_ns,
            peak=lambda span_ns: self._peak(span_ns, now_ns),
            before=self.findings,
            charged={usage.label: usage.used for usage in self._throttle.usage() if usage.for_each is None},
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
        self._set(replace(self._lessons, findings=findings, lowered=tuple(lowered), cut_off_at_ns=now_ns))
        self._judge()

    def _is_same_block(self, ruling: Ruling, now_ns: int) -> bool:
        since_ns = now_ns - self._lessons.cut_off_at_ns
        if self._lessons.cut_off_at_ns == 0 or since_ns < 0:
            return False
        taken = self._taken(since_ns, now_ns)
        return (taken.connections if ruling.excess is Excess.CONNECTIONS else taken.messages) == 0

    def _taken(self, span_ns: int, now_ns: int) -> Tally:
        return self._throttle.tally(span_ns).less(self._lessons.refused_within(now_ns - span_ns))

    def _peak(self, span_ns: int, now_ns: int) -> Tally:
        # All that was refused may have been in that window: a limit is not cleared by refusals.
        older = self._lessons.refused_within(-1, now_ns - span_ns)
        return self._throttle.peak(span_ns).less(older)

    def _set(self, lessons: Lessons) -> None:
        holds = lessons.under(self._limits, adapts=self._adapts)
        if holds != self._lessons:
            self._lessons = holds
            self._keep(holds)

    def _judge(self) -> None:
        if self._lessons.lowered:
            self._throttle.judge_by(self._in_force(), self._guard_ns)

    def _in_force(self) -> Sequence[Limit]:
        return limits_in_force(self._lessons, self._limits, self._lanes)
