"""The table of a history's states: each cell, random walks through it, and the page that prints it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.throttle.history_states import (
    REMEDIES,
    TABLE,
    Event,
    HistoryEffect,
    Known,
    Observation,
    at_a_start,
)
from tests.unit.throttle import history_page

REPLACES_FIRST = {Known.OUTDATED, Known.DOUBTED}
"""States in which the file may not be added to before it was written anew."""
READS_FIRST = {Known.UNREAD, Known.DOUBTED}
"""States in which memory is not relied on."""
REFUSED = {
    event for event in Event if any(step.effect is HistoryEffect.REFUSE for step in TABLE[event].values())
}
CELLS = [(event, known) for event in Event for known in Known]


def test_the_page_is_what_the_table_says() -> None:
    assert history_page.PATH.read_text() == history_page.page(), "run `make docs`"


def test_every_event_has_a_cell_for_every_state() -> None:
    assert list(TABLE) == list(Event)
    assert all(list(row) == list(Known) for row in TABLE.values())


def test_a_refusal_holds_in_every_state_but_a_first_use() -> None:
    for event in REFUSED - {Event.ABSENT}:
        assert {step.effect for step in TABLE[event].values()} == {HistoryEffect.REFUSE}
    assert {
        known for known, step in TABLE[Event.ABSENT].items() if step.effect is HistoryEffect.BEGIN
    } == READS_FIRST


@pytest.mark.parametrize(("event", "known"), CELLS)
def test_a_cell_keeps_what_the_file_and_memory_are_owed(event: Event, known: Known) -> None:
    after, effect = TABLE[event][known]

    # A refusal ends all trust in memory.
    assert effect is not HistoryEffect.REFUSE or after in READS_FIRST
    # Only reading the whole file, or writing it, makes memory what counts.
    if known in READS_FIRST and after not in READS_FIRST:
        assert event in {Event.WHOLE, Event.TORN, Event.WRITTEN}
    # Only writing it makes a file fit to be added to again.
    if known in REPLACES_FIRST and after not in REPLACES_FIRST:
        assert event is Event.WRITTEN
    # Nothing is added to a file that was not read, or that a failed sync left in doubt.
    assert effect is not HistoryEffect.ADD_GROUP or known is Known.SOUND
    # A process whose memory counts begins no history.
    assert effect is not HistoryEffect.BEGIN or known in READS_FIRST
    assert (effect is HistoryEffect.CUT) == (event is Event.TORN)


@given(st.lists(st.sampled_from(Event)))
def test_no_walk_adds_a_group_that_a_power_cut_could_lose(walk: list[Event]) -> None:
    known, is_read, is_synced = Known.UNREAD, False, True
    for event in walk:
        known, effect = TABLE[event][known]
        if effect is HistoryEffect.ADD_GROUP:
            assert is_read
            assert is_synced
        is_read = event in {Event.WHOLE, Event.TORN, Event.WRITTEN, Event.OLD_FORMAT} or (
            is_read and effect in {HistoryEffect.READ_ADDED, HistoryEffect.GO_ON}
        )
        is_synced = event is Event.WRITTEN or (is_synced and event is not Event.UNSYNCED)


@pytest.mark.parametrize("event", REFUSED - {Event.ABSENT}, ids=lambda event: event.name)
def test_what_stops_a_relay_stops_one_that_starts_and_fsck_says_so(event: Event) -> None:
    found = [Observation(Event.TORN, "cut"), Observation(event, "why"), Observation(Event.OTHER_BOOT)]

    assert at_a_start(found) == [(found[0], HistoryEffect.CUT), (found[1], HistoryEffect.REFUSE)]
    # A failed sync is told as the error of the disk that it is.
    assert event in REMEDIES or event is Event.UNSYNCED


def test_a_history_that_never_was_is_begun_at_a_start() -> None:
    assert at_a_start([Observation(Event.ABSENT)]) == [(Observation(Event.ABSENT), HistoryEffect.BEGIN)]
