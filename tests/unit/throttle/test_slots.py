"""What is known of the past: bounded, never rounded down, and the same for any limits."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.throttle import admission
from relay.throttle.admission import Grant, Request, TooLarge, Wait
from relay.throttle.compaction import KEEP_NS
from relay.throttle.history_format import UNKNOWN, Charged, Ended, Record, Reserved, Share
from relay.throttle.slots import EXACT_ENDS, Slots
from tests.unit.throttle.limits import TRANSACTION_NS, PerPeriod, messages, recipients

DAY_NS = 86_400 * SECOND_NS


def _reserve(slots: Slots, recipients: int, transaction_ns: int, now_ns: int) -> Reserved | Wait:
    answer = slots.reserve(Request(recipients), transaction_ns, now_ns)
    assert not isinstance(answer, TooLarge)
    return answer if isinstance(answer, Wait) else answer.reserved


def _charged(slots: Slots, now_ns: int) -> list[Charged]:
    return [record for record in slots.records(now_ns) if isinstance(record, Charged)]


def test_a_reservation_counts_as_ended_at_its_deadline() -> None:
    slots = Slots()
    slots.judge_by([messages(1, seconds=10)], 0)
    _reserve(slots, 1, 5 * SECOND_NS, now_ns=0)

    before = _reserve(slots, 1, 5 * SECOND_NS, now_ns=15 * SECOND_NS - 1)
    after = _reserve(slots, 1, 5 * SECOND_NS, now_ns=15 * SECOND_NS)
    assert (isinstance(before, Wait), isinstance(after, Reserved)) == (True, True)


def test_an_end_is_counted_once_whoever_tells_of_it_and_however_often() -> None:
    slots = Slots()
    slots.judge_by([messages(3, seconds=10)], 0)
    reserved = _reserve(slots, 1, TRANSACTION_NS, now_ns=0)
    assert isinstance(reserved, Reserved)

    slots.settle(Ended(reserved.id, 5))
    slots.learn([Ended(reserved.id, 7), Ended(12345, 8)])

    assert slots.ask(admission.usage, 9)[0].used == 1
    assert slots.ask(admission.usage, 10 * SECOND_NS + 5)[0].used == 0


def test_ids_are_unique_though_the_clock_stands_still() -> None:
    slots = Slots()
    slots.judge_by([messages(50, seconds=1)], 0)

    answers = [_reserve(slots, 1, TRANSACTION_NS, now_ns=77) for _ in range(50)]

    assert len({answer.id for answer in answers if isinstance(answer, Reserved)}) == 50


def test_a_message_is_no_connection_and_a_connection_is_no_message() -> None:
    slots = Slots()
    slots.judge_by([messages(3, seconds=10)], 0)
    reserved, connection = _reserve(slots, 2, TRANSACTION_NS, 0), slots.reserve_connection(TRANSACTION_NS, 0)

    assert isinstance(reserved, Reserved)
    assert isinstance(connection, Reserved)
    assert (reserved.messages, reserved.recipients, reserved.connections) == (1, 2, 0)
    assert (connection.messages, connection.recipients, connection.connections) == (0, 0, 1)


def test_what_is_not_written_yet_outlives_a_reset() -> None:
    slots = Slots()
    slots.judge_by([messages(1, seconds=10)], 0)
    reserved = _reserve(slots, 1, TRANSACTION_NS, now_ns=0)
    assert isinstance(reserved, Reserved)
    slots.settle(Ended(reserved.id, 5))

    slots.reset([reserved])

    assert slots.ask(lambda gauges, now_ns: admission.opens_at(gauges, 1, now_ns), 6) == 10 * SECOND_NS + 5
    assert slots.unwritten() == [Ended(reserved.id, 5)]


WEIGHTS = (st.integers(1, 3), st.integers(1, 9), st.integers(0, 2))
ENDS = st.lists(st.tuples(st.integers(0, 399 * DAY_NS), *WEIGHTS), max_size=200)


@settings(max_examples=50)
@given(ENDS, st.lists(st.integers(0, 400 * DAY_NS), min_size=1, max_size=4))
def test_merging_never_moves_an_end_to_before_it_nor_past_now_nor_far(
    ends: list[tuple[int, int, int, int]], steps: list[int]
) -> None:
    slots = Slots()
    slots.judge_by([], 0)
    newer = [Charged(400 * DAY_NS, 1, 1)] * EXACT_ENDS
    slots.reset([*(Charged(*each) for each in ends), *newer])

    now_ns = 400 * DAY_NS
    for step_ns in steps:
        now_ns += step_ns // 2
        told = _charged(slots, now_ns)[: -len(newer)]
        kept = [each for each in ends if now_ns - each[0] <= KEEP_NS]
        for units in (1, 2, 3):
            exact = sorted(each[0] for each in kept for _ in range(each[units]))
            rounded = sorted(
                each[0]
                for each in told
                for _ in range((each.messages, each.recipients, each.connections)[units - 1])
            )
            assert len(rounded) == len(exact)
            assert all(
                at_ns <= told_ns <= min(now_ns, at_ns + (now_ns - at_ns) // 1024)
                for at_ns, told_ns in zip(exact, rounded, strict=True)
            )


def test_the_newest_ends_are_kept_exactly() -> None:
    slots = Slots()
    ends: list[Record] = [Charged(number * 1_000_003, 1, 1) for number in range(2 * EXACT_ENDS)]
    slots.reset(ends)

    told = _charged(slots, now_ns=2 * EXACT_ENDS * 1_000_003)

    assert set(ends[-EXACT_ENDS:]) <= set(told)
    assert len(told) < len(ends)
    assert all(earlier.ended_at_ns <= later.ended_at_ns for earlier, later in pairwise(told))


def test_new_limits_judge_the_same_past() -> None:
    slots = Slots()
    slots.judge_by([messages(5, seconds=10)], 0)
    for number in range(5):
        reserved = _reserve(slots, 2, TRANSACTION_NS, now_ns=number)
        assert isinstance(reserved, Reserved)
        slots.settle(Ended(reserved.id, number + 1))
    assert slots.ask(admission.usage, 20 * SECOND_NS)[0].used == 0

    slots.judge_by([messages(2, seconds=3600), recipients(30, seconds=86_400)], 0)

    by_messages, by_recipients = slots.ask(admission.usage, 20 * SECOND_NS)
    assert (by_messages.used, by_messages.opens_at_ns) == (5, 3600 * SECOND_NS + 4)
    assert (by_recipients.used, by_recipients.opens_at_ns) == (10, 20 * SECOND_NS)


def test_memory_stays_bounded_at_millions_per_day() -> None:
    slots = Slots()
    slots.judge_by([messages(1_000_000, seconds=86_400)], 0)
    gap_ns = DAY_NS // 1_000_000
    most = 0

    for number in range(40_000):
        now_ns = number * gap_ns * 150
        reserved = _reserve(slots, 1, TRANSACTION_NS, now_ns)
        assert isinstance(reserved, Reserved)
        slots.settle(Ended(reserved.id, now_ns + 1))
        slots.written(1)
        most = max(most, slots.kept, len(slots._deadlines))

    # The exact ones and a thousand a doubling of the age; as many again before they are merged.
    assert most < 2 * (EXACT_ENDS + 1024 * 4)


def test_what_no_policy_can_ask_for_any_more_is_forgotten() -> None:
    slots = Slots()
    slots.reset([Charged(0, 1, 1), *[Charged(KEEP_NS, 1, 1)] * EXACT_ENDS])

    assert len(_charged(slots, KEEP_NS)) == EXACT_ENDS + 1
    assert len(_charged(slots, KEEP_NS + 1)) == EXACT_ENDS


def _of(sender: str, ended_at_ns: int) -> Charged:
    return Charged(ended_at_ns, 1, 2, 0, ended_at_ns - 1, (Share("sender", sender, 1, 2),))


def test_merging_keeps_keys_and_what_may_be_of_any_key() -> None:
    slots = Slots()
    slots.reset(
        [_of("a", 10), _of("b", 11), Charged(12, 1, 5), _of("a", 13), *[Charged(DAY_NS, 0, 0)] * EXACT_ENDS]
    )

    merged = _charged(slots, DAY_NS)[0]

    assert (merged.messages, merged.recipients, merged.is_merged, merged.started_at_ns) == (4, 11, True, None)
    assert set(merged.shares) == {
        Share("sender", "a", 2, 4),
        Share("sender", "b", 1, 2),
        Share("sender", UNKNOWN, 1, 5),
    }
    slots.judge_by([messages(9, 2 * 86_400, "sender"), recipients(99, 2 * 86_400, "sender")], 0)
    for sender, by_messages, by_recipients in (("a", 3, 9), ("b", 2, 7), ("c", 1, 5)):
        gauges = slots._gauges
        assert [gauge.used(sender, DAY_NS) for gauge in gauges] == [by_messages, by_recipients]


def test_the_shares_that_are_kept_are_bounded_and_so_is_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.throttle.slots.MOST_SHARES", 5_000)
    slots = Slots()
    ends: list[Record] = [_of(f"s{number}", number * SECOND_NS) for number in range(20_000)]
    slots.reset(ends)

    told = _charged(slots, 20_000 * SECOND_NS)

    shares = [share for charged in told for share in charged.shares]
    assert 5_000 // 2 <= sum(share.key != UNKNOWN for share in shares) <= 6_000
    assert len(shares) < 6_000 + EXACT_ENDS
    assert slots.shares_bytes < 6_000 * 20 + EXACT_ENDS * 20
    assert sum(charged.messages for charged in told) == len(ends)


def test_a_new_limit_for_each_key_counts_unknown_mail_for_all() -> None:
    slots = Slots()
    slots.judge_by([messages(9, seconds=60)], 0)
    _reserve(slots, 1, TRANSACTION_NS, now_ns=0)

    slots.judge_by([messages(2, seconds=60, for_each="sender")], 0)
    answers = [slots.reserve(Request(1, sender=sender), TRANSACTION_NS, 1) for sender in "aab"]

    # The one of before may have been of either.
    assert [isinstance(answer, Wait) for answer in answers] == [False, True, False]


def test_the_oldest_end_within_a_span_is_told_until_it_leaves() -> None:
    slots = Slots()
    slots.judge_by([messages(5, seconds=10)], 0)
    assert slots.leaves_in_ns(60 * SECOND_NS, 0) is None
    for at_ns in (10 * SECOND_NS, 30 * SECOND_NS):
        reserved = _reserve(slots, 1, SECOND_NS, at_ns)
        assert isinstance(reserved, Reserved)
        slots.settle(Ended(reserved.id, at_ns))

    assert slots.leaves_in_ns(60 * SECOND_NS, 40 * SECOND_NS) == 30 * SECOND_NS
    assert slots.leaves_in_ns(60 * SECOND_NS, 70 * SECOND_NS) == 20 * SECOND_NS
    assert slots.leaves_in_ns(60 * SECOND_NS, 90 * SECOND_NS) is None


def test_a_limit_for_each_key_looks_at_its_key_alone() -> None:
    slots = Slots()
    slots.judge_by(
        [messages(1, seconds=10, for_each="sender_domain"), messages(2, seconds=10, for_each="client")], 0
    )

    def goes(domain: str, client: str) -> bool:
        request = Request(1, sender=f"a@{domain}", sender_domain=domain, client=client)
        return not isinstance(slots.reserve(request, SECOND_NS, 0), Wait)

    assert [goes("x", "1"), goes("x", "2"), goes("y", "1"), goes("z", "1"), goes("z", "2")] == [
        True,
        False,
        True,
        False,
        True,
    ]


def test_room_for_each_domain_does_not_widen_a_transaction() -> None:
    slots = Slots()
    slots.judge_by([recipients(5, seconds=10, for_each="recipient_domain")], 0)
    request = Request(4, recipient_domains=("x", "y", "x", "y"), most=2)
    grant = slots.reserve(request, SECOND_NS, 0)
    assert isinstance(grant, Grant)
    assert list(grant.chosen) == [0, 1]


SENDERS = ("a@x.example", "b@x.example")
SOME_LIMITS = st.lists(
    st.sampled_from(
        [
            messages(3, seconds=10),
            messages(2, seconds=10),
            messages(4, seconds=25),
            recipients(5, seconds=10),
            messages(1, seconds=10, for_each="sender"),
            messages(2, seconds=10, for_each="sender"),
            messages(5_000, seconds=10),
        ]
    ),
    max_size=4,
    unique=True,
)


@given(
    SOME_LIMITS,
    SOME_LIMITS,
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(SENDERS), st.booleans(), st.integers(0, 9))),
    st.sampled_from([None, 0, SECOND_NS]),
)
def test_what_limits_would_hold_is_what_they_hold_once_in_force(
    before: list[PerPeriod],
    after: list[PerPeriod],
    mails: list[tuple[int, str, bool, int]],
    guard_ns: int | None,
) -> None:
    slots, now_ns = Slots(), 0
    slots.judge_by(before, 0)
    for count, sender, ends, seconds in mails:
        answer = slots.reserve(Request(count, sender=sender), TRANSACTION_NS, now_ns)
        now_ns += seconds * SECOND_NS
        if ends and isinstance(answer, Grant):
            slots.settle(Ended(answer.reserved.id, now_ns))
    held = slots.limited(SECOND_NS, now_ns)

    foretold = slots.limited_under(after, guard_ns, SECOND_NS, now_ns)

    assert slots.limited(SECOND_NS, now_ns) == held
    slots.judge_by(after, guard_ns)
    assert slots.limited(SECOND_NS, now_ns) == foretold
