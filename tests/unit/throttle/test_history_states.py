"""The table of a history's states: each cell, random walks through it, and the page that prints it."""

from hypothesis import given
from hypothesis import strategies as st

from relay.throttle.history_states import TABLE, Event, HistoryEffect, Known, Observation, at_a_start
from tests.unit.throttle import history_page

REPLACES_FIRST = {Known.OUTDATED, Known.DOUBTED}
"""States in which the file may not be added to before it was written anew."""
READS_FIRST = {Known.UNREAD, Known.DOUBTED}
"""States in which memory is not relied on."""


def test_the_page_is_what_the_table_says() -> None:
    assert history_page.PATH.read_text() == history_page.page(), "run `make docs`"


def test_each_cell_keeps_what_the_file_and_memory_are_owed() -> None:
    for event in Event:
        for known in Known:
            after, effect = TABLE[event][known]
            cell = event, known, after, effect
            # A refusal ends all trust in memory.
            assert effect is not HistoryEffect.REFUSE or after in READS_FIRST, cell
            # Only reading the whole file, or writing it, makes memory what counts.
            if known in READS_FIRST and after not in READS_FIRST:
                assert event in {Event.WHOLE, Event.TORN, Event.WRITTEN}, cell
            # Only writing it makes a file fit to be added to again.
            if known in REPLACES_FIRST and after not in REPLACES_FIRST:
                assert event is Event.WRITTEN, cell
            # Nothing is added to a file that was not read, or that a failed sync left in doubt.
            assert effect is not HistoryEffect.ADD_GROUP or known is Known.SOUND, cell
            # A process whose memory counts begins no history.
            assert effect is not HistoryEffect.BEGIN or known in READS_FIRST, cell
            assert (effect is HistoryEffect.CUT) == (event is Event.TORN), cell


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


def test_what_stops_a_relay_stops_one_that_starts() -> None:
    """So `relay fsck` says what a start would do."""
    refused = [
        event for event in Event if any(step.effect is HistoryEffect.REFUSE for step in TABLE[event].values())
    ]
    for event in refused:
        effects = {step.effect for step in TABLE[event].values()}
        if event is not Event.ABSENT:
            found = [Observation(Event.TORN, "cut"), Observation(event, "why"), Observation(Event.OTHER_BOOT)]
            assert effects == {HistoryEffect.REFUSE}
            assert at_a_start(found) == [(found[0], HistoryEffect.CUT), (found[1], HistoryEffect.REFUSE)]
    assert at_a_start([Observation(Event.ABSENT)]) == [(Observation(Event.ABSENT), HistoryEffect.BEGIN)]
