"""The budget of descriptors, for any policy and any limit: the disk's are never a client's."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from relay.daemon.descriptors import EACH_CLIENT, listener_budget, sender_budget
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


@given(LIMITS, st.lists(st.tuples(MANY, MANY), min_size=1, max_size=5))
def test_a_limit_that_is_high_enough_changes_no_listener(limit: int, counts: list[tuple[int, int]]) -> None:
    policy = with_listeners(counts)
    budget = sender_budget(policy, limit)

    # Below what is needed at most a half of it may do: what is kept is never cut by more than a quarter.
    assert budget.is_short <= (limit < budget.needed)
    if not budget.is_short:
        assert [budget.fitted(listen) for listen in policy.listen] == list(policy.listen)


@given(LIMITS, MANY)
def test_a_listener_process_counts_for_itself(limit: int, most: int) -> None:
    (listen,) = with_listeners([(most, most)]).listen
    budget = listener_budget(listen, limit)

    assert 1 <= budget.fitted(listen).max_connections <= most
    assert budget.fitted(listen).max_connections == min(most, budget.clients)
    assert budget.ceiling < limit


def test_the_usual_policy_needs_less_than_the_usual_limit() -> None:
    assert not sender_budget(policy_of(Path("/nowhere"), 25), 1024).is_short
