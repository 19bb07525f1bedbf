"""Passwords, and the brake on guessing them."""

import asyncio
import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from argon2.exceptions import VerificationError
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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


async def test_a_user_removed_during_its_check_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    users = Users({"mjd": CHEAP.hash("open sesame"), "zed": CHEAP.hash("other")})
    verify = users._matches

    def removing(password_hash: str, password: str) -> bool:
        users.use({"zed": CHEAP.hash("other")})
        return verify(password_hash, password)

    monkeypatch.setattr(users, "_matches", removing)
    assert not await users.verify("mjd", "open sesame")
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


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """Leave this process 16 MiB of address space, and a hash takes 64."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 16 * 2**20, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


async def test_a_password_that_could_not_be_checked_is_not_wrong() -> None:
    users = Users({"mjd": PasswordHasher(time_cost=1, memory_cost=64 * 1024).hash("open sesame")})
    guesses = Guesses(FakeClock())
    for _ in range(BackOff.FREE_FAILURES + 1):
        with little_memory(), pytest.raises(VerificationError, match="Memory allocation"):
            await guesses.judge("192.0.2.1", lambda: users.verify("mjd", "open sesame"))
    assert await guesses.judge("192.0.2.1", lambda: users.verify("mjd", "open sesame")) is PasswordCheck.RIGHT
    users.close()


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


def test_success_and_an_hour_without_failure_are_forgiven() -> None:
    back_off = BackOff()
    for origin in ("a", "b"):
        for _ in range(2):
            _fail(back_off, origin, 0)
    assert back_off.begin("a", 0) is Admittance.NOW
    back_off.succeeded("a")
    _fail(back_off, "b", 0)
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
        if back_off.begin(str(number), now_ns) is Admittance.LATER:
            continue
        back_off.failed(str(number), now_ns)
        last.pop(str(number), None)
        last[str(number)] = now_ns
        recent = [origin for origin, at_ns in last.items() if now_ns - at_ns < BackOff.MEMORY_NS]
        assert list(back_off._failures) == recent[-10:]


class OneAfterTheOther:
    """What an origin may guess in one session: the law that `BackOff` keeps for sessions at once."""

    def __init__(self) -> None:
        self.failures = 0
        self.blocked_until_ns = 0

    def may_guess(self, now_ns: int) -> bool:
        return now_ns >= self.blocked_until_ns

    def fail(self, now_ns: int) -> None:
        self.failures += 1
        if self.failures >= BackOff.FREE_FAILURES:
            wait_ns = BackOff.FIRST_NS << (self.failures - BackOff.FREE_FAILURES)
            self.blocked_until_ns = now_ns + min(wait_ns, BackOff.LONGEST_NS)


class GuessesAtOnce(RuleBasedStateMachine):
    """Sessions of one origin begin and end guesses in any order, within an hour."""

    def __init__(self) -> None:
        super().__init__()
        self.back_off = BackOff()
        self.oracle = OneAfterTheOther()
        self.now_ns = 0
        self.begun = 0

    @rule(step_ms=st.integers(0, 5000))
    def wait(self, step_ms: int) -> None:
        self.now_ns += step_ms * 1_000_000

    @rule()
    def begin(self) -> None:
        match self.back_off.begin("a", self.now_ns):
            case Admittance.NOW:
                self.begun += 1
                # If all that are begun fail, each of them was one that one session had.
                assert self.oracle.may_guess(self.now_ns)
                assert self.begun == 1 or self.oracle.failures + self.begun <= BackOff.FREE_FAILURES
            case Admittance.AFTER_OTHERS:
                assert self.begun > 0
            case Admittance.LATER:
                assert not self.oracle.may_guess(self.now_ns)

    @precondition(lambda self: self.begun)
    @rule(ending=st.sampled_from(["failed", "succeeded", "unanswered"]))
    def end(self, ending: str) -> None:
        self.begun -= 1
        match ending:
            case "failed":
                self.back_off.failed("a", self.now_ns)
                self.oracle.fail(self.now_ns)
            case "succeeded":
                self.back_off.succeeded("a")
                self.oracle = OneAfterTheOther()
            case _:
                self.back_off.unanswered("a")

    @invariant()
    def nothing_is_left_behind(self) -> None:
        assert self.back_off._begun == ({"a": self.begun} if self.begun else {})


TestGuessesAtOnce = GuessesAtOnce.TestCase


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
