"""A history that begins empty is announced, once: nothing that was sent before it counts."""

from pathlib import Path

from tests.fakes.smarthost import Smarthost
from tests.service.house import House, policy_of

FIVE_AN_HOUR = ", limits: [{messages: 5, per: 1h}]"


def _told(house: House) -> list[str]:
    house.events.flush()
    return [line.partition("]: ")[2] for line in house.log.getvalue().splitlines() if "begins empty" in line]


def _line(path: Path) -> str:
    return f"history of isp begins empty, at {path}: nothing that was sent before counts"


async def test_a_history_that_begins_empty_is_announced_when_it_is_made_and_never_again(
    tmp_path: Path,
) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port, FIVE_AN_HOUR)
        async with House(policy) as house:
            for _ in range(2):
                house.accept()
                await house.until_empty()
            assert _told(house) == [_line(policy.history_path("isp"))]
        async with House(policy) as house:
            house.accept()
            await house.until_empty()
            assert _told(house) == []


async def test_an_edit_that_moves_the_history_is_announced_as_an_empty_one(tmp_path: Path) -> None:
    async with Smarthost() as host, House(policy_of(tmp_path, host.port, FIVE_AN_HOUR)) as house:
        house.accept()
        await house.until_empty()
        moved = policy_of(tmp_path, host.port, FIVE_AN_HOUR + ", history: ./elsewhere")
        await house.sender.apply(moved)
        house.accept()
        await house.until_empty()

        assert _told(house)[1:] == [_line(tmp_path / "elsewhere")]


async def test_an_upstream_that_sends_nothing_has_no_history_to_announce(tmp_path: Path) -> None:
    async with Smarthost() as host, House(policy_of(tmp_path, host.port, FIVE_AN_HOUR)) as house:
        await house.until(lambda: house.heart._has_history)

        assert _told(house) == []
