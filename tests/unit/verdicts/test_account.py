"""The state of an account: each cell of its table, the length of pauses, and the record that is kept."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.sender.pausing import parse, render
from relay.verdicts.account import (
    FIRST_NS,
    FOREVER_NS,
    LONGEST_NS,
    PROBE_NS,
    RESTING,
    TABLE,
    AccountState,
    Event,
    EventKind,
    Health,
    OperatorPause,
    PauseRecord,
    at_a_start,
    lapsed,
    max_recipients_now,
    rest_ns,
    step,
    within_ns,
)
from relay.verdicts.verdict import Layer, Rule, Ruling, Scope, Verdict
from relay.verdicts.wording import retry_after_ns, window_in

HOUR_NS = PROBE_NS
PAUSE = OperatorPause(FOREVER_NS, "anna", 0)


def ruling_of(text: str, *, may_probe: bool = True, wait_ns: int | None = None) -> Ruling:
    rule = Rule(
        Layer.OPERATOR, Verdict.PAUSE, Scope.UPSTREAM, "here", "test", may_probe=may_probe, wait_ns=wait_ns
    )
    return Ruling(Verdict.PAUSE, Scope.UPSTREAM, rule, retry_after_ns(text), window_in(text))


TOO_MUCH = Ruling(Verdict.PAUSE, Scope.UPSTREAM, is_too_much=True)
NO_RULING = Ruling(Verdict.PAUSE, Scope.UPSTREAM)


def event(kind: EventKind, at_ns: int = 0, ruling: Ruling = NO_RULING) -> Event:
    pause = PAUSE if kind is EventKind.KEEP else None
    return Event(kind, at_ns, kind.name, ruling, recipients=1, until_ns=at_ns + 60, pause=pause)


# The states that follow used, proving, paused and stopped, for each kind of event.
CELLS = {
    EventKind.PAUSE: "paused paused paused stopped",
    EventKind.STOP: "stopped stopped stopped stopped",
    EventKind.PROOF: "used used paused stopped",
    EventKind.OVER: "used proving proving proving",
    EventKind.RESUME: "used proving proving proving",
    EventKind.EDIT: "used proving proving proving",
    EventKind.KEEP: "used proving paused stopped",
    EventKind.LAPSE: "proving proving paused stopped",
    EventKind.FAULT: "used proving paused stopped",
    EventKind.SOUND: "proving proving paused stopped",
    EventKind.RESTART: "used proving paused stopped",
}


@pytest.mark.parametrize(("health", "kind"), [*product(Health, EventKind)])
def test_each_cell_of_the_table_gives_its_state(health: Health, kind: EventKind) -> None:
    before = AccountState(health, "before", HOUR_NS, in_a_row=1, spans=((0, FOREVER_NS),))
    after = step(before, event(kind, 100))

    expected = dict(zip(Health, CELLS[kind].split(), strict=True))[health]
    assert after.health is TABLE[health, kind] is Health(expected)
    rests = after.health in RESTING or kind in (EventKind.KEEP, EventKind.FAULT)
    assert after.is_resting == rests
    if rests:
        assert after.why
        assert after.spans[-1][1] == FOREVER_NS
    elif before.is_resting:
        assert after.spans == ((0, 100),)
    if after.health is not health and after.health in RESTING:
        assert (after.because, after.in_a_row) == (kind.name, 2)


@given(st.lists(st.sampled_from(EventKind), max_size=30))
def test_each_rest_has_a_span_whatever_happens(kinds: list[EventKind]) -> None:
    state = AccountState()
    for number, kind in enumerate(kinds):
        state = step(state, event(kind, 10 * number))
        assert bool(state.spans and state.spans[-1][1] == FOREVER_NS) == state.is_resting
        assert list(state.spans) == sorted(state.spans)


def test_a_stop_that_allows_no_probe_ends_only_if_somebody_acts() -> None:
    stopped = step(AccountState(), event(EventKind.STOP))
    barred = step(stopped, event(EventKind.STOP, 1, ruling_of("no", may_probe=False)))
    assert (stopped.until_ns, barred.until_ns) == (PROBE_NS, FOREVER_NS)
    assert lapsed(barred, FOREVER_NS - 1) == barred
    assert at_a_start(barred, FOREVER_NS - 1) == barred
    assert step(barred, event(EventKind.EDIT)).health is Health.PROVING


def test_a_later_refusal_extends_a_pause_only_as_far_as_it_asks() -> None:
    paused = step(AccountState(), event(EventKind.PAUSE))
    assert paused.until_ns == FIRST_NS
    assert step(paused, event(EventKind.PAUSE, 9 * SECOND_NS)) == paused
    longer = step(paused, event(EventKind.PAUSE, SECOND_NS, ruling_of("try again in 5 minutes")))
    assert (longer.until_ns, longer.in_a_row) == (301 * SECOND_NS, 1)


def test_repeated_refusals_double_one_pause_until_a_success_or_an_edit() -> None:
    state, now_ns, lengths = AccountState(), 0, []
    for _ in range(8):
        state = step(state, event(EventKind.PAUSE, now_ns))
        lengths.append((state.until_ns - now_ns) // SECOND_NS)
        now_ns = state.until_ns
        state = lapsed(state, now_ns)
        assert state.health is Health.PROVING
    assert lengths == [15, 30, 60, 120, 240, 480, 900, 900]
    assert state.spans == ((0, now_ns),)
    assert step(state, event(EventKind.PAUSE, now_ns)).until_ns - now_ns == LONGEST_NS
    for anew in (EventKind.PROOF, EventKind.EDIT):
        again = step(step(state, event(anew, now_ns)), event(EventKind.PAUSE, now_ns + 1))
        assert (again.until_ns - now_ns - 1, len(again.spans)) == (FIRST_NS, 2)


def test_transactions_have_one_recipient_after_a_refusal_for_too_much_and_then_double() -> None:
    state, sizes = step(AccountState(), event(EventKind.PAUSE, 0, TOO_MUCH)), []
    for _ in range(9):
        sizes.append(max_recipients_now(100, state.taken))
        state = step(state, event(EventKind.PROOF)._replace(recipients=sizes[-1]))
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 100, 100]


def test_a_second_refusal_of_mail_allows_one_recipient_and_one_of_a_connection_all() -> None:
    once = step(step(AccountState(), event(EventKind.PAUSE)), event(EventKind.OVER))
    again = event(EventKind.PAUSE, 1)
    assert max_recipients_now(7, once.taken) == 7
    assert max_recipients_now(7, step(once, again).taken) == 1
    assert max_recipients_now(7, step(once, again._replace(is_mail=False)).taken) == 7


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=40), st.integers(0, 2000))
def test_the_time_paused_is_the_number_of_paused_instants(script: list[tuple[int, bool]], since: int) -> None:
    state, paused, now = AccountState(), [False] * 2100, 0
    for after, begins in script:
        if state.is_resting:
            paused[now : now + after] = [True] * after
        now += after
        state = step(state, event(EventKind.KEEP if begins else EventKind.RESUME, now))
        assert state.is_resting == begins
    assert within_ns(state.spans, since, now) == sum(paused[since:now])
    # A pause that goes on belongs to the last span.
    again = step(replace(state, operator=None, in_a_row=1), event(EventKind.KEEP, now))
    assert len(again.spans) == max(1, len(state.spans))


@pytest.mark.parametrize(
    ("ruling", "step_", "oldest_leaves_in", "expected"),
    [
        # If the reply asks for no time, the back-off doubles.
        (None, 0, None, FIRST_NS),
        (ruling_of("no"), 3, None, FIRST_NS * 8),
        (ruling_of("no"), 99, None, LONGEST_NS),
        # The time that the reply asks for is kept, and grows if it did not help.
        (ruling_of("try again in 5 seconds"), 0, None, 5 * SECOND_NS),
        (ruling_of("try again in 5 seconds"), 3, None, FIRST_NS * 8),
        (ruling_of("try again in 2 hours"), 3, None, 2 * HOUR_NS),
        # If the reply names a window, our history says when it has room.
        (ruling_of("100 messages per hour exceeded"), 0, HOUR_NS // 3, HOUR_NS // 3),
        (ruling_of("100 messages per hour exceeded"), 0, None, FIRST_NS),
        # If a probe makes it worse, the relay waits for the whole window.
        (ruling_of("daily limit", may_probe=False), 0, 1, 24 * HOUR_NS),
        (ruling_of("no", may_probe=False), 0, None, PROBE_NS),
        (ruling_of("no", may_probe=False, wait_ns=7 * PROBE_NS), 0, None, 7 * PROBE_NS),
    ],
)
def test_a_pause_is_as_long_as_the_reply_the_rule_and_the_history_say(
    ruling: Ruling | None, step_: int, oldest_leaves_in: int | None, expected: int
) -> None:
    assert rest_ns(ruling, step_, oldest_leaves_in) == expected


STATE = AccountState(Health.PAUSED, "421 4.7.0 no", 800, in_a_row=2, spans=((100, 200), (400, FOREVER_NS)))
RECORD = PauseRecord("here", 500, 9_000, STATE)


def test_a_record_reads_back_unchanged() -> None:
    state = replace(STATE, taken=7, operator=OperatorPause(900, "Zo\u00eb", 7), fault="damaged")
    read = parse(render(replace(RECORD, state=state)), "pause")
    assert (read.state, read.state.taken) == (state, 7)


@pytest.mark.parametrize(("old", "new"), [(b"{", b""), (b"paused", b"pause"), (b"800", b"8e99")])
def test_a_damaged_record_raises_value_error(old: bytes, new: bytes) -> None:
    content = render(RECORD)
    assert old in content
    with pytest.raises(ValueError, match="not a pause record"):
        parse(content.replace(old, new, 1), "pause")


@given(st.integers(0, 10**18), st.integers(-(10**18), 10**18))
def test_after_a_reboot_the_wall_clock_says_how_much_pause_is_left(now_ns: int, off_ns: int) -> None:
    assert RECORD.state_at("here", now_ns, RECORD.wall_ns + off_ns) == STATE
    state = at_a_start(RECORD.state_at("there", now_ns, RECORD.wall_ns + off_ns), now_ns)
    assert state.until_ns - now_ns == 300 - max(0, off_ns)
    assert [end - begin for begin, end in state.spans[:-1]] == [100]
    assert state.spans[-1][1] == (FOREVER_NS if state.until_ns > now_ns else state.until_ns)


@pytest.mark.parametrize(
    ("state", "health", "is_resting"),
    [
        (STATE, Health.PAUSED, True),
        (replace(STATE, until_ns=600), Health.PROVING, False),
        # The operator may have corrected the password.
        (replace(STATE, health=Health.STOPPED), Health.PROVING, False),
        (replace(STATE, health=Health.STOPPED, until_ns=FOREVER_NS), Health.STOPPED, True),
        (AccountState(operator=PAUSE), Health.USED, True),
        (AccountState(operator=replace(PAUSE, until_ns=600)), Health.PROVING, False),
        (AccountState(fault="damaged", fault_until_ns=900), Health.USED, False),
    ],
)
def test_a_start_continues_the_pauses_that_are_not_over(
    state: AccountState, health: Health, *, is_resting: bool
) -> None:
    started = at_a_start(state, 700)
    assert (started.health, started.is_resting) == (health, is_resting)


def test_repeated_faults_of_the_history_are_one_pause_until_somebody_acts() -> None:
    state = AccountState()
    for kind, at_ns in ((EventKind.FAULT, 100), (EventKind.FAULT, 360), (EventKind.RESUME, 400)):
        state = step(state, event(kind, at_ns))
    assert step(state, event(EventKind.SOUND, 401)).spans == ((100, 400),)


@pytest.mark.parametrize(("rests_until", "paused_until"), [(115, 3700), (3700, 115)])
def test_pauses_over_at_one_look_count_until_the_last_of_them(rests_until: int, paused_until: int) -> None:
    asked = OperatorPause(paused_until, "anna", 0)
    state = replace(step(AccountState(), event(EventKind.PAUSE, 100)), until_ns=rests_until)
    state = step(state, Event(EventKind.KEEP, 100, pause=asked))
    after = lapsed(state, 5000)
    assert (after.health, after.operator, after.spans) == (Health.PROVING, None, ((100, 3700),))
