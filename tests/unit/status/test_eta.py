"""The estimate agrees with a window that is simulated slot by slot, and keeps the queue's own rules."""

import heapq

from hypothesis import given
from hypothesis import strategies as st

from relay.mail.envelope import QueueId
from relay.queue.queued import origin_of
from relay.queue.scheduler import Queued, Scheduler
from relay.status.estimate.eta import foretell
from relay.status.estimate.expected import BACK_OFF, Foretold, Mail, Outlook
from relay.throttle.gauge import Limited

T = 1_000
NOW = 10_000


@st.composite
def limits(draw: st.DrawFn) -> Limited:
    opens = draw(st.lists(st.integers(NOW + 1, NOW + T), max_size=12))
    return Limited("few", "messages", draw(st.integers(1, 10)), T, tuple((at, 1) for at in sorted(opens)))


def simulated_starts(waiting: int, limit: Limited, transaction: int) -> list[int]:
    """Start each as soon as fewer than N slots are occupied; each occupies its slot until T after its end."""
    occupied = [at for at, _ in limit.shared]
    heapq.heapify(occupied)
    now, starts = NOW, []
    for _ in range(waiting):
        while occupied and occupied[0] <= now:
            heapq.heappop(occupied)
        while len(occupied) >= limit.count:
            now = heapq.heappop(occupied)
        starts.append(now)
        heapq.heappush(occupied, now + transaction + T)
    return starts


@given(limits(), st.integers(1, 60), st.integers(0, 50))
def test_the_estimate_is_what_a_window_does_slot_by_slot(
    limit: Limited, waiting: int, transaction: int
) -> None:
    outlook = Outlook(NOW, (limit,), connections=1000, transaction_ns=transaction)

    foretold = foretell([Mail(1)] * waiting, outlook)

    starts = simulated_starts(waiting, limit, transaction)
    assert [each.eta_ns for each in foretold] == [start + transaction for start in starts]
    assert [each.held_by for each in foretold] == ["limit few" if start > NOW else "" for start in starts]


@given(st.lists(limits(), max_size=3), st.lists(st.integers(1, 5), max_size=20))
def test_no_other_limit_makes_anything_earlier_and_nobody_overtakes(
    of_all: list[Limited], recipients: list[int]
) -> None:
    mails = [Mail(count) for count in recipients]
    all_of_them = foretell(mails, Outlook(NOW, tuple(of_all), connections=100))

    assert [each.eta_ns for each in all_of_them] == sorted(each.eta_ns for each in all_of_them)
    for limit in of_all:
        alone = foretell(mails, Outlook(NOW, (limit,), connections=100))
        assert all(a.eta_ns <= b.eta_ns for a, b in zip(alone, all_of_them, strict=True))


def test_nothing_waiting_is_nothing_to_foretell() -> None:
    assert foretell([], Outlook(NOW, (Limited("few", "messages", 1, T, ((NOW + 5, 1),)),))) == []


def test_without_limits_all_may_go_at_once_as_far_as_connections_go() -> None:
    foretold = foretell([Mail(1)] * 5, Outlook(NOW, connections=2, transaction_ns=10))

    assert [each.eta_ns - NOW for each in foretold] == [10, 10, 20, 20, 30]
    assert [each.held_by for each in foretold] == ["", "", "connections", "connections", "connections"]


def test_recipients_are_weights_and_a_message_goes_in_parts() -> None:
    outlook = Outlook(NOW, (Limited("r", "recipients", 3, T),), connections=9)

    # Two, then one of three; what is left of it stands behind the third.
    foretold = foretell([Mail(2), Mail(3), Mail(2)], outlook)

    assert [each.eta_ns - NOW for each in foretold] == [0, 2 * T, T]


def test_after_a_pause_one_proves_the_upstream_for_all() -> None:
    outlook = Outlook(
        NOW, connections=5, transaction_ns=10, paused_until_ns=NOW + 700, pause="pause: 421 busy"
    )

    assert foretell([Mail(1)] * 3, outlook) == [
        Foretold(NOW + 710, "pause: 421 busy"),
        Foretold(NOW + 720, "pause: 421 busy"),
        Foretold(NOW + 720, "pause: 421 busy"),
    ]


