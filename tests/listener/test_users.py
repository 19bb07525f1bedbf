"""Passwords, and the brake on guessing them."""

import pytest
from argon2 import PasswordHasher
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.listener.users import BackOff, Users

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


async def test_unknown_user_costs_a_hash_like_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    users = Users({"mjd": CHEAP.hash("open sesame")})
    checked: list[str] = []
    verify = users._matches

    def counting(password_hash: str, password: str) -> bool:
        checked.append(password_hash)
        return verify(password_hash, password)

    monkeypatch.setattr(users, "_matches", counting)
    for name in ("mjd", "nobody"):
        # The right password for the wrong name matches the decoy, and must not count.
        assert await users.verify(name, "open sesame") is (name == "mjd")
    users.close()

    assert len(checked) == 2
    assert len(set(checked)) == 1


def test_wait_doubles_from_the_third_failure_up_to_a_quarter_of_an_hour() -> None:
    back_off = BackOff()
    waits_s = []
    now_ns = 0
    for _ in range(14):
        back_off.failed("192.0.2.1", now_ns)
        wait_s = 0
        while back_off.is_blocked("192.0.2.1", now_ns + wait_s * SECOND_NS):
            wait_s += 1
        waits_s.append(wait_s)
        now_ns += wait_s * SECOND_NS

    assert waits_s == [0, 0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900]
    assert not back_off.is_blocked("192.0.2.2", now_ns)


def test_success_and_an_hour_without_failure_are_forgiven() -> None:
    back_off = BackOff()
    for origin in ("a", "b"):
        for _ in range(3):
            back_off.failed(origin, 0)
    back_off.succeeded("a")
    assert not back_off.is_blocked("a", 0)
    assert back_off.is_blocked("b", 0)

    assert not back_off.is_blocked("c", BackOff.MEMORY_NS)
    assert len(back_off) == 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, BackOff.MEMORY_NS // 3)), max_size=60))
def test_table_holds_whoever_failed_within_the_hour_and_no_more(steps: list[tuple[int, int]]) -> None:
    back_off = BackOff()
    back_off.MAX_ORIGINS = 10
    now_ns = 0
    last: dict[str, int] = {}
    for number, step_ns in steps:
        now_ns += step_ns
        back_off.failed(str(number), now_ns)
        last.pop(str(number), None)
        last[str(number)] = now_ns
        recent = [origin for origin, at_ns in last.items() if now_ns - at_ns < BackOff.MEMORY_NS]
        assert list(back_off._failures) == recent[-10:]
