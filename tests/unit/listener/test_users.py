"""Passwords, and the brake on guessing them."""

import asyncio
from typing import Literal

import pytest
from argon2 import PasswordHasher

from relay.clock import SECOND_NS
from relay.listener.users import Guesses, Users
from relay.smtp.sasl import PasswordCheck
from tests.fakes.clock import FakeClock

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


@pytest.mark.parametrize(
    ("name", "password", "is_right"),
    [
        ("mjd", "open sesame", True),
        ("mjd", "open sesame ", False),
        ("MJD", "open sesame", False),
        # The right password for the wrong name matches the decoy, and must not count.
        ("nobody", "open sesame", False),
        ("", "", False),
        ("mjd", "\0", False),
    ],
)
async def test_only_the_user_with_the_password_is_let_in_and_each_try_costs_a_hash(
    name: str, password: str, is_right: bool
) -> None:
    checked: list[str | bytes] = []

    class Counting(PasswordHasher):
        def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:  # noqa: A002 - its name
            checked.append(password)
            return super().verify(hash, password)

    users = Users({"mjd": CHEAP.hash("open sesame")}, Counting())

    assert await users.verify(name, password) is is_right
    assert checked == [password]
    users.close()


async def test_a_password_that_changes_while_its_hash_is_checked_lets_nobody_in() -> None:
    class Editing(PasswordHasher):
        def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:  # noqa: A002 - its name
            users.use({"mjd": CHEAP.hash("another")})
            return super().verify(hash, password)

    users = Users({"mjd": CHEAP.hash("open sesame")}, Editing())

    assert not await users.verify("mjd", "open sesame")
    users.close()


async def _wrong() -> bool:
    return False


async def _right() -> bool:
    return True


async def test_wait_doubles_from_the_third_failure_up_to_15_minutes_and_ends_with_a_right_one() -> None:
    clock = FakeClock()
    guesses = Guesses(clock)
    waits_s = []
    for _ in range(14):
        assert await guesses.judge("192.0.2.1", _wrong) is PasswordCheck.WRONG
        wait_s = 0
        while guesses.is_locked_out("192.0.2.1"):
            clock.advance(SECOND_NS)
            wait_s += 1
        waits_s.append(wait_s)

    assert waits_s == [0, 0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900]
    assert await guesses.judge("192.0.2.1", _wrong) is PasswordCheck.WRONG
    assert await guesses.judge("192.0.2.1", _right) is PasswordCheck.LATER
    assert await guesses.judge("192.0.2.2", _right) is PasswordCheck.RIGHT
    clock.advance(900 * SECOND_NS)
    assert await guesses.judge("192.0.2.1", _right) is PasswordCheck.RIGHT
    assert not guesses.is_locked_out("192.0.2.1")


async def test_an_hour_without_a_wrong_one_forgives_all() -> None:
    clock = FakeClock()
    guesses = Guesses(clock)
    for _ in range(9):
        await guesses.judge("192.0.2.1", _wrong)
        clock.advance(900 * SECOND_NS)
    clock.advance(2700 * SECOND_NS)
    assert await guesses.judge("192.0.2.1", _wrong) is PasswordCheck.WRONG

    assert not guesses.is_locked_out("192.0.2.1")


async def test_only_so_many_origins_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guesses, "MAX_ORIGINS", 2)
    guesses = Guesses(FakeClock())
    for origin in ("a", "b", "a", "b", "a", "b", "c"):
        await guesses.judge(origin, _wrong)

    assert [guesses.is_locked_out(origin) for origin in "abc"] == [False, True, False]


async def test_guesses_of_an_origin_are_judged_in_turn_and_of_another_at_once() -> None:
    guesses = Guesses(FakeClock())
    verdicts = [asyncio.get_running_loop().create_future() for _ in range(5)]
    looked_at: list[int] = []

    async def verify(number: int) -> bool:
        looked_at.append(number)
        return bool(await verdicts[number])

    judged = [asyncio.create_task(guesses.judge("a", lambda n=n: verify(n))) for n in range(5)]  # type: ignore[misc]  # n is bound now
    elsewhere = asyncio.create_task(guesses.judge("b", lambda: verify(4)))
    await asyncio.sleep(0)
    assert looked_at == [0, 4]
    judged[0].cancel()
    await asyncio.wait([judged[0]])
    for number in (1, 2, 3):
        verdicts[number].set_result(False)

    assert [await each for each in judged[1:]] == [PasswordCheck.WRONG] * 3 + [PasswordCheck.LATER]
    assert looked_at == [0, 4, 1, 2, 3]
    elsewhere.cancel()
