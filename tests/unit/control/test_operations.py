"""The table of verbs, cell by cell."""

import pytest

from relay.control.operations import BUSY, HELD_ALREADY, ONLY_REPORT_LEFT, TABLE, Deed, Verb
from relay.queue.queued import State

CELLS: dict[Verb, tuple[Deed | str, ...]] = {
    # In the order of COLUMNS.
    "hold": (Deed.HOLD, Deed.HOLD, Deed.NOTHING, ONLY_REPORT_LEFT),
    "release": (Deed.NOTHING, Deed.NOTHING, Deed.RELEASE, ONLY_REPORT_LEFT),
    "retry": (Deed.NOTHING, Deed.RETRY, HELD_ALREADY, ONLY_REPORT_LEFT),
    "first": (Deed.FIRST, Deed.FIRST, HELD_ALREADY, ONLY_REPORT_LEFT),
    "bounce": (Deed.BOUNCE, Deed.BOUNCE, Deed.BOUNCE, ONLY_REPORT_LEFT),
    "delete": (Deed.DELETE, Deed.DELETE, Deed.DELETE, Deed.END_REPORT),
    "resume": (Deed.RETRY, Deed.RETRY, Deed.NOTHING, Deed.NOTHING),
    "believe": (Deed.BELIEVE, Deed.BELIEVE, Deed.BELIEVE, Deed.NOTHING),
}
COLUMNS = (State.WAITING, State.DEFERRED, State.HELD, State.REPORTING)


def test_every_verb_says_what_it_does_in_every_state() -> None:
    assert {verb: set(row.deeds) for verb, row in TABLE.items() if row.deeds} == {
        verb: set(State) for verb in CELLS
    }


@pytest.mark.parametrize("verb", CELLS)
def test_each_cell_is_as_the_operator_was_promised(verb: Verb) -> None:
    assert tuple(TABLE[verb].deeds[state] for state in COLUMNS) == CELLS[verb]


@pytest.mark.parametrize("verb", CELLS)
def test_a_message_in_a_transaction_is_left_alone(verb: Verb) -> None:
    assert TABLE[verb].deeds[State.ACTIVE] == BUSY
