"""A policy that is edited under a whole relay: the upstream never sees more than the new limits allow."""

from pathlib import Path

from tests.fakes.smarthost import Smarthost
from tests.service.house import House, policy_of

FIVE_AN_HOUR = ", limits: [{messages: 5, per: 1h}]"
NO_ROOM = "no room in 5 messages per 3600s"


async def test_the_first_limit_of_an_upstream_counts_what_went_before_it(tmp_path: Path) -> None:
    async with Smarthost() as host, House(policy_of(tmp_path, host.port)) as house:
        await _relay(house, 3)

        await house.sender.apply(policy_of(tmp_path, host.port, FIVE_AN_HOUR))
        await _relay_until_full(house, host, 8, most=5)

        assert len(host.relayed) == 5


async def test_the_first_limit_of_an_upstream_has_no_room_where_more_than_that_went_before_it(
    tmp_path: Path,
) -> None:
    async with Smarthost() as host, House(policy_of(tmp_path, host.port)) as house:
        await _relay(house, 7)

        await house.sender.apply(policy_of(tmp_path, host.port, FIVE_AN_HOUR))
        await _relay_until_full(house, host, 2, most=7)

        assert len(host.relayed) == 7


async def test_a_limit_that_comes_back_counts_what_went_while_there_was_none(tmp_path: Path) -> None:
    async with Smarthost() as host, House(policy_of(tmp_path, host.port, FIVE_AN_HOUR)) as house:
        await _relay(house, 1)
        await house.sender.apply(policy_of(tmp_path, host.port))
        await _relay(house, 2)

        await house.sender.apply(policy_of(tmp_path, host.port, FIVE_AN_HOUR))
        await _relay_until_full(house, host, 8, most=5)

        assert len(host.relayed) == 5


async def test_the_first_limit_that_a_start_finds_counts_what_went_before_it(tmp_path: Path) -> None:
    async with Smarthost() as host:
        async with House(policy_of(tmp_path, host.port)) as house:
            await _relay(house, 3)
        async with House(policy_of(tmp_path, host.port, FIVE_AN_HOUR)) as house:
            await _relay_until_full(house, host, 8, most=5)

            assert len(host.relayed) == 5


async def _relay(house: House, messages: int) -> None:
    for number in range(messages):
        house.accept(f"r{number}@x.example")
    await house.until_empty()


async def _relay_until_full(house: House, host: Smarthost, messages: int, most: int) -> None:
    """Hand over messages, and wait until one has to wait, or more went than may."""
    for number in range(messages):
        house.accept(f"r{number}@x.example")

    def is_full() -> bool:
        reasons = {message.reason for message in house.watch.listing().messages()}
        return NO_ROOM in reasons and not house.heart.in_flight

    await house.until(lambda: is_full() or len(host.relayed) > most)
