"""What clients may have of the descriptors: half of them are never a client's."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from relay.daemon.descriptors import fitted
from relay.policy.model import Listen

MANY = st.integers(1, 10_000)


@given(st.integers(64, 200_000), st.lists(st.tuples(MANY, MANY), min_size=1, max_size=5))
def test_clients_have_no_more_than_half_of_the_limit(limit: int, counts: Sequence[tuple[int, int]]) -> None:
    listens = [
        Listen.model_validate(
            {"address": "127.0.0.1:25", "max_connections": most, "max_connections_per_client": each}
        )
        for most, each in counts
    ]
    found = fitted(listens, limit)

    assert all(each.max_connections >= 1 <= each.max_connections_per_client for each in found)
    # One each at least, however low the limit.
    assert 2 * sum(each.max_connections for each in found) <= limit // 2 + 2 * len(found)
    assert found == listens or 4 * sum(each.max_connections for each in listens) > limit


def test_the_usual_policy_needs_less_than_the_usual_limit() -> None:
    usual = [Listen.model_validate({"address": "127.0.0.1:25"})]
    assert fitted(usual, 1024) == usual
