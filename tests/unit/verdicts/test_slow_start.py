"""How little goes first after a refusal for too much, and how soon it is tried again."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.verdicts.pause_record import FIRST_NS, rest_ns
from relay.verdicts.slow_start import CALM_NS, SlowStart, largest
from relay.verdicts.verdict import Excess, Ruling, Scope, Span, Verdict

TOO_MUCH = Ruling(Verdict.PAUSE, Scope.UPSTREAM, excess=Excess.MAIL)
AN_HOUR = replace(TOO_MUCH, span=Span.HOUR)
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


def _block(slow_start: SlowStart, at_ns: int, refusals: int, ruling: Ruling = AN_HOUR) -> list[int]:
    return [slow_start.step(ruling, in_a_row, at_ns) for in_a_row in range(refusals)]


def test_a_block_that_comes_again_is_met_one_step_below_its_end() -> None:
    slow_start = SlowStart()

    assert _block(slow_start, 0, 9) == [0, 1, 2, 3, 4, 5, 6, 6, 6]
    assert _block(slow_start, CALM_NS - 1, 3) == [5, 6, 6]


@given(st.lists(st.integers(1, 600), min_size=1, max_size=30))
def test_no_block_is_waited_for_three_times_as_long_as_the_longest(lasts_s: list[int]) -> None:
    """It takes some after each, and refuses again at once."""
    slow_start, now_ns = SlowStart(), 0
    for each_s in lasts_s:
        began_ns, in_a_row = now_ns, 0
        while now_ns < began_ns + each_s * SECOND_NS:
            step = slow_start.step(AN_HOUR, in_a_row, now_ns)
            now_ns += rest_ns(AN_HOUR, in_a_row, lambda _: None, step)
            in_a_row += 1
        assert now_ns - began_ns <= max(FIRST_NS, 3 * max(lasts_s) * SECOND_NS)


def test_an_hour_later_or_for_another_reason_the_back_off_is_new() -> None:
    slow_start = SlowStart()
    _block(slow_start, 0, 5)

    assert _block(slow_start, 1, 1, OTHER) == [0]
    # It may be one message's own fault, told as if it were everybody's.
    assert _block(slow_start, 2, 1, TOO_MUCH) == [0]
    assert _block(slow_start, CALM_NS, 2) == [0, 1]
