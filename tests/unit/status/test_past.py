"""The traffic that a history tells of, met by other limits."""

from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.policy.limits import LimitSettings
from relay.queue.lanes import Arrangement, Price
from relay.status.estimate.past import SHORTEST_WAIT_NS, PastTerms, Traffic, traffic_of
from relay.throttle.history_format import Charged, Ended, Record, Reserved, Share
from relay.throttle.peaks import spans_of

S = SECOND_NS
LONG_NS = 1800 * S


def limit(count: int, per_s: int, **others: object) -> LimitSettings:
    return LimitSettings.model_validate(
        {"messages": count, "per": f"{per_s}s", **others}, by_alias=True, by_name=False
    )


def terms(*limits: LimitSettings, connections: int = 99) -> PastTerms:
    return PastTerms(limits, 0, connections, 100, Arrangement((), Price(), 100))


def sent(*starts_s: float, takes_s: float = 1, shares: tuple[Share, ...] = ()) -> list[Record]:
    found: list[Record] = []
    for start_s in starts_s:
        start_ns = int(start_s * S)
        found.append(Reserved(start_ns, start_ns + LONG_NS, 1, 1, 0, shares))
        found.append(Ended(start_ns, start_ns + int(takes_s * S)))
    return found


def known(records: list[Record]) -> Traffic:
    return traffic_of(spans_of(records)[0])


@given(
    st.lists(st.integers(0, 600), min_size=1, max_size=30, unique=True),
    st.integers(1, 5),
    st.integers(1, 60),
)
def test_each_waits_for_the_window_slot_by_slot(starts: list[int], count: int, per_s: int) -> None:
    met = known(sent(*starts)).under(terms(limit(count, per_s)))

    began: list[int] = []
    waits = []
    for start in sorted(starts):
        # Free is a slot one period after its transaction ended; nobody overtakes.
        free = sorted(each + 1 + per_s for each in began)
        at = max([start, *began[-1:]] + ([free[-count]] if len(free) >= count else []))
        began.append(at)
        waits.append((at - start) * S)
    assert (met.waited, met.longest_ns) == (sum(each > SHORTEST_WAIT_NS for each in waits), max(waits))


def test_what_has_room_waits_for_nothing() -> None:
    met = known(sent(0, 10, 20)).under(terms(limit(1, 9)))

    assert (met.waited, met.longest_ns, met.unjudged) == (0, 0, ())


def test_a_connection_fewer_makes_mail_wait_too() -> None:
    # Each takes ten seconds, and three began together.
    traffic = known(sent(0, 0.001, 0.002, takes_s=10))

    assert traffic.under(terms(connections=3)).waited == 0
    assert traffic.under(terms(connections=1)).waited == 2


def test_a_key_is_judged_only_where_every_transaction_tells_it() -> None:
    each = limit(1, 60, for_each="sender")
    told = [Share("sender", "a@x.example", 1, 1)], [Share("sender", "b@x.example", 1, 1)]
    of_a, of_b = (sent(at, shares=tuple(shares)) for at, shares in zip((0, 5), told, strict=True))

    assert known(of_a + of_b).under(terms(each)).waited == 0
    of_a_again = sent(10, shares=tuple(told[0]))
    assert known(of_a + of_b + of_a_again).under(terms(each)).waited == 1
    met = known(of_a + of_b + sent(10)).under(terms(each))
    assert (met.waited, met.unjudged) == (0, ("1 messages per 60s for each sender",))


def test_what_was_merged_holds_its_slots_and_is_not_asked() -> None:
    merged = Charged(100 * S, 3, 3, 0, 50 * S, is_merged=True)
    traffic = known([merged, *sent(110)])

    assert (len(traffic.known), traffic.merged) == (1, 3)
    met = traffic.under(terms(limit(3, 60)))
    assert (met.waited, met.longest_ns) == (1, 50 * S)


def test_connections_and_an_empty_history_are_no_mail() -> None:
    traffic = known([Charged(5 * S, 0, 0, 1, 4 * S)])

    assert (traffic.known, traffic.transaction_ns) == ((), 0)
    assert traffic.under(terms(limit(1, 60))).waited == 0


def test_one_without_an_end_does_not_tell_how_long_they_take() -> None:
    in_flight = Reserved(900 * S, 900 * S + LONG_NS, 1, 1)

    assert known([*sent(0, takes_s=2), in_flight]).transaction_ns == 2 * S
