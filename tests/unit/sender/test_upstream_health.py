"""The state of an upstream, carried out: laws under any order of happenings, and old records."""

import io

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from relay.clock import SECOND_NS
from relay.sender.state_file import PAUSE_FORMAT
from relay.sender.upstream_health import NEVER_NS, Pausing
from relay.smtp.reply import Phase
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from relay.telemetry.telemetry import Telemetry
from relay.throttle.limit_hints import Tally
from relay.verdicts.health import RESTING, Happening, Health
from relay.verdicts.operator_pause import PauseAsked
from relay.verdicts.outcome import Answer, Outcome
from relay.verdicts.pause_record import PROBE_NS, PauseRecord
from relay.verdicts.verdict import Excess, Layer, Rule, Ruling, Scope, Verdict
from tests.fakes.clock import FakeClock

WELL = Outcome((Answer(Verdict.RELAYED, Phase.EOD, None, "250 ok"),))


def refusal(happening: Happening, asked_ns: int | None = None, *, text: str = "") -> Answer:
    verdict = Verdict.PAUSE if happening is Happening.PAUSE else Verdict.STOP
    by = Rule(
        Layer.OPERATOR,
        verdict,
        Scope.UPSTREAM,
        "here",
        "test",
        may_probe=happening is not Happening.BAR,
        wait_ns=asked_ns,
    )
    ruling = Ruling(verdict, Scope.UPSTREAM, by, excess=Excess.MAIL)
    is_doubted = happening is Happening.DOUBT
    return Answer(verdict, Phase.MAIL, None, text or happening.name, ruling=ruling, is_doubted=is_doubted)