def test_a_transaction_under_way_proves_the_upstream_for_all() -> None:
    outlook = Outlook(NOW, connections=5, transaction_ns=10, is_proving=True, ends_ns=(NOW + 7,))

    assert [each.eta_ns - NOW for each in foretell([Mail(1)] * 3, outlook)] == [17, 17, 17]


def test_suspects_go_in_their_places_behind_a_proof_under_way() -> None:
    line, mails = Scheduler(), []
    for name, sender in ("a", "bad"), ("b", "bad"), ("c", "good"):
        line.add(Queued(QueueId(name), origin_of(sender), 1, 0, 1))
        mails.append(Mail(1, reverse_path=sender, queue_id=QueueId(name)))
    line.doubt("bad")
    outlook = Outlook(NOW, transaction_ns=10, is_proving=True, ends_ns=(NOW + 7,))

    assert [each.eta_ns - NOW for each in foretell(mails, outlook, line)] == [17, 27, 37]


def test_after_too_much_one_more_goes_than_was_taken() -> None:
    mails = [Mail(20), Mail(2)]
    # 1 beside the one that is under way; 3, and the other message; 8, and the other 8.
    outlook = Outlook(
        now_ns=0, transaction_ns=10, max_recipients=100, connections=2, taken=0, ends_ns=(10,), carried=(1,)
    )

    assert [each.eta_ns for each in foretell(mails, outlook)] == [40, 20]


def test_a_full_key_keeps_back_nobody_else_and_says_whose_it_is() -> None:
    limit = Limited("1 a minute", "messages", 1, T, (), "sender", {"a@x": ((NOW + 300, 1),)})
    mails = [Mail(1, sender="a@x"), Mail(1, sender="a@x"), Mail(1, sender="b@x")]

    assert foretell(mails, Outlook(NOW, (limit,), connections=9)) == [
        Foretold(NOW + 300, "limit 1 a minute (a@x)"),
        Foretold(NOW + 300 + T, "limit 1 a minute (a@x)"),
        Foretold(NOW, ""),
    ]


def test_a_deferred_one_comes_to_the_end_of_the_line_when_it_is_due() -> None:
    outlook = Outlook(NOW, (Limited("few", "messages", 1, T, ((NOW + 100, 1),)),))
    mails = [Mail(1), Mail(1), Mail(1, NOW + 50), Mail(1, NOW + 9 * T)]

    assert foretell(mails, outlook) == [
        Foretold(NOW + 100, "limit few"),
        Foretold(NOW + 100 + T, "limit few"),
        Foretold(NOW + 100 + 2 * T, "limit few"),
        Foretold(NOW + 9 * T, BACK_OFF),
    ]


def test_one_message_proves_a_paused_sender_for_its_others() -> None:
    line, mails = Scheduler(), []
    for name, sender in ("a", "a@x"), ("b", "a@x"), ("c", "b@x"):
        line.add(Queued(QueueId(name), origin_of(sender), 1, 0, 1))
        mails.append(Mail(1, reverse_path=sender, queue_id=QueueId(name)))
    until_ns = line.sender_pauses.begin("a@x", NOW, "553 not yours")

    assert foretell(mails, Outlook(NOW, connections=9, transaction_ns=10), line) == [
        Foretold(until_ns + 10, "sender rests"),
        Foretold(until_ns + 20, "sender rests"),
        Foretold(NOW + 10, ""),
    ]


def test_each_connection_carries_so_many_messages() -> None:
    limit = Limited("1 connection", "connections", 1, T)
    outlook = Outlook(NOW, (limit,), transaction_ns=10, max_messages=2)

    assert [each.eta_ns - NOW for each in foretell([Mail(1)] * 4, outlook)] == [10, 20, T + 10, T + 20]
