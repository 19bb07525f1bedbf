"""The judge is judged by an oracle that tries every window one by one."""

from hypothesis import given
from hypothesis import strategies as st

from relay.mail.envelope import Envelope
from relay.practice.witness import Sighting, Witness, Witnessed
from tests.unit.practice.tools import limit

PER_NS = 1_000_000
"""The shortest period that a policy can write, so that small instants make full windows."""
STEP_NS = PER_NS // 10
ATTEMPTS = st.lists(
    st.tuples(st.integers(0, 60).map(lambda n: n * STEP_NS), st.integers(0, 4)), min_size=1, max_size=40
)


def ledger(unit: str, count: int, *, cut_off_ns: int = 0, remember: int = 1000) -> Witness:
    return Witness(limit(unit, count, "1ms"), cut_off_ns, remember=remember)


def held(attempts: list[tuple[int, int]], end_ns: int) -> int:
    """Return what the window `(end - T, end]` holds, by the words of its definition."""
    return sum(weight for instant_ns, weight in attempts if end_ns - PER_NS < instant_ns <= end_ns)


@given(attempts=ATTEMPTS)
def test_the_most_in_any_window_is_that_of_trying_them_all(attempts: list[tuple[int, int]]) -> None:
    judged = ledger("recipients", 1)
    for instant_ns, weight in attempts:
        judged.admit(instant_ns, weight, instant_ns)

    assert judged.most_in_any_window() == max(held(attempts, end) for end in range(0, 8 * PER_NS, STEP_NS))


@given(attempts=ATTEMPTS, count=st.integers(1, 12))
def test_an_attempt_is_refused_when_a_window_with_it_is_too_full(
    attempts: list[tuple[int, int]], count: int
) -> None:
    judged = ledger("recipients", count)
    for number, (instant_ns, weight) in enumerate(attempts):
        so_far = attempts[: number + 1]
        windows = [held(so_far, end) for end in range(instant_ns, instant_ns + PER_NS, STEP_NS)]

        assert judged.admit(instant_ns, weight, number) == (max(windows) <= count)


def test_a_cut_off_lasts_so_long_and_no_attempt_lengthens_it() -> None:
    cut_off_ns = 5 * PER_NS
    judged = ledger("messages", 1, cut_off_ns=cut_off_ns)
    assert judged.admit(0, 1, 0)
    assert not judged.admit(1, 1, 1)

    assert not judged.admit(3 * PER_NS, 1, 3 * PER_NS)
    assert not judged.admit(cut_off_ns - PER_NS, 1, cut_off_ns)
    assert judged.is_cut_off(cut_off_ns)
    assert not judged.is_cut_off(cut_off_ns + 1)
    assert judged.admit(cut_off_ns + 1, 1, cut_off_ns + 1)
    assert judged.cut_offs == 1


def test_the_newest_entries_are_kept_whole_and_all_are_counted() -> None:
    judged = ledger("messages", 100, remember=3)
    envelope = Envelope("", ("a@example.org",), 0, "local", "", "ESMTP")
    fates = [
        Witnessed.RELAYED,
        Witnessed.REFUSED,
        Witnessed.ABANDONED,
        Witnessed.RELAYED,
        Witnessed.REFUSED,
        Witnessed.RELAYED,
    ]
    for instant_ns, fate in enumerate(fates):
        judged.admit(instant_ns, 1, instant_ns)
        judged.enter(Sighting(instant_ns, envelope, 0, "", "", fate))

    assert [entry.counted_at_ns for entry in judged.entries] == [3, 4, 5]
    assert (judged.relayed, judged.refused, judged.abandoned) == (3, 2, 1)
    assert judged.most_in_any_window() == 6
