"""Pauses: what they take off an age, and what of them survives a restart and a reboot."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.sender.state_file import PAUSE_FORMAT
from relay.verdicts.operator_pause import FOREVER_NS
from relay.verdicts.pause_record import (
    FIRST_NS,
    LONGEST_NS,
    MOST_SPANS,
    PROBE_NS,
    PauseRecord,
    Pauses,
    rest_ns,
)
from relay.verdicts.retry_after import LONGEST_BELIEVED_NS, LONGEST_RETRY_NS, retry_after_ns
from relay.verdicts.verdict import Layer, Rule, Ruling, Scope, Verdict, named_of, span_of

RECORD = PauseRecord("here", 500, 9_000, "421 4.7.0 no", 800, 2, ((100, 200), (400, FOREVER_NS)))

steps = st.lists(st.tuples(st.integers(1, 50), st.sampled_from(["begin", "go on", "end"])), max_size=40)


@given(steps, st.integers(0, 2000), st.integers(0, 2000))
def test_the_time_paused_is_that_of_the_instants_that_were_paused(
    script: list[tuple[int, str]], since: int, until: int
) -> None:
    pauses, paused, now, last_begin = Pauses(), [False] * 2100, 0, 0
    is_paused = False
    for after, step in script:
        if is_paused:
            paused[now : now + after] = [True] * after
        now += after
        if step == "end":
            pauses.end(now)
            is_paused = False
        elif not is_paused:
            if step == "go on" and pauses.spans:
                paused[last_begin:now] = [True] * (now - last_begin)
            else:
                last_begin = now
            pauses.begin(now, goes_on=step == "go on")
            is_paused = True
    if is_paused:
        paused[now:] = [True] * (len(paused) - now)
    assert pauses.within_ns(since, until) == sum(paused[since:until])


def test_memory_is_bounded_and_of_equals_the_oldest_goes_first() -> None:
    pauses = Pauses()
    for number in range(MOST_SPANS + 10):
        pauses.begin(number * 10, goes_on=False)
        pauses.end(number * 10 + 1)
    assert len(pauses.spans) == MOST_SPANS
    assert pauses.within_ns(0, 100) == 0
    assert pauses.within_ns(100, 100_000) == MOST_SPANS


@given(st.lists(st.integers(1, 1000), min_size=MOST_SPANS, max_size=MOST_SPANS + 40))
def test_no_pause_is_forgotten_that_is_longer_than_a_remembered_one(lengths: list[int]) -> None:
    pauses, now = Pauses(), 0
    for length in lengths:
        pauses.begin(now, goes_on=False)
        pauses.end(now + length)
        now += length + 1
    # The last is remembered whatever its length: the next one may go on with it.
    longest = sum(sorted(lengths[:-1], reverse=True)[: MOST_SPANS - 1]) + lengths[-1]
    assert pauses.within_ns(0, now) == longest


def test_a_stop_of_days_is_no_age_however_many_short_pauses_follow() -> None:
    pauses, day_ns = Pauses(), 86400 * SECOND_NS
    pauses.begin(0, goes_on=False)
    pauses.end(4 * day_ns)
    for number in range(2 * MOST_SPANS):
        pauses.begin(4 * day_ns + 10 * number + 5, goes_on=False)
        pauses.end(4 * day_ns + 10 * number + 6)
    assert pauses.within_ns(0, 5 * day_ns) >= 4 * day_ns


apart = st.lists(st.integers(0, 300), max_size=12).map(
    lambda edges: tuple(zip(*[iter(sorted(edges))] * 2, strict=False))
)


@given(apart, apart, st.integers(0, 300), st.integers(0, 300))
def test_an_instant_that_is_paused_twice_counts_once(
    paused: tuple[tuple[int, int], ...], beside: tuple[tuple[int, int], ...], since: int, until: int
) -> None:
    instants = [any(begin <= at < end for begin, end in (*paused, *beside)) for at in range(300)]
    assert Pauses(paused).within_ns(since, until, beside) == sum(instants[since:until])


spans = st.lists(st.integers(-(10**18), 10**18), max_size=20).map(
    lambda edges: tuple(zip(*[iter(sorted(edges))] * 2, strict=False))
)
records = st.builds(
    PauseRecord,
    boot_id=st.text(max_size=40),
    written_at_ns=st.integers(0, 10**18),
    wall_ns=st.integers(0, 2 * 10**18),
    because=st.text(max_size=80),
    until_ns=st.integers(0, 10**18),
    in_a_row=st.integers(0, 1000),
    spans=spans,
)


@given(records)
def test_a_record_reads_back_as_it_was(record: PauseRecord) -> None:
    assert PAUSE_FORMAT.parse(PAUSE_FORMAT.render(record)) == record


@given(st.binary(max_size=200))
def test_any_octets_are_a_record_or_a_value_error(octets: bytes) -> None:
    with contextlib.suppress(ValueError):
        PAUSE_FORMAT.parse(octets)


@given(records, st.integers(0, 300), st.binary(max_size=3))
def test_a_damaged_record_is_a_record_or_a_value_error(
    record: PauseRecord, place: int, octets: bytes
) -> None:
    content = PAUSE_FORMAT.render(record)
    with contextlib.suppress(ValueError):
        PAUSE_FORMAT.parse(content[:place] + octets + content[place + len(octets) :])


@pytest.mark.parametrize("edges", [((5, 3),), ((1, 9), (3, 4)), ((0, FOREVER_NS + 1),)])
def test_instants_out_of_order_are_no_record(edges: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="out of order"):
        PAUSE_FORMAT.parse(PAUSE_FORMAT.render(replace(RECORD, spans=edges)))


def test_within_a_boot_a_record_is_as_written_by_any_wall_clock() -> None:
    assert RECORD.moved("here", 600, 10**18, _unknown) == RECORD


@given(st.integers(0, 10**18), st.integers(-(10**18), 10**18))
def test_after_a_reboot_the_wall_clock_says_how_much_pause_is_left(now_ns: int, off_ns: int) -> None:
    moved = RECORD.moved("there", now_ns, RECORD.wall_ns + off_ns, _unknown)
    left_before_ns = RECORD.until_ns - RECORD.written_at_ns
    assert moved.until_ns - now_ns == left_before_ns - max(0, off_ns)
    assert [end - begin for begin, end in moved.spans[:-1]] == [100]
    assert moved.spans[-1][1] == (FOREVER_NS if moved.until_ns > now_ns else moved.until_ns)
    assert moved.boot_id == "there"


def test_a_day_off_is_a_day_of_pause_less() -> None:
    day_ns = 86400 * SECOND_NS
    record = replace(RECORD, until_ns=500 + 2 * day_ns)
    assert record.moved("there", 5, 9_000 + day_ns, _unknown).until_ns == 5 + day_ns


@given(st.integers(0, 10**18), st.integers(-(10**18), 10**18))
def test_when_it_was_paused_is_told_without_the_wall_clock(now_ns: int, off_ns: int) -> None:
    # All but the last 50 ns of the other boot was witnessed, and this boot began with the record.
    moved = RECORD.moved("there", now_ns, RECORD.wall_ns + off_ns, lambda _boot, at_ns: min(at_ns, 450) - 450)
    assert moved.spans[0] == (-350, -250)
    assert moved.spans[1] == (-50, FOREVER_NS if moved.until_ns > now_ns else 0)


def _unknown(_boot_id: str, _at_ns: int) -> None:
    return None


def _ruling(text: str, *, may_probe: bool = True, wait_ns: int | None = None) -> Ruling:
    rule = Rule(
        Layer.OPERATOR, Verdict.PAUSE, Scope.UPSTREAM, "here", "test", may_probe=may_probe, wait_ns=wait_ns
    )
    return Ruling(Verdict.PAUSE, Scope.UPSTREAM, rule, retry_after_ns(text), span_of(text))


def _nothing(_span_ns: int) -> None:
    return None


@given(st.integers(0, 100))
def test_without_a_word_of_how_long_the_back_off_doubles(in_a_row: int) -> None:
    assert rest_ns(None, in_a_row, _nothing) == min(LONGEST_NS, FIRST_NS * 2**in_a_row)
    assert rest_ns(_ruling("no"), in_a_row, _nothing) == rest_ns(None, in_a_row, _nothing)


def test_the_time_asked_for_is_kept_to_and_grows_if_it_did_not_help() -> None:
    ruling = _ruling("try again in 5 seconds")
    assert rest_ns(ruling, 0, _nothing) == 5 * SECOND_NS
    assert rest_ns(ruling, 3, _nothing) == FIRST_NS * 8
    assert rest_ns(_ruling("try again in 2 hours"), 3, _nothing) == 7200 * SECOND_NS


def test_where_a_window_is_named_our_history_says_when_it_has_room() -> None:
    asked: list[int] = []

    def leaves_in_ns(span_ns: int) -> int:
        asked.append(span_ns)
        return 1234 * SECOND_NS

    assert rest_ns(_ruling("100 messages per hour exceeded"), 0, leaves_in_ns) == 1234 * SECOND_NS
    assert asked == [3600 * SECOND_NS]
    assert rest_ns(_ruling("100 messages per hour exceeded"), 0, _nothing) == FIRST_NS


def test_a_window_that_is_named_in_seconds_is_one_too() -> None:
    text = "you have exceeded your sending limit of 50 recipients per 900s"
    ruling = replace(_ruling(text), named=named_of(text))

    assert ruling.span is None
    assert rest_ns(ruling, 0, lambda span_ns: span_ns - 1) == 900 * SECOND_NS - 1
    assert rest_ns(ruling, 0, _nothing) == FIRST_NS


def test_a_back_off_that_began_further_on_yields_to_what_is_asked() -> None:
    assert rest_ns(_ruling("no"), 0, _nothing, step=5) == FIRST_NS * 32
    assert rest_ns(_ruling("try again in 5 seconds"), 0, _nothing, step=5) == 5 * SECOND_NS
    assert rest_ns(_ruling("try again in 5 seconds"), 1, _nothing, step=5) == FIRST_NS * 32


def test_where_a_look_makes_it_worse_the_whole_window_is_waited_for() -> None:
    assert rest_ns(_ruling("daily limit", may_probe=False), 0, lambda _: 1) == 86400 * SECOND_NS
    assert rest_ns(_ruling("no", may_probe=False), 0, _nothing) == PROBE_NS
    assert rest_ns(_ruling("no", may_probe=False, wait_ns=7 * PROBE_NS), 0, _nothing) == 7 * PROBE_NS


def test_what_the_shield_asked_is_kept_and_may_be_missing() -> None:
    asked = replace(RECORD, doubts="10 recipients in a row were refused alike")
    assert PAUSE_FORMAT.parse(PAUSE_FORMAT.render(asked)) == asked
    assert PAUSE_FORMAT.parse(PAUSE_FORMAT.render(RECORD).replace(b',\n "doubts": ""', b"")) == RECORD
    assert b"doubts" not in PAUSE_FORMAT.render(RECORD).replace(b',\n "doubts": ""', b"")


@given(st.integers(1, 10**8 - 1), st.integers(0, 999_999), st.sampled_from(["s", "min", "hours", "days"]))
def test_whatever_window_is_named_there_is_a_day_of_another_look(count: int, number: int, unit: str) -> None:
    text = f"limit of {count} messages per {number} {unit} exceeded"
    for may_probe, longest_ns in ((True, LONGEST_RETRY_NS), (False, LONGEST_BELIEVED_NS)):
        ruling = replace(_ruling(text, may_probe=may_probe), named=named_of(text))
        assert rest_ns(ruling, 0, lambda span_ns: span_ns) <= longest_ns


def test_no_look_that_does_no_harm_is_put_off_for_a_month() -> None:
    assert rest_ns(_ruling("monthly limit"), 0, lambda span_ns: span_ns) == LONGEST_RETRY_NS
    month_ns = 31 * 86400 * SECOND_NS
    assert rest_ns(_ruling("monthly limit", may_probe=False), 0, _nothing) == month_ns
