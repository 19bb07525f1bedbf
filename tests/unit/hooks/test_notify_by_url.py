"""A hook that is a URL: a real server on loopback."""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from relay.hooks.hooks import GIVE_UP_NS
from relay.mail.formats import rfc3339
from relay.smtp.reply import Phase, Reply
from relay.telemetry.events import Delays, Via
from relay.verdicts.decision import Fate
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict
from tests.fakes.clock import START_WALL_NS, FakeClock
from tests.unit.hooks.receiving import SECRET_PATH, HttpReceiver, Telling, policy_with


@pytest.fixture
async def receiver() -> AsyncIterator[HttpReceiver]:
    receiver = HttpReceiver()
    async with receiver.listening():
        yield receiver


def bounce(telling: Telling, *recipients: str, queue_id: str = "0123456789abcdef") -> None:
    for recipient in recipients:
        telling.events.delivery(
            queue_id=queue_id,  # type: ignore[arg-type]  # a text is enough
            reverse_path="list@here.example",
            recipient=recipient,
            fate=Fate.BOUNCED,
            answer=Answer(
                Verdict.BOUNCE, Phase.RCPT, Reply(550, "5.1.1", "no such user"), "550 5.1.1 no such user"
            ),
            delays=Delays(),
            via=Via("isp", "smtp.example.net[192.0.2.7]:587", 1, None),
        )


async def test_recipients_that_fail_together_are_one_notice(tmp_path: Path, receiver: HttpReceiver) -> None:
    telling = Telling(policy_with(tmp_path, {"url": receiver.url}))
    await telling.hooks.start()

    bounce(telling, "a@x.example", "b@x.example")
    await telling.until(lambda: telling.count("relay_notices_total", result="sent") == 1)
    await telling.hooks.close()

    (post,) = receiver.posts
    failed = {"status": "5.1.1", "code": 550, "reply": "550 5.1.1 no such user"}
    assert post.told == {
        "event": "bounced",
        "id": post.headers["webhook-id"],
        "at": rfc3339(START_WALL_NS),
        "host": "relay.test",
        "upstream": "isp",
        "queue_id": "0123456789abcdef",
        "message_id": None,
        "sender": "list@here.example",
        "recipients": [{"recipient": "a@x.example", **failed}, {"recipient": "b@x.example", **failed}],
        "reason": None,
        "until_at": None,
        "routes": None,
        "instead_of": None,
    }
    assert telling.kept() == []
    assert telling.count("relay_notices_waiting") == 0


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("plain words\n", b"plain words"),
        ("whsec_" + base64.b64encode(b"\0" * 24).decode(), b"\0" * 24),
    ],
)
async def test_a_post_is_signed_over_id_time_and_content(
    tmp_path: Path, receiver: HttpReceiver, written: str, key: bytes
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(written)
    secret.chmod(0o600)
    telling = Telling(policy_with(tmp_path, {"url": receiver.url, "secret_file": "secret"}))
    await telling.hooks.start()

    telling.resume()
    await telling.until(lambda: receiver.posts)
    await telling.hooks.close()

    (post,) = receiver.posts
    said_at = post.headers["webhook-timestamp"]
    signed = post.headers["webhook-id"].encode() + b"." + said_at.encode() + b"." + post.content
    assert said_at == str(telling.clock.wall_ns() // 10**9)
    version, _, given = post.headers["webhook-signature"].partition(",")
    assert version == "v1"
    assert base64.b64decode(given) == hmac.digest(key, signed, hashlib.sha256)


@pytest.mark.parametrize("status", [301, 307, 400, 410, 500])
async def test_what_is_refused_is_told_again_with_the_same_id(
    tmp_path: Path, receiver: HttpReceiver, status: int
) -> None:
    receiver.answers = [status, 200]
    clock = FakeClock()
    telling = Telling(policy_with(tmp_path, {"url": receiver.url}), clock)
    await telling.hooks.start()

    telling.resume()
    await telling.until(lambda: telling.count("relay_notice_failures_total") == 1)
    assert len(telling.kept()) == 1
    clock.advance(GIVE_UP_NS // 2)
    telling.resume("other")  # its arrival has the hook look at what is due
    await telling.until(lambda: telling.count("relay_notices_total", result="sent") == 2)
    await telling.hooks.close()

    first, *rest = receiver.posts
    assert [post.content for post in rest].count(first.content) == 1
    assert {post.path for post in receiver.posts} == {SECRET_PATH}
    assert f"http://127.0.0.1:{receiver.port} fail, and are tried again: HTTP status {status}" in telling.said
    assert "arrive again" in telling.said
    assert "SECRET" not in telling.said


async def test_what_a_stop_leaves_is_told_by_the_next_start(tmp_path: Path) -> None:
    receiver = HttpReceiver()
    async with receiver.listening():
        policy = policy_with(tmp_path, {"url": receiver.url})
        receiver.never = asyncio.Event()
        clock = FakeClock()
        before = Telling(policy, clock)
        await before.hooks.start()
        before.resume()
        await before.until(lambda: receiver.posts)
        clock.advance(1)
        before.events.upstream_stopped(upstream="isp", reason="535 no")
        await before.hooks.close()
        assert len(before.kept()) == 2
        receiver.never.set()

        after = Telling(policy)
        await after.hooks.start()
        await after.until(lambda: after.count("relay_notices_total", result="sent") == 2)
        await after.hooks.close()

    assert [post.told["event"] for post in receiver.posts] == ["resumed", "resumed", "stopped"]
    assert receiver.posts[0].content == receiver.posts[1].content
    assert after.kept() == []


async def test_a_receiver_that_is_down_delays_nothing(tmp_path: Path) -> None:
    receiver = HttpReceiver()
    async with receiver.listening():
        policy = policy_with(tmp_path, {"url": receiver.url})
    clock = FakeClock()
    telling = Telling(policy, clock)
    await telling.hooks.start()
    telling.resume()
    await telling.until(lambda: telling.count("relay_notice_failures_total") == 1)
    assert "cannot connect: Connect" in telling.said

    clock.advance(GIVE_UP_NS)
    telling.resume("other")
    await telling.until(lambda: telling.count("relay_notices_total", result="dropped") == 1)
    await telling.hooks.close()

    assert "told in vain for a day" in telling.said
    assert len(telling.kept()) == 1
