"""Passwords, and the brake on guessing them."""

import asyncio
from typing import Literal

import pytest
from argon2 import PasswordHasher
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.listener.users import Admittance, BackOff, Guesses, Users
from relay.smtp.sasl import PasswordCheck
from tests.fakes.clock import FakeClock

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


@pytest.mark.parametrize(
    ("name", "password", "is_right"),
    [
        ("mjd", "open sesame", True),
        ("mjd", "open sesame ", False),
        ("mjd", "", False),
        ("MJD", "open sesame", False),
        ("nobody", "open sesame", False),
        ("", "", False),
        ("mjd", "\0", False),
    ],
)
async def test_only_the_user_with_the_password_is_let_in(name: str, password: str, is_right: bool) -> None:
    users = Users({"mjd": CHEAP.hash("open sesame"), "zed": CHEAP.hash("other")})

    assert await users.verify(name, password) is is_right
    users.close()


async def test_unknown_user_costs_a_hash_like_a_known_one() -> None:
    checked: list[str | bytes] = []

    class Counting(PasswordHasher):
        def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:  # noqa: A002 - its name
            checked.append(hash)
            return super().verify(hash, password)

    users = Users({"mjd": CHEAP.hash("open sesame")}, Counting())
    for name in ("mjd", "nobody"):
        # The right password for the wrong name matches the decoy, and must not count.
        assert await users.verify(name, "open sesame") is (name == "mjd")
    users.close()

    assert len(checked) == 2
    assert len(set(checked)) == 1


def _fail(back_off: BackOff, origin: str, now_ns: int) -> None:
    assert back_off.begin(origin, now_ns) is Admittance.NOW
    back_off.failed(origin, now_ns)


def test_wait_doubles_from_the_third_failure_up_to_15_minutes() -> None:
    back_off = BackOff()
    waits_s = []
    now_ns = 0
    for _ in range(14):
        _fail(back_off, "192.0.2.1", now_ns)
        wait_s = 0
        while back_off.is_blocked("192.0.2.1", now_ns + wait_s * SECOND_NS):
            wait_s += 1
        waits_s.append(wait_s)
        now_ns += wait_s * SECOND_NS

    assert waits_s == [0, 0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900]
    assert not back_off.is_blocked("192.0.2.2", now_ns)


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, BackOff.MEMORY_NS // 3)), max_size=60))
def test_table_holds_whoever_failed_within_the_hour_and_no_more(steps: list[tuple[int, int]]) -> None:
    back_off = BackOff(most_origins=10)
    now_ns = 0
    last: dict[str, int] = {}
    for number, step_ns in steps:
        now_ns += step_ns
        if back_off.begin(str(number), now_ns) is Admittance.LATER:
            continue
        back_off.failed(str(number), now_ns)
        last.pop(str(number), None)
        last[str(number)] = now_ns
        recent = [origin for origin, at_ns in last.items() if now_ns - at_ns < BackOff.MEMORY_NS]
        assert list(back_off._failures) == recent[-10:]


async def test_guess_waits_for_the_verdict_of_those_before_it() -> None:
    guesses = Guesses(FakeClock())
    verdicts = [asyncio.get_running_loop().create_future() for _ in range(5)]
    looked_at: list[int] = []

    async def verify(number: int) -> bool:
        looked_at.append(number)
        return bool(await verdicts[number])

    judged = [asyncio.create_task(guesses.judge("a", lambda n=n: verify(n))) for n in range(5)]  # type: ignore[misc]  # n is bound now
    elsewhere = asyncio.create_task(guesses.judge("b", lambda: verify(0)))
    for _ in range(3):
        await asyncio.sleep(0)
    assert looked_at == [0, 1, 2, 0]
    judged[0].cancel()
    await asyncio.wait([judged[0]])
    verdicts[1].set_result(True)
    assert await judged[1] is PasswordCheck.RIGHT
    for number in (2, 3, 4):
        verdicts[number].set_result(False)
    assert [await each for each in judged[2:]] == [PasswordCheck.WRONG] * 3
    assert await guesses.judge("a", lambda: verify(4)) is PasswordCheck.LATER
    elsewhere.cancel()
    assert guesses._waiting == {}
