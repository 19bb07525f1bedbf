"""The budget of descriptors, for any policy and any limit: the disk's are never a client's."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from relay.daemon.descriptors import EACH_CLIENT, sender_budget
from relay.policy.model import Policy
from tests.unit.sender.in_process_relay import policy_of

LIMITS = st.integers(64, 200_000)
MANY = st.integers(1, 10_000)


def with_listeners(counts: list[tuple[int, int]]) -> Policy:
    policy = policy_of(Path("/nowhere"), 25)
    (listen,) = policy.listen
    return policy.model_copy(
        update={
            "listen": tuple(
                listen.model_copy(
                    update={"max_connections": most, "max_connections_per_client": each, "processes": 0}
                )
                for most, each in counts
            )
        }
    )


@given(LIMITS, st.lists(st.tuples(MANY, MANY), min_size=1, max_size=5))
def test_whoever_is_let_in_leaves_the_disk_its_share(limit: int, counts: list[tuple[int, int]]) -> None:
    policy = with_listeners(counts)
    budget = sender_budget(policy, limit)
    fitted = [budget.fitted(listen) for listen in policy.listen]

    assert all(listen.max_connections >= 1 for listen in fitted)
    assert all(listen.max_connections_per_client >= 1 for listen in fitted)
    most = sum(listen.max_connections for listen in fitted)
    assert most <= max(budget.clients, len(fitted)) + len(fitted)
    # A quarter is left at least, however low the limit, but for one client a listener.
    assert EACH_CLIENT * budget.clients <= max(limit, EACH_CLIENT * len(fitted))
    assert limit // 2 <= budget.ceiling < limit


def test_the_usual_policy_needs_less_than_the_usual_limit() -> None:
    assert not sender_budget(policy_of(Path("/nowhere"), 25), 1024).is_short
