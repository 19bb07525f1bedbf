"""AUTH: who may log in and send, quotas, the cost of guessing, and that no secret is shown."""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
from argon2 import PasswordHasher

from relay.clock import SECOND_NS
from relay.listener.listener_files import read_listener_files
from relay.listener.quotas import Owner, Quotas
from relay.listener.users import LoginLockouts, Users
from relay.policy.model import Listen
from relay.smtp.sasl import PasswordCheck
from tests.fakes.certificates import Certificates
from tests.fakes.clock import FakeClock
from tests.unit.listener.conversation import GOOD, TRANSACTION, WRONG, codes, listening
from tests.unit.listener.test_proxied import header

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def _policy(users_file: Path, **more: object) -> dict[str, object]:
    return {"users_file": str(users_file), "clients": []} | more


async def test_the_login_is_kept_in_the_envelope_and_stands_in_no_header(users_file: Path) -> None:
    async with listening(_policy(users_file)) as room:
        client = await room.greeted()
        assert await client.ask(b"AUTH PLAIN " + GOOD) == b"235 2.7.0 Authentication successful\r\n"
        await client.send(TRANSACTION + b"x\r\n.\r\n")
        assert await client.codes(4) == [250, 250, 354, 250]

        (message,) = room.intake.accepted
        assert (message.envelope.user, message.envelope.protocol) == ("mjd", "ESMTPA")
        assert b"mjd" not in message.trace


LISTS: dict[str, object] = {"mjd": ["news@here.example", "@lists.example", "list-*@here.example"]}
PRINTER: dict[str, object] = {"printer": "printer@here.example", "*": "@here.example"}


@pytest.mark.parametrize(
    ("users", "reverse_path", "may"),
    [
        *((LISTS, path, True) for path in ("", "News@Here.Example", '"news"@here.example')),
        *((LISTS, path, True) for path in ("any@lists.example", "list-7-me=there@here.example")),
        *((LISTS, path, False) for path in ("root@here.example", "any@sub.lists.example")),
        ({"printer": "printer@here.example"}, "any@here.example", True),
        *((PRINTER, "any@here.example", True), (PRINTER, "any@there.example", False)),
        ({"mjd": "@there.example", "*": "@here.example"}, "any@here.example", False),
    ],
)  # fmt: skip
async def test_a_user_may_use_only_its_own_sender_addresses_and_a_client_without_a_login_any(
    users_file: Path, users: dict[str, object], reverse_path: str, *, may: bool
) -> None:
    settings = {name: {"senders": senders} for name, senders in users.items()}
    mail = b"MAIL FROM:<" + reverse_path.encode() + b">"
    async with listening(_policy(users_file, users=settings, clients=["127.0.0.9"])) as room:
        trusted, client = await room.greeted(source="127.0.0.9"), await room.greeted()
        assert codes(await trusted.ask(mail)) == [250]
        await client.ask(b"AUTH PLAIN " + GOOD)
        reply = await client.ask(mail)

        assert codes(reply) == [250 if may else 550]
        if not may:
            assert reply == b"550 5.7.1 You may not use this sender address with your login\r\n"
            assert codes(await client.ask(b"RCPT TO:<a@b>")) == [503]


