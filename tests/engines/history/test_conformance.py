"""What every kind of history promises: one suite for all of them."""

import threading
from collections.abc import Callable, Sequence

import pytest

from relay.clock import SECOND_NS
from relay.throttle.history import Ended, Event, History, Share, Slot, moved
from relay.throttle.throttle import Throttle
from tests.engines.history.limits import TRANSACTION_NS, granted, messages, settle
from tests.fakes.clock import FakeClock

Opens = Callable[[], History]


def _slot(number: int, at_s: int) -> Slot:
    shares = (Share("sender", "a:b/c@d.example", 1, 2, 3), Share("recipient_domain", "", 1, 2, 3))
    return Slot(number, at_s * SECOND_NS, (at_s + 5) * SECOND_NS, 1, 2, 3, 4, shares)


def _ended(number: int, at_s: int) -> Ended:
    return Ended(number, at_s * SECOND_NS)


def _rounded(event: Event) -> Event:
    """Round instants to seconds: the round trip to a server makes them later."""
    at_ns = event.at_ns if isinstance(event, Ended) else event.until_ns
    return moved(event, round(at_ns, -9) - at_ns)


def _commit(history: History, *events: Event) -> None:
    with history.transaction() as transaction:
        transaction.commit(events)


def _news(history: History) -> tuple[Sequence[Event], bool]:
    with history.transaction() as transaction:
        return [_rounded(event) for event in transaction.news], transaction.is_whole


def test_a_new_history_is_whole_and_empty_until_the_first_commit(opened: Opens) -> None:
    one, other = opened(), opened()
    with one.transaction() as transaction:
        assert (list(transaction.news), transaction.is_whole) == ([], True)
        transaction.commit([_ended(7, 0)])

    assert _news(other) == ([_ended(7, 0)], True)


def test_a_view_tells_instants_in_boottime_whatever_the_clock_of_the_history(
    opened: Opens, clock: FakeClock
) -> None:
    limits = [messages(2, seconds=60)]
    account = Throttle(opened(), limits, clock, transaction_ns=TRANSACTION_NS)
    account.flush()
    was_empty = account.is_empty
    for _ in range(2):
        settle(account, clock, *granted(account, 1))
        clock.advance(SECOND_NS)
    assert (was_empty, account.is_empty) == (True, False)

    for view in (account, account.judged_by(limits)):
        (usage,) = view.usage()
        opens = [usage.opens_at_ns, *sorted(at_ns for at_ns, _ in usage.openings)]
        for told_ns, in_s in zip(opens, (58, 58, 59), strict=True):
            # A server's clock differs a little from the host's.
            assert abs(told_ns - clock.boottime_ns() - in_s * SECOND_NS) < SECOND_NS // 2


def test_each_reader_gets_each_commit_of_others_once_and_in_order(opened: Opens) -> None:
    one, other = opened(), opened()
    kinds: list[Event] = [_slot(1, 0), _ended(1, 5), _slot(2, -7).ended(9 * SECOND_NS)]
    _commit(one, *kinds)

    assert _news(other) == (kinds, True)
    assert _news(one) == ([], False)
    _commit(other, _ended(2, 6))
    _commit(other, _ended(3, 7))

    assert _news(one) == ([_ended(2, 6), _ended(3, 7)], False)
    assert _news(one) == _news(other) == ([], False)
    assert _news(opened()) == ([*kinds, _ended(2, 6), _ended(3, 7)], True)


def test_after_a_replacement_every_reader_sees_only_the_new_events(opened: Opens) -> None:
    one, other = opened(), opened()
    _commit(one, _slot(1, 0), _slot(2, 0))
    assert len(_news(other)[0]) == 2
    with one.transaction() as transaction:
        transaction.replace([_ended(1, 4), _slot(2, 0)])

    for each in (other, opened()):
        assert _news(each) == ([_ended(1, 4), _slot(2, 0)], True)
    _commit(other, _ended(2, 3))

    assert _news(one) == ([_ended(2, 3)], False)
    assert _news(opened()) == ([_ended(1, 4), _slot(2, 0), _ended(2, 3)], True)


def test_a_long_history_asks_to_be_replaced_until_it_is(opened: Opens) -> None:
    history = opened()
    _commit(history, _ended(1, 0))
    for _ in range(50):
        with history.transaction() as transaction:
            if transaction.is_long:
                transaction.replace([_ended(1, 0)])
                break
            transaction.commit([_ended(1, 2)])
    else:
        pytest.fail("it grew and grew")

    with history.transaction() as transaction:
        assert not transaction.is_long


def test_an_instant_is_boottime_for_each_reader_whatever_the_wall_clock(
    opened: Opens, clock: FakeClock
) -> None:
    _commit(opened(), _ended(1, 5))
    for history in (opened(), opened()):
        clock.advance(SECOND_NS // 4)
        clock.step_wall(-400 * 86_400 * SECOND_NS)
        with history.transaction() as transaction:
            assert transaction.now_ns >= clock.boottime_ns()
            (event,) = transaction.news
            assert isinstance(event, Ended)
            assert abs(event.at_ns - 5 * SECOND_NS) < SECOND_NS


def test_a_transaction_excludes_all_others(opened: Opens) -> None:
    one, other = opened(), opened()
    for each in (one, other):
        _commit(each, _ended(1, 0))
    order: list[str] = []

    def write() -> None:
        with other.transaction() as transaction:
            order.append("other")
            transaction.commit([_ended(3, 0)])

    with one.transaction() as transaction:
        waiting = threading.Thread(target=write)
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        order.append("one")
        transaction.commit([_ended(2, 0)])
    waiting.join()

    assert order == ["one", "other"]
    assert _news(one)[0] == [_ended(3, 0)]


def test_an_exception_in_a_transaction_commits_nothing_and_frees_the_lock(opened: Opens) -> None:
    one, other = opened(), opened()
    with pytest.raises(KeyError), one.transaction():
        raise KeyError

    _commit(other, _ended(1, 0))

    assert _news(one)[0] == [_ended(1, 0)]


def test_a_closed_history_can_be_used_again(opened: Opens) -> None:
    history = opened()
    _commit(history, _ended(1, 0))
    history.close()

    assert _news(history) == ([_ended(1, 0)], True)
