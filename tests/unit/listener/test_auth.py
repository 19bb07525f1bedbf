"""AUTH: who may, what it costs to guess, and that nothing of it is shown."""

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from relay.clock import SECOND_NS
from relay.listener.listener_files import read_listener_files
from tests.fakes.certificates import Certificates
from tests.unit.listener.conversation import TRANSACTION, codes, listening
from tests.unit.listener.test_proxied import header

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
GOOD = b64encode(b"\0mjd\0open sesame")
WRONG = b64encode(b"\0mjd\0guess")


def _policy(users_file: Path, **more: object) -> dict[str, object]:
    return {"users_file": str(users_file), "clients": [], **more}


async def test_who_logged_in_is_known_with_the_message_and_stands_in_no_header(users_file: Path) -> None:
    async with listening(_policy(users_file)) as room:
        client = await room.greeted()
        assert await client.ask(b"AUTH PLAIN " + GOOD) == b"235 2.7.0 Authentication successful\r\n"
        await client.send(TRANSACTION + b"x\r\n.\r\n")
        assert codes(b"".join(await client.replies(4))) == [250, 250, 354, 250]

        (message,) = room.intake.accepted
        assert (message.envelope.user, message.envelope.protocol) == ("mjd", "ESMTPA")
        assert b"mjd" not in message.trace


@pytest.mark.parametrize(
    ("users", "reverse_path", "may"),
    [
        ({"mjd": "mjd@here.example"}, "mjd@here.example", True),
        ({"mjd": "mjd@here.example"}, "MJD@Here.Example", True),
        ({"mjd": "mjd@here.example"}, '"mjd"@here.example', True),
        ({"mjd": "mjd@here.example"}, "root@here.example", False),
        ({"mjd": "mjd@here.example"}, "", True),
        ({"mjd": ["news@here.example", "@lists.example"]}, "any@lists.example", True),
        ({"mjd": ["news@here.example", "@lists.example"]}, "any@sub.lists.example", False),
        ({"mjd": "list-*@here.example"}, "list-7-me=there@here.example", True),
        ({"printer": "printer@here.example"}, "any@here.example", True),
        ({"printer": "printer@here.example", "*": "@here.example"}, "any@here.example", True),
        ({"printer": "printer@here.example", "*": "@here.example"}, "any@there.example", False),
        ({"mjd": "@there.example", "*": "@here.example"}, "any@here.example", False),
    ],
)
async def test_a_user_gives_only_senders_of_its_own(
    users_file: Path, users: dict[str, object], reverse_path: str, *, may: bool
) -> None:
    settings = {name: {"senders": senders} for name, senders in users.items()}
    async with listening(_policy(users_file, users=settings)) as room:
        client = await room.greeted()
        await client.ask(b"AUTH PLAIN " + GOOD)

        reply = await client.ask(b"MAIL FROM:<" + reverse_path.encode() + b">")

        assert codes(reply) == [250 if may else 550]
        if not may:
            assert reply == b"550 5.7.1 You may not use this sender address with your login\r\n"
            assert codes(await client.ask(b"RCPT TO:<a@b>")) == [503]


async def test_who_needs_no_login_gives_any_sender(users_file: Path) -> None:
    users = {"*": {"senders": "@here.example"}}
    async with listening({"users_file": str(users_file), "users": users}) as room:
        client = await room.greeted()

        assert codes(await client.ask(b"MAIL FROM:<any@there.example>")) == [250]


@pytest.mark.parametrize(
    "hashes",
    [
        lambda known: {name: hashed for name, hashed in known.items() if name != "mjd"},
        lambda known: dict.fromkeys(known, CHEAP.hash("other")),
    ],
    ids=["gone", "another password"],
)
async def test_a_login_that_changed_finishes_its_message_and_no_more(
    users_file: Path, hashes: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> None:
    async with listening(_policy(users_file)) as room:
        client = await room.greeted()
        await client.ask(b"AUTH PLAIN " + GOOD)
        for command in (b"MAIL FROM:<a@b>", b"RCPT TO:<c@d>"):
            assert codes(await client.ask(command)) == [250]
        files = read_listener_files(room.listen)
        room.listener.use(replace(files, hashes=hashes(files.hashes)))

        assert codes(await client.ask(b"DATA")) == [354]
        await client.send(b"x\r\n.\r\nNOOP\r\nMAIL FROM:<a@b>\r\n")
        assert (
            await client.rest()
            == (
                b"250 2.0.0 Ok: queued as %b\r\n250 2.0.0 Ok\r\n"
                b"421 4.7.0 Your login has changed, connect and log in again\r\n"
            )
            % room.intake.drafts[0].queue_id.encode()
        )
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
        assert codes(await again.ask(b"AUTH LOGIN")) == [334]
        assert codes(await again.ask(b64encode("zoë".encode()))) == [334]
        assert codes(await again.ask(b64encode(b"x"))) == [454]
        assert room.observer.tried == ["mjd", "mjd", "mjd", "mjd", "zoë"]
        room.clock.advance(2 * SECOND_NS)
        assert codes(await again.ask(b"AUTH PLAIN " + GOOD)) == [235]
        # What was wrong before is forgotten, or there would be a wait again.
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
    policy = _policy(users_file, certificate=str(certificates.cert), key=str(certificates.key))
    async with listening({**policy, "proxies": ["127.0.0.1"]}) as room:
        client = await room.connect()
        # All of 127/8 is loopback: only a balancer can tell of another host.
        await client.send(header("192.0.2.1"))
        await client.reply()
        assert b"AUTH" not in await client.ask(b"EHLO x")
        assert codes(await client.ask(b"AUTH PLAIN " + GOOD)) == [538]
        assert await client.ask(b"MAIL FROM:<a@b>") == b"530 5.7.0 Must issue a STARTTLS command first\r\n"
        await client.ask(b"STARTTLS")
        await client.start_tls(str(certificates.ca))
        assert b"250-AUTH PLAIN LOGIN\r\n" in await client.ask(b"EHLO x")
        assert codes(await client.ask(b"AUTH PLAIN " + GOOD)) == [235]
        assert codes(await client.ask(b"MAIL FROM:<a@b>")) == [250]