@pytest.mark.parametrize(
    "hashes",
    [
        lambda known: {name: hashed for name, hashed in known.items() if name != "mjd"},
        lambda known: dict.fromkeys(known, CHEAP.hash("other")),
    ],
    ids=["gone", "another password"],
)
async def test_a_session_whose_login_changed_finishes_its_message_and_gets_421(
    users_file: Path, hashes: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> None:
    async with listening(_policy(users_file)) as room:
        client = await room.greeted()
        await client.ask(b"AUTH PLAIN " + GOOD)
        await client.send(TRANSACTION.removesuffix(b"DATA\r\n"))
        assert await client.codes(2) == [250, 250]
        files = read_listener_files(room.listen)
        room.listener.use(replace(files, hashes=hashes(files.hashes)))

        await client.send(b"DATA\r\nx\r\n.\r\nNOOP\r\nMAIL FROM:<a@b>\r\n")
        told = await client.rest()
        assert codes(told) == [354, 250, 250, 421]
        assert told.endswith(b"\r\n421 4.7.0 Your login has changed, connect and log in again\r\n")
        again = await room.greeted()
        assert codes(await again.ask(b"AUTH PLAIN " + GOOD)) == [535]


async def test_third_wrong_password_ends_the_session_and_begins_a_wait(users_file: Path) -> None:
    async with listening(_policy(users_file)) as room:
        client = await room.greeted()
        told = [await client.ask(b"AUTH PLAIN " + WRONG) for _ in range(3)]
        assert codes(b"".join(told)) == [535, 535, 421]
        assert await client.rest() == b""

        again = await room.greeted()
        assert codes(await again.ask(b"AUTH PLAIN " + GOOD)) == [454]
        zoe = [b"AUTH LOGIN", b64encode("zoë".encode()), b64encode(b"x")]
        assert codes(b"".join([await again.ask(line) for line in zoe])) == [334, 334, 454]
        assert room.observer.tried == ["mjd", "mjd", "mjd", "mjd", "zoë"]
        room.clock.advance(2 * SECOND_NS)
        assert codes(await again.ask(b"AUTH PLAIN " + GOOD)) == [235]
        # The success forgot the failures before it; otherwise there would be another wait.
        third = await room.greeted()
        assert [codes(await third.ask(b"AUTH PLAIN " + each)) for each in (WRONG, GOOD)] == [[535], [235]]


async def test_no_secret_reaches_the_observer(users_file: Path) -> None:
    async with listening(_policy(users_file)) as room:
        client = await room.greeted()
        for line in (b"AUTH PLAIN " + WRONG, b"AUTH LOGIN " + b64encode(b"mjd"), b64encode(b"guess"), GOOD):
            await client.ask(line)
        shown = repr(room.observer)

        for secret in (WRONG.decode(), GOOD.decode(), "guess", "sesame", b64encode(b"guess").decode()):
            assert secret not in shown


async def test_password_is_not_taken_in_the_clear_from_another_host(
    users_file: Path, certificates: Certificates
) -> None:
    policy = _policy(users_file, proxies=["127.0.0.1"]) | certificates.policy()
    async with listening(policy) as room:
        client = await room.connect()
        # All of 127/8 is loopback: only a PROXY header can name another host.
        await client.send(header("192.0.2.1"))
        await client.reply()
        assert b"AUTH" not in await client.ask(b"EHLO x")
        assert codes(await client.ask(b"AUTH PLAIN " + GOOD)) == [538]
        assert await client.ask(b"MAIL FROM:<a@b>") == b"530 5.7.0 Must issue a STARTTLS command first\r\n"
        await client.ask(b"STARTTLS")
        await client.start_tls(certificates.ca)
        assert b"250-AUTH PLAIN LOGIN\r\n" in await client.ask(b"EHLO x")
        assert codes(await client.ask(b"AUTH PLAIN " + GOOD)) == [235]
        assert codes(await client.ask(b"MAIL FROM:<a@b>")) == [250]


async def test_a_client_at_its_quota_gets_452_at_mail_until_less_is_queued() -> None:
    async with listening({"max_queued_per_client": 2}) as room:
        client, quotas = await room.greeted(), room.listener.quotas
        for count, code in ((2, 452), (1, 250)):
            quotas.full = quotas.owners_at_limit([(Owner.of(None, "unknown[127.0.0.1]"), count)])
            assert codes(await client.ask(b"MAIL FROM:<>") + await client.ask(b"RSET")) == [code, 250]


def _quotas(**more: object) -> Quotas:
    listen = {"address": "127.0.0.1:2525", "users_file": "users"} | more
    return Quotas(Listen.model_validate(listen, strict=False))


def test_an_owner_is_reported_once_it_reaches_its_own_quota_or_the_default() -> None:
    alice, bob, carla = (Owner.of(name, "unknown[192.0.2.1]") for name in ("alice", "bob", "carla"))
    client = Owner.of(None, "unknown[192.0.2.1]")
    users = {"alice": {"max_queued": 4}, "bob": {}, "*": {"max_queued": 2}}
    held = [(alice, 3), (alice, 4), (bob, 900), (carla, 1), (carla, 2), (client, 6), (client, 8)]

    quotas = _quotas(max_queued_per_client=7, users=users)
    assert quotas.owners_at_limit(held) == {alice, carla, client} == {("alice", ""), ("carla", ""), client}
    assert not _quotas(users={"bob": {"senders": "bob@here.example"}}).has_limits
    assert _quotas(users=users).has_limits
    assert _quotas(max_queued_per_client=7).has_limits


class SlowHasher(PasswordHasher):
    """A hasher that records each password that it verifies, and calls `meanwhile`."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.checked: list[str | bytes] = []
        self.meanwhile = meanwhile

    def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:  # noqa: A002 - its name
        self.checked.append(password)
        self.meanwhile()
        return super().verify(hash, password)


async def test_each_attempt_costs_a_hash_and_a_change_during_it_lets_nobody_in() -> None:
    hasher = SlowHasher()
    users = Users({"mjd": CHEAP.hash("open sesame")}, hasher)
    # An unknown name is checked against a decoy, here mjd's hash: the match must not count.
    for name, password in (("mjd", "open sesame "), ("MJD", "open sesame"), ("nobody", "open sesame")):
        assert not await users.verify(name, password)
        assert hasher.checked.pop() == password
    assert await users.verify("mjd", "open sesame")

    hasher.meanwhile = lambda: users.use({"mjd": CHEAP.hash("another")})
    assert not await users.verify("mjd", "open sesame")
    users.close()


async def _is_right(verdict: bool) -> bool:
    return verdict


_wrong, _right = partial(_is_right, False), partial(_is_right, True)


async def test_wait_doubles_from_the_third_failure_up_to_15_minutes_and_an_hour_forgives() -> None:
    clock = FakeClock()
    lockouts = LoginLockouts(clock)
    waits_s = []
    for _ in range(14):
        assert await lockouts.check("192.0.2.1", _wrong) is PasswordCheck.WRONG
        wait_s = 0
        while lockouts.is_locked_out("192.0.2.1"):
            clock.advance(SECOND_NS)
            wait_s += 1
        waits_s.append(wait_s)

    assert waits_s == [0, 0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900]
    assert await lockouts.check("192.0.2.1", _wrong) is PasswordCheck.WRONG
    assert await lockouts.check("192.0.2.1", _right) is PasswordCheck.LATER
    assert await lockouts.check("192.0.2.2", _right) is PasswordCheck.RIGHT
    # An hour without a wrong password forgives all failures.
    clock.advance(3600 * SECOND_NS)
    assert await lockouts.check("192.0.2.1", _wrong) is PasswordCheck.WRONG
    assert not lockouts.is_locked_out("192.0.2.1")


async def test_the_oldest_origin_is_forgotten_beyond_max_origins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoginLockouts, "MAX_ORIGINS", 2)
    lockouts = LoginLockouts(FakeClock())
    for origin in ("a", "b", "a", "b", "a", "b", "c"):
        await lockouts.check(origin, _wrong)

    assert [lockouts.is_locked_out(origin) for origin in "abc"] == [False, True, False]


async def test_guesses_of_one_origin_are_judged_in_turn_and_origins_in_parallel() -> None:
    lockouts = LoginLockouts(FakeClock())
    verdicts = [asyncio.get_running_loop().create_future() for _ in range(5)]
    looked_at: list[int] = []

    async def verify(number: int) -> bool:
        looked_at.append(number)
        return bool(await verdicts[number])

    judged = [asyncio.create_task(lockouts.check("a", lambda n=n: verify(n))) for n in range(5)]  # type: ignore[misc]  # n is bound now
    elsewhere = asyncio.create_task(lockouts.check("b", lambda: verify(4)))
    await asyncio.sleep(0)
    assert looked_at == [0, 4]
    judged[0].cancel()
    await asyncio.wait([judged[0]])
    for number in (1, 2, 3):
        verdicts[number].set_result(False)

    assert [await each for each in judged[1:]] == [PasswordCheck.WRONG] * 3 + [PasswordCheck.LATER]
    assert looked_at == [0, 4, 1, 2, 3]
    elsewhere.cancel()