class OneUpstream:
    """A `Pausing` whose clock a test moves, and which may be started anew."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.log = io.StringIO()
        self.events = Events(self.log, "text", self.clock)
        self.metrics = Metrics(self.clock)
        self.metrics.know_upstreams(["isp"])
        self.kept: list[PauseRecord] = []
        self.compared = 0
        self.pausing = self._new()

    def _new(self) -> Pausing:
        return Pausing(
            "isp",
            Telemetry(self.events, self.metrics, self.clock),
            keep=self.kept.append,
            leaves_in_ns=lambda _: None,
            lessons=self,
            here=lambda _, at_ns: at_ns,
        )

    def not_taken(self, refused: Tally) -> None:
        pass

    def refused(self, answer: Answer) -> None:  # noqa: ARG002 - only that it was told counts
        self.compared += 1

    def restart(self) -> None:
        self.pausing = self._new()
        if self.kept:
            self.pausing.recall(PAUSE_FORMAT.parse(PAUSE_FORMAT.render(self.kept[-1])))

    def refuse(self, happening: Happening, asked_ns: int | None = None) -> None:
        self.pausing.rest(refusal(happening, asked_ns), Tally(1, 1))

    def may_send(self) -> bool:
        """Return whether a transaction could begin now, as the dispatcher asks."""
        is_over = self.pausing.until_ns(self.clock.boottime_ns()) is None
        # The dispatcher reads the history anew before it sends.
        return is_over and self.pausing.health is not Health.UNCOUNTED


class Walk(RuleBasedStateMachine):
    """Whatever happens to an upstream, in whatever order."""

    @initialize()
    def begin(self) -> None:
        self.upstream = OneUpstream()
        self.not_before_ns: float = 0
        """Before that, by what the upstream asked for, nothing may be sent."""
        self.is_barred = self.is_doubted = False
        self.began_ns = self.upstream.clock.boottime_ns()
        self.rested_ns = 0
        self.health = Health.USED
        self.paused_until_ns: float = 0
        """Before that, by the operator's word, nothing may be sent."""

    @property
    def now_ns(self) -> int:
        return self.upstream.clock.boottime_ns()

    @property
    def pausing(self) -> Pausing:
        return self.upstream.pausing

    @rule(asked_s=st.none() | st.integers(1, 90_000))
    def is_paused(self, asked_s: int | None) -> None:
        is_stopped = self.pausing.is_refused
        asked_ns = None if asked_s is None else asked_s * SECOND_NS
        self.upstream.refuse(Happening.PAUSE, asked_ns)
        if not is_stopped:
            # What comes within the same second adds nothing.
            self.not_before_ns = max(self.not_before_ns, self.now_ns + (asked_ns or 0) - SECOND_NS)
        assert not self.upstream.may_send()

    @rule(asked_s=st.none() | st.integers(1, 90_000))
    def is_stopped(self, asked_s: int | None) -> None:
        is_new = not self.pausing.is_refused
        asked_ns = None if asked_s is None else asked_s * SECOND_NS
        self.upstream.refuse(Happening.STOP, asked_ns)
        if is_new:
            self.not_before_ns = max(self.not_before_ns, self.now_ns + max(PROBE_NS, asked_ns or 0))
        assert not self.upstream.may_send()

    @rule()
    def is_stopped_by_the_shield(self) -> None:
        self.upstream.refuse(Happening.DOUBT)
        self.is_doubted = True
        assert not self.upstream.may_send()

    @rule()
    def is_barred_from_probing(self) -> None:
        self.upstream.refuse(Happening.BAR)
        self.is_barred = True
        assert not self.upstream.may_send()

    @rule()
    def relays(self) -> None:
        self.pausing.feel(WELL, self.now_ns)
        self.is_doubted = self.is_doubted and self.pausing.is_stopped

    @rule(seconds=st.integers(1, 100_000))
    def time_passes(self, seconds: int) -> None:
        if self.pausing.health in RESTING or self.pausing.operator is not None:
            # Where nobody runs, and so nobody looks, it ends at its instant.
            left_ns = self.pausing.rests_until_ns - self.now_ns
            self.rested_ns += max(0, min(seconds * SECOND_NS, left_ns))
        self.upstream.clock.advance(seconds * SECOND_NS)

    @rule()
    def two_years_pass(self) -> None:
        self.time_passes(2 * NEVER_NS // SECOND_NS)

    @rule()
    def somebody_acts(self) -> None:
        self.pausing.end()
        self.not_before_ns, self.is_barred, self.is_doubted = 0, False, False
        self.paused_until_ns = 0
        assert self.upstream.may_send()

    @rule()
    def the_account_is_edited(self) -> None:
        self.pausing.edited()
        self.not_before_ns, self.is_barred, self.is_doubted = 0, False, False

    @rule(seconds=st.none() | st.integers(1, 200_000))
    def the_operator_pauses(self, seconds: int | None) -> None:
        asked = PauseAsked("anna", None if seconds is None else seconds * SECOND_NS)
        pause = asked.begun(self.now_ns, self.upstream.clock.wall_ns())
        self.pausing.keep_back(pause)
        self.paused_until_ns = pause.until_ns
        assert not self.upstream.may_send()

    @rule(seconds=st.integers(1, 600))
    def history_fails(self, seconds: int) -> None:
        if self.upstream.may_send() or self.pausing.health is Health.UNCOUNTED:
            until_ns = self.pausing.stop("torn", seconds * SECOND_NS)
            assert until_ns == self.now_ns + seconds * SECOND_NS
        else:
            # A refusal came while it was read.
            assert self.pausing.stop("torn", seconds * SECOND_NS) == self.pausing.paused_until_ns
        assert not self.upstream.may_send()

    @precondition(lambda self: self.pausing.until_ns(self.now_ns) is None)
    @rule()
    def history_is_sound(self) -> None:
        self.pausing.trust_history()

    @rule()
    def restarts(self) -> None:
        was = self.pausing.health
        is_kept = self.upstream.kept and self.upstream.kept[-1].because
        until_ns = self.pausing.paused_until_ns
        self.upstream.restart()
        if was in {Health.REFUSED, Health.UNCOUNTED} and not is_kept:
            # Whoever starts us may have mended the password.
            self.not_before_ns = 0
        elif was in RESTING - {Health.UNCOUNTED} and self.pausing.health in RESTING:
            assert self.pausing.health is was
            assert self.pausing.paused_until_ns == until_ns
        self.health = Health.PROVING if self.pausing.health is Health.PROVING else self.health

    @invariant()
    def nothing_is_sent_before_its_time(self) -> None:
        if self.now_ns < self.not_before_ns or self.is_barred:
            assert not self.upstream.may_send()

    @invariant()
    def only_its_time_or_its_word_ends_an_operators_pause(self) -> None:
        if self.now_ns < self.paused_until_ns:
            assert not self.upstream.may_send()
            assert not self.pausing.is_used
        else:
            self.upstream.may_send()
            assert self.pausing.operator is None

    @invariant()
    def what_the_shield_asks_is_kept_over_a_restart(self) -> None:
        if self.is_doubted:
            assert self.upstream.kept[-1].doubts or self.is_barred

    @invariant()
    def after_a_rest_it_is_proven_before_it_is_used(self) -> None:
        self.upstream.may_send()
        before, self.health = self.health, self.pausing.health
        assert not (before in RESTING and self.health is Health.USED)

    @invariant()
    def it_tells_why_it_rests_and_only_then(self) -> None:
        rests = self.pausing.health in RESTING or self.pausing.operator is not None
        assert (self.pausing.because != "") == rests

    @invariant()
    def no_time_of_a_rest_is_an_age(self) -> None:
        assert self.pausing.paused_ns(self.began_ns, self.now_ns) >= self.rested_ns

    @invariant()
    def its_counts_agree_with_what_it_is(self) -> None:
        if self.pausing.health is Health.USED:
            assert self.pausing.in_a_row == 0


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def rest_of_the_next_refusal_s(upstream: OneUpstream) -> int:
    upstream.refuse(Happening.PAUSE)
    return (upstream.pausing.paused_until_ns - upstream.clock.boottime_ns()) // SECOND_NS


def test_a_pause_is_doubled_until_somebody_acts() -> None:
    upstream = OneUpstream()
    rests_s = []
    for _ in range(4):
        rests_s.append(rest_of_the_next_refusal_s(upstream))
        upstream.clock.advance(rests_s[-1] * SECOND_NS)
        assert upstream.may_send()

    upstream.pausing.end()

    assert [*rests_s, rest_of_the_next_refusal_s(upstream)] == [15, 30, 60, 120, 15]


def test_while_one_message_goes_first_the_last_refusal_is_shown() -> None:
    upstream = OneUpstream()
    upstream.refuse(Happening.PAUSE)
    assert upstream.pausing.proving_after == ""

    upstream.clock.advance(20 * SECOND_NS)
    assert upstream.may_send()

    assert (upstream.pausing.because, upstream.pausing.proving_after) == ("", "PAUSE")
    upstream.pausing.feel(WELL)
    assert upstream.pausing.proving_after == ""


def test_a_history_that_fails_in_a_pause_does_not_end_the_pause_early() -> None:
    upstream = OneUpstream()
    upstream.refuse(Happening.PAUSE, PROBE_NS)
    # A decision was under way when the refusal came.
    upstream.pausing.stop("torn", 60 * SECOND_NS)
    upstream.clock.advance(60 * SECOND_NS)
    upstream.pausing.until_ns(upstream.clock.boottime_ns())
    upstream.pausing.trust_history()

    assert not upstream.may_send()
    assert upstream.kept[-1].because == "PAUSE"


@pytest.mark.parametrize("is_restarted", [False, True], ids=["goes on", "is restarted"])
@pytest.mark.parametrize("happening", [Happening.PAUSE, Happening.DOUBT, Happening.BAR])
def test_a_refusal_while_the_history_fails_is_not_forgotten(
    happening: Happening, *, is_restarted: bool
) -> None:
    upstream = OneUpstream()
    upstream.pausing.stop("torn", 60 * SECOND_NS)
    upstream.refuse(happening, 600 * SECOND_NS)
    upstream.clock.advance(60 * SECOND_NS)
    if is_restarted:
        upstream.restart()
    else:
        assert upstream.pausing.until_ns(upstream.clock.boottime_ns()) is None
        upstream.pausing.trust_history()

    assert upstream.pausing.because == happening.name
    assert not upstream.may_send()


def test_a_refusal_that_forbids_probes_counts_in_a_stop_too() -> None:
    upstream = OneUpstream()
    upstream.refuse(Happening.STOP)
    upstream.refuse(Happening.BAR)
    upstream.clock.advance(2 * NEVER_NS)

    assert not upstream.may_send()
    # Nor does it look again and again for that.
    until_ns = upstream.pausing.until_ns(upstream.clock.boottime_ns())
    assert until_ns is not None
    assert until_ns > upstream.clock.boottime_ns()
