"""AUTH: who may, what it costs to guess, and that nothing of it is shown."""

import asyncio
import threading
from base64 import b64encode
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from tests.fakes.certificates import Certificates
from tests.unit.listener.conversation import TRANSACTION, Room, codes, listening

GOOD = b64encode(b"\0mjd\0open sesame")
WRONG = b64encode(b"\0mjd\0guess")


def _policy(users_file: Path, **more: object) -> dict[str, object]:
    return {"users_file": str(users_file), "clients": [], **more}


@pytest.mark.parametrize(
    "lines",
    [
        [b"AUTH PLAIN " + GOOD],
        [b"auth plain", GOOD],
        [b"AUTH PLAIN " + b64encode(b"mjd\0mjd\0open sesame")],
        [b"AUTH LOGIN", b64encode(b"mjd"), b64encode(b"open sesame")],
        [b"AUTH LOGIN " + b64encode(b"mjd"), b64encode(b"open sesame")],
        [b"AUTH PLAIN " + b64encode("\0zoë\0schlüssel".encode())],
    ],
)
async def test_user_with_the_password_may_relay(users_file: Path, lines: list[bytes]) -> None:
    async with listening(_policy(users_file)) as room:
        client = await room.greeted()
        assert await client.ask(b"MAIL FROM:<a@b>") == b"530 5.7.0 Authentication required\r\n"
        *challenges, result = [await client.ask(line) for line in lines]
        assert all(challenge.startswith(b"334 ") for challenge in challenges)
        assert result == b"235 2.7.0 Authentication successful\r\n"
        assert codes(await client.ask(lines[0])) == [503]
        await client.send(TRANSACTION + b"x\r\n.\r\n")
        assert codes(b"".join(await client.replies(4))) == [250, 250, 354, 250]

        envelope = room.intake.accepted[0].envelope
        assert envelope.user in {"mjd", "zoë"}
        assert envelope.protocol == "ESMTPA"
        assert b"mjd" not in room.intake.accepted[0].trace


@pytest.mark.parametrize(
    ("lines", "reply"),
    [
        ([b"AUTH"], b"501 5.5.4 "),
        ([b"AUTH CRAM-MD5"], b"504 5.5.4 "),
        ([b"AUTH PLAIN *"], b"501 5.7.0 "),
        ([b"AUTH PLAIN", b"*"], b"501 5.7.0 "),
        ([b"AUTH LOGIN", b"*"], b"501 5.7.0 "),
        ([b"AUTH LOGIN", b64encode(b"mjd"), b"*"], b"501 5.7.0 "),
        ([b"AUTH PLAIN !!!"], b"501 5.5.2 "),
        ([b"AUTH PLAIN \xff"], b"501 5.5.2 "),
        ([b"AUTH PLAIN ="], b"501 5.5.2 "),
        ([b"AUTH PLAIN " + b64encode(b"mjd\0open sesame")], b"501 5.5.2 "),
        ([b"AUTH PLAIN " + b64encode(b"\0mjd\0\xff")], b"501 5.5.2 "),
        ([b"AUTH PLAIN", b"x" * 5000], b"500 5.5.6 "),
        ([b"AUTH PLAIN", b"a\0b"], b"500 5.5.2 "),
        ([b"AUTH PLAIN " + WRONG], b"535 5.7.8 "),
        ([b"AUTH PLAIN " + b64encode(b"\0nobody\0open sesame")], b"535 5.7.8 "),
        ([b"AUTH PLAIN " + b64encode(b"root\0mjd\0open sesame")], b"535 5.7.8 "),
        ([b"AUTH LOGIN", b64encode(b""), b64encode(b"")], b"535 5.7.8 "),
        ([b"HELO x", b"AUTH PLAIN " + GOOD], b"503 5.5.1 "),
    ],
)
async def test_anything_else_does_not_authenticate(
    users_file: Path, lines: list[bytes], reply: bytes
) -> None:
    async with listening(_policy(users_file)) as room:
        client = await room.greeted()
        *_, result = [await client.ask(line) for line in lines]
        assert result.startswith(reply)
        assert codes(await client.ask(b"MAIL FROM:<a@b>")) == [530]
        assert room.observer.faults == []


async def test_auth_is_not_permitted_inside_a_transaction(users_file: Path) -> None:
    async with listening({"users_file": str(users_file)}) as room:
        client = await room.greeted()
        await client.ask(b"MAIL FROM:<a@b>")
        assert codes(await client.ask(b"AUTH PLAIN " + GOOD)) == [503]


