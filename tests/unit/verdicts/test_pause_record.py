"""Pauses: what they take off an age, and what of them survives a restart and a reboot."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.sender.state_file import PAUSE_FORMAT
from relay.verdicts.operator_pause import FOREVER_NS
from relay.verdicts.pause_record import (
    FIRST_NS,
    LONGEST_NS,
    PROBE_NS,
    PauseRecord,
    Pauses,
    rest_ns,
)
from relay.verdicts.retry_after import retry_after_ns
from relay.verdicts.verdict import Layer, Rule, Ruling, Scope, Verdict, span_of

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


def test_where_a_look_makes_it_worse_the_whole_window_is_waited_for() -> None:
    assert rest_ns(_ruling("daily limit", may_probe=False), 0, lambda _: 1) == 86400 * SECOND_NS
    assert rest_ns(_ruling("no", may_probe=False), 0, _nothing) == PROBE_NS
    assert rest_ns(_ruling("no", may_probe=False, wait_ns=7 * PROBE_NS), 0, _nothing) == 7 * PROBE_NS
