"""What one user or client may have in the queue, whatever listeners there are and when they are told."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.listener.quotas import Owner, Quotas
from relay.policy.model import Listen
from tests.unit.listener.conversation import TRANSACTION, codes, listening
from tests.unit.policy.examples import with_listen
from tests.unit.policy.reading import parse

ALICE, BOB, CARLA = Owner("alice", ""), Owner("bob", ""), Owner("carla", "")
CLIENT = Owner("", "unknown[192.0.2.1]")
FULL = b"452 4.3.1 Too much mail of yours is queued, try later\r\n"


def listen(*lines: str) -> Listen:
    return parse(with_listen("address: 127.0.0.1:2525", *lines)).listen[0]


QUOTAS = listen(
    "users_file: users",
    "max_queued_per_client: 7",
    "users: {alice: {max_queued: 4}, bob: {}, '*': {max_queued: 2}}",
)


def test_each_owner_has_the_quota_of_its_name_or_of_all_others() -> None:
    quotas = Quotas(QUOTAS)

    assert [quotas.most(owner) for owner in (ALICE, BOB, CARLA, CLIENT)] == [4, None, 2, 7]
    assert quotas.is_any
    assert not Quotas(listen("users_file: users", "users: {bob: {senders: bob@here.example}}")).is_any


def test_who_logs_in_is_a_user_wherever_from() -> None:
    assert Owner.of("bob", "unknown[192.0.2.1]") == BOB
    assert Owner.of(None, "unknown[192.0.2.1]") == CLIENT


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from([ALICE, BOB, CARLA, CLIENT]), st.integers(0, 2)),
            st.just("tell"),
            st.integers(0, 9),
        ),
        max_size=60,
    )
)
def test_no_owner_gets_more_in_than_its_quota(steps: list[object]) -> None:
    """Each step hands a message to one of three listeners, tells all, or relays what is queued."""
    listeners, queue = [Quotas(QUOTAS) for _ in range(3)], Counter[Owner]()
    told, since = Counter[Owner](), Counter[tuple[int, Owner]]()
    for step in steps:
        match step:
            case Owner() as owner, int(number):
                quotas = listeners[number]
                most = quotas.most(owner)
                if quotas.is_full(owner):
                    assert most is not None
                    # Refused only where at least half of it is used: queued then, or taken since.
                    assert told[owner] + since[number, owner] >= most - most // 2
                else:
                    quotas.took(owner)
                    queue[owner] += 1
                    since[number, owner] += 1
                    if most is not None:
                        # All that one listener can add to what was queued when it was told.
                        assert max(told[owner], most // 2) + since[number, owner] <= most
            case "tell":
                told, since = queue.copy(), Counter()
                for quotas in listeners:
                    quotas.told(quotas.worth_telling(queue.items()))
            case int(count):
                queue = +Counter({owner: max(0, queued - count) for owner, queued in queue.items()})


def test_an_owner_is_told_of_from_half_its_quota_on() -> None:
    quotas = Quotas(QUOTAS)
    held = [(ALICE, 2), (BOB, 900), (CARLA, 2), (CLIENT, 4), (Owner("", "unknown[::1]"), 3)]

    assert quotas.worth_telling(held) == {CARLA: 2, CLIENT: 4}


@pytest.mark.parametrize("most", [1, 2, 5])
async def test_at_its_quota_a_client_gets_452_at_mail_until_it_has_less(most: int) -> None:
    async with listening({"max_queued_per_client": most}) as room:
        client, quotas = await room.greeted(), room.listener.quotas
        owner = Owner("", "unknown[127.0.0.1]")
        for queued in range(most):
            quotas.told(quotas.worth_telling([(owner, queued)]))
            await client.send(TRANSACTION + b"x\r\n.\r\n")
            assert codes(b"".join(await client.replies(4))) == [250, 250, 354, 250]

        quotas.told(quotas.worth_telling([(owner, most)]))
        assert await client.ask(b"MAIL FROM:<a@b>") == FULL
        assert await client.ask(b"MAIL FROM:<>") == FULL
        assert codes(await client.ask(b"NOOP")) == [250]

        quotas.told(quotas.worth_telling([(owner, most - 1)]))
        assert codes(await client.ask(b"MAIL FROM:<a@b>")) == [250]
