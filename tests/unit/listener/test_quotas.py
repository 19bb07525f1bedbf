"""What one user or client may have in the queue, whatever listeners there are and when they are told."""

import pytest

from relay.listener.quotas import Owner, Quotas
from relay.policy.model import Listen
from tests.unit.listener.conversation import codes, listening
from tests.unit.policy.examples import parse, with_listen

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


def test_an_owner_is_told_of_once_it_has_the_quota_of_its_name_or_of_all_others() -> None:
    held = [(ALICE, 3), (ALICE, 4), (BOB, 900), (CARLA, 1), (CARLA, 2), (CLIENT, 6), (CLIENT, 8)]

    assert Quotas(QUOTAS).worth_telling(held) == {ALICE, CARLA, CLIENT}
    assert Quotas(QUOTAS).is_any
    assert not Quotas(listen("users_file: users", "users: {bob: {senders: bob@here.example}}")).is_any


def test_who_logs_in_is_a_user_wherever_from() -> None:
    assert Owner.of("bob", "unknown[192.0.2.1]") == BOB
    assert Owner.of(None, "unknown[192.0.2.1]") == CLIENT


@pytest.mark.parametrize("most", [1, 5])
async def test_at_its_quota_a_client_gets_452_at_mail_until_it_has_less(most: int) -> None:
    async with listening({"max_queued_per_client": most}) as room:
        client, quotas = await room.greeted(), room.listener.quotas
        owner = Owner("", "unknown[127.0.0.1]")

        quotas.told(quotas.worth_telling([(owner, most)]))
        assert await client.ask(b"MAIL FROM:<a@b>") == FULL
        assert await client.ask(b"MAIL FROM:<>") == FULL
        assert codes(await client.ask(b"NOOP")) == [250]

        quotas.told(quotas.worth_telling([(owner, most - 1)]))
        assert codes(await client.ask(b"MAIL FROM:<a@b>")) == [250]
