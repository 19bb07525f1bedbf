"""The table of a policy file's states, cell by cell."""

import pytest

from relay.daemon.policy_watch import STATES, FileEffect, FileEvent, FileState

DECIDED, RESTING, UNREAD = FileState
SAME, FAULTY, EARLY, DUE, GONE, STILL_GONE = FileEvent
RESTRAIN, RESTORE, REFUSE, APPLY = FileEffect

CELLS = [
    (DECIDED, SAME, DECIDED, []),
    (DECIDED, FAULTY, DECIDED, [REFUSE]),
    (DECIDED, EARLY, RESTING, [RESTRAIN]),
    (DECIDED, DUE, DECIDED, [APPLY]),
    (DECIDED, GONE, UNREAD, [REFUSE]),
    (RESTING, SAME, DECIDED, [RESTORE]),
    (RESTING, FAULTY, DECIDED, [RESTORE, REFUSE]),
    (RESTING, EARLY, RESTING, [RESTRAIN]),
    (RESTING, DUE, DECIDED, [APPLY]),
    (RESTING, GONE, UNREAD, [RESTORE, REFUSE]),
    (UNREAD, FAULTY, DECIDED, [REFUSE]),
    (UNREAD, EARLY, RESTING, [RESTRAIN]),
    (UNREAD, DUE, DECIDED, [APPLY]),
    (UNREAD, GONE, UNREAD, [REFUSE]),
    (UNREAD, STILL_GONE, UNREAD, []),
]
CANNOT_BE = {(DECIDED, STILL_GONE), (RESTING, STILL_GONE), (UNREAD, SAME)}


@pytest.mark.parametrize(("state", "event", "after", "effects"), CELLS)
def test_each_cell_says_what_follows(
    state: FileState, event: FileEvent, after: FileState, effects: list[FileEffect]
) -> None:
    assert STATES[state, event] == (after, tuple(effects))


def test_only_what_cannot_be_is_not_in_the_table() -> None:
    assert {(state, event) for state in FileState for event in FileEvent} - STATES.keys() == CANNOT_BE


def test_tighter_limits_count_only_while_an_edit_rests() -> None:
    for (state, _), (after, effects) in STATES.items():
        is_left = state is RESTING and after is not RESTING
        assert (RESTRAIN in effects) == (after is RESTING)
        assert (RESTORE in effects or APPLY in effects) or not is_left
