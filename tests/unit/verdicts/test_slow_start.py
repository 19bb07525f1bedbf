"""How little goes first after a refusal for too much, and how soon it is tried again."""

from hypothesis import given
from hypothesis import strategies as st

from relay.verdicts.slow_start import SlowStart, largest
from relay.verdicts.verdict import Excess, Ruling, Scope, Verdict

TOO_MUCH = Ruling(Verdict.PAUSE, Scope.UPSTREAM, excess=Excess.MAIL)
OTHER = Ruling(Verdict.PAUSE, Scope.UPSTREAM)


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_whatever_an_upstream_takes_at_all_a_message_goes_through(takes: int, recipients: int) -> None:
    """It takes so many in a window, and whoever exceeds has to wait for the next."""
    slow_start, left, windows = SlowStart(), recipients, 0
    while left:
        room = takes
        while left and (size := min(left, slow_start.largest(100))) <= room:
            left, room = left - size, room - size
            slow_start.took(size)
        if left:
            slow_start.refused(TOO_MUCH, is_again=False)
        windows += 1
        # Never less than half of what it takes, but for the first window, in which too much was tried.
        assert recipients - left >= min(recipients, (windows - 1) * min(takes, 100) // 2)


def test_it_begins_with_one_recipient_and_doubles_up_to_the_usual() -> None:
    slow_start = SlowStart()
    assert slow_start.largest(100) == 100
    slow_start.refused(TOO_MUCH, is_again=False)

    sizes = []
    for _ in range(9):
        sizes.append(slow_start.largest(100))
        slow_start.took(sizes[-1])

    assert sizes == [1, 2, 4, 8, 16, 32, 64, 100, 100]


def test_only_too_much_or_one_more_refusal_of_mail_makes_it_small() -> None:
    slow_start = SlowStart()
    slow_start.refused(OTHER, is_again=False)
    slow_start.refused(None, is_again=False)
    assert largest(7, slow_start.taken) == 7

    slow_start.refused(OTHER, is_again=True)
    assert slow_start.largest(7) == 1
