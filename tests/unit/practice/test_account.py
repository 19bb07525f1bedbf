"""The practice account against an oracle that tries every window one by one."""

from hypothesis import given
from hypothesis import strategies as st

from relay.policy.limits import LimitSettings
from relay.practice.account import PracticeAccount

PER_NS = 1_000_000
"""The shortest period that a policy can write, so that small steps make full windows."""
STEP_NS = PER_NS // 10
ATTEMPTS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4)), min_size=1, max_size=40)


def account(count: int, *, unit: str = "recipients", cut_off_ns: int = 0) -> PracticeAccount:
    return PracticeAccount(LimitSettings.model_validate({unit: count, "per": "1ms"}), cut_off_ns)


def held(attempts: list[tuple[int, int]], end_ns: int) -> int:
    """Return what the window `(end - T, end]` holds, by the words of its definition."""
    return sum(weight for at_ns, weight in attempts if end_ns - PER_NS < at_ns <= end_ns)


@given(steps=ATTEMPTS, count=st.integers(1, 12))
def test_a_message_is_refused_when_a_window_with_it_is_too_full(
    steps: list[tuple[int, int]], count: int
) -> None:
    judged, so_far, now_ns = account(count), [], PER_NS
    for step, recipients in steps:
        now_ns += step * STEP_NS
        so_far.append((now_ns, recipients))

        assert judged.admit(recipients, now_ns) == (held(so_far, now_ns) <= count)

    assert judged.most == max(held(so_far, at_ns) for at_ns, _ in so_far)
    assert judged.relayed + judged.refused == len(steps)


def test_a_cut_off_lasts_so_long_and_no_attempt_lengthens_it() -> None:
    cut_off_ns = 5 * PER_NS
    judged = account(1, unit="messages", cut_off_ns=cut_off_ns)
    began_ns = 1 + PER_NS
    assert judged.admit(9, PER_NS)
    assert not judged.admit(1, began_ns)

    assert not judged.admit(1, began_ns + 3 * PER_NS)
    assert not judged.admit(1, began_ns + cut_off_ns - 1)
    assert judged.admit(1, began_ns + cut_off_ns)
    assert (judged.cut_offs, judged.refused, judged.most) == (1, 3, 2)