async def test_third_wrong_password_ends_the_session_and_begins_a_wait(users_file: Path) -> None:
    async with listening(_policy(users_file)) as room:
        client = await room.greeted()
        told = [await client.ask(b"AUTH PLAIN " + WRONG) for _ in range(3)]
        assert codes(b"".join(told)) == [535, 535, 421]
        assert await client.rest() == b""

        again = await room.greeted()
        assert codes(await again.ask(b"AUTH PLAIN " + GOOD)) == [454]
        # As if the wait were over.
        back_off = room.listener._reception.guesses.back_off
        count, last_at_ns = back_off._failures["127.0.0.1"]
        back_off._failures["127.0.0.1"] = (count, last_at_ns - 10 * SECOND_NS)
        assert codes(await again.ask(b"AUTH PLAIN " + GOOD)) == [235]
        assert len(back_off) == 0


async def test_no_secret_reaches_the_observer(users_file: Path) -> None:
    async with listening(_policy(users_file)) as room:
        client = await room.greeted()
        for line in (b"AUTH PLAIN " + WRONG, b"AUTH LOGIN " + b64encode(b"mjd"), b64encode(b"guess"), GOOD):
            await client.ask(line)
        shown = repr(room.observer)

        for secret in (WRONG.decode(), GOOD.decode(), "guess", "sesame", b64encode(b"guess").decode()):
            assert secret not in shown


async def test_password_is_not_taken_in_the_clear_from_another_host(
    users_file: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All of 127/8 is loopback, so that no test can connect from elsewhere: only this answer is changed.
    monkeypatch.setattr("relay.listener.access.Client.is_loopback", False)
    policy = _policy(users_file, certificate=str(certificates.cert), key=str(certificates.key))
    async with listening(policy) as room:
        client = await room.connect()
        await client.reply()
        assert b"AUTH" not in await client.ask(b"EHLO x")
        assert codes(await client.ask(b"AUTH PLAIN " + GOOD)) == [538]
        assert await client.ask(b"MAIL FROM:<a@b>") == b"530 5.7.0 Must issue a STARTTLS command first\r\n"
        await client.ask(b"STARTTLS")
        await client.start_tls(str(certificates.ca))
        assert b"250-AUTH PLAIN LOGIN\r\n" in await client.ask(b"EHLO x")
        assert codes(await client.ask(b"AUTH PLAIN " + GOOD)) == [235]
        assert codes(await client.ask(b"MAIL FROM:<a@b>")) == [250]


async def test_authentication_does_not_outlive_starttls(users_file: Path, certificates: Certificates) -> None:
    policy = _policy(users_file, certificate=str(certificates.cert), key=str(certificates.key))
    async with listening(policy) as room:
        client = await room.greeted()
        assert codes(await client.ask(b"AUTH PLAIN " + GOOD)) == [235]
        await client.ask(b"STARTTLS")
        await client.start_tls(str(certificates.ca))
        await client.ask(b"EHLO x")
        assert codes(await client.ask(b"MAIL FROM:<a@b>")) == [530]


async def _try(room: Room, line: bytes) -> list[int]:
    """Try a line of AUTH three times on a connection of its own; return the codes."""
    client = await room.greeted()
    await client.send((line + b"\r\n") * 3 + b"QUIT\r\n")
    return codes(await client.rest())


async def test_sessions_at_once_have_no_more_guesses_than_one(users_file: Path) -> None:
    async with listening(_policy(users_file, max_connections_per_client=100)) as room:
        told = await asyncio.gather(*(_try(room, b"AUTH PLAIN " + WRONG) for _ in range(100)))
        answers = [code for codes_of_one in told for code in codes_of_one]

        # One after the other: three wrong ones, of which the third in one session is told by 421.
        assert answers.count(535) + answers.count(421) == 3
        assert answers.count(454) >= 290


async def test_sessions_that_know_the_password_need_not_take_turns(users_file: Path) -> None:
    async with listening(_policy(users_file)) as room:
        told = await asyncio.gather(*(_try(room, b"AUTH PLAIN " + GOOD) for _ in range(40)))

        assert told == [[235, 503, 503, 221]] * 40


async def test_login_is_put_off_where_no_thread_is_to_be_had(
    monkeypatch: pytest.MonkeyPatch, users_file: Path
) -> None:
    def none_to_be_had(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with listening(_policy(users_file)) as room:
        client = await room.greeted()
        with monkeypatch.context() as lack:
            lack.setattr(threading.Thread, "start", none_to_be_had)
            for _ in range(4):
                assert codes(await client.ask(b"AUTH PLAIN " + GOOD)) == [451]
        assert codes(await client.ask(b"AUTH PLAIN " + GOOD)) == [235]


async def test_login_is_put_off_where_the_password_cannot_be_checked(users_file: Path) -> None:
    async with listening(_policy(users_file)) as room:
        client = await room.greeted()
        users = room.listener._reception.users
        assert users is not None
        # Argon2 says the same sort of thing of this hash as of a lack of memory or threads.
        users._hashes["mjd"] = users._hashes["mjd"][:-5]
        assert codes(await client.ask(b"AUTH PLAIN " + GOOD)) == [451]
