"""Hooks towards a real server on loopback and real programs."""

import asyncio
import base64
import hashlib
import hmac
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from relay.hooks.hooks import GIVE_UP_NS, MOST_NOTICES
from relay.mail.formats import rfc3339
from relay.smtp.reply import Phase, Reply
from relay.telemetry.events import Delays, Via
from relay.verdicts.decision import Fate
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict
from tests.fakes.clock import START_WALL_NS
from tests.unit.hooks.receiving import SECRET_PATH, HttpReceiver, Telling, policy_with


@pytest.fixture
async def receiver() -> AsyncIterator[HttpReceiver]:
    receiver = HttpReceiver()
    async with receiver.listening():
        yield receiver


def bounce(telling: Telling, *recipients: str) -> None:
    reply = Reply(550, "5.1.1", "no such user")
    for recipient in recipients:
        telling.events.delivery(
            queue_id="0123456789abcdef",  # type: ignore[arg-type]  # a text is enough
            reverse_path="list@here.example",
            recipient=recipient,
            fate=Fate.BOUNCED,
            answer=Answer(Verdict.BOUNCE, Phase.RCPT, reply, "550 5.1.1 no such user"),
            delays=Delays(),
            via=Via("isp", "smtp.example.net[192.0.2.7]:587", 1, None),
        )


def program(folder: Path, text: str) -> str:
    path = folder / "tell"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return "tell"


async def test_recipients_that_fail_together_are_one_notice(tmp_path: Path, receiver: HttpReceiver) -> None:
    telling = Telling(policy_with(tmp_path, {"url": receiver.url}))

    bounce(telling, "a@x.example", "b@x.example")
    await telling.until("sent", 1)
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

    telling.resume()
    await telling.until("sent", 1)
    await telling.hooks.close()

    (post,) = receiver.posts
    said_at = post.headers["webhook-timestamp"]
    signed = post.headers["webhook-id"].encode() + b"." + said_at.encode() + b"." + post.content
    assert said_at == str(telling.clock.wall_ns() // 10**9)
    version, _, given = post.headers["webhook-signature"].partition(",")
    assert version == "v1"
    assert base64.b64decode(given) == hmac.digest(key, signed, hashlib.sha256)


@pytest.mark.parametrize("status", [301, 307, 400, 410, 500])
async def test_a_notice_that_is_refused_is_sent_again_with_the_same_id(
    tmp_path: Path, receiver: HttpReceiver, status: int
) -> None:
    receiver.answers = [status, 200]
    telling = Telling(policy_with(tmp_path, {"url": receiver.url}))

    telling.resume()
    await telling.until("sent", 1)
    await telling.hooks.close()

    first, again = receiver.posts
    assert first.content == again.content
    assert first.headers["webhook-id"] == again.headers["webhook-id"]
    assert {post.path for post in receiver.posts} == {SECRET_PATH}, "redirects are not followed"
    assert f"http://127.0.0.1:{receiver.port} fail, and are tried again: HTTP status {status}" in telling.said
    assert "arrive again" in telling.said
    assert "SECRET" not in telling.said


async def test_a_notice_is_given_up_after_an_hour(tmp_path: Path) -> None:
    receiver = HttpReceiver()
    async with receiver.listening():
        telling = Telling(policy_with(tmp_path, {"url": receiver.url}))
    began_ns = telling.clock.boottime_ns()

    telling.resume()
    await telling.until("dropped", 1)

    assert telling.clock.boottime_ns() - began_ns >= GIVE_UP_NS
    assert "the request failed: " in telling.said
    assert "told in vain for an hour" in telling.said
    assert telling.metrics.registry.get_sample_value("relay_notices_waiting") == 0


async def test_the_oldest_go_first_and_a_stop_waits_for_no_receiver(
    tmp_path: Path, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.hooks.hooks.LAST_SECONDS", 0.01)
    receiver.never = asyncio.Event()
    telling = Telling(policy_with(tmp_path, {"url": receiver.url}))

    for number in range(MOST_NOTICES + 3):
        telling.resume(str(number))
    await telling.until("dropped", 3)
    await telling.hooks.close()

    assert "too many wait" in telling.said
    assert telling.count("dropped") == MOST_NOTICES + 3
    assert f"{MOST_NOTICES}, the relay stopped" in telling.said


async def test_only_the_events_of_a_hook_are_told(tmp_path: Path, receiver: HttpReceiver) -> None:
    telling = Telling(policy_with(tmp_path, {"url": receiver.url, "events": ["stopped"]}))

    telling.resume()
    telling.events.tell("upstream_stopped", upstream="isp", reason="535 no")
    await telling.until("sent", 1)
    await telling.hooks.close()

    assert [(post.told["event"], post.told["reason"]) for post in receiver.posts] == [("stopped", "535 no")]


async def test_an_edit_adds_a_hook_and_drops_what_waits_for_another(
    tmp_path: Path, receiver: HttpReceiver
) -> None:
    silent = HttpReceiver()
    silent.never = asyncio.Event()
    async with silent.listening():
        telling = Telling(policy_with(tmp_path, {"url": silent.url}))
        telling.resume()
        await asyncio.sleep(0)
        telling.hooks.use(policy_with(tmp_path, {"url": receiver.url}))
        telling.resume("new")
        await telling.until("sent", 1)
        await telling.hooks.close()

    assert [post.told["upstream"] for post in receiver.posts] == ["new"]
    assert telling.count("dropped") == 1
    assert "changed their hook" in telling.said


async def test_a_program_gets_the_notice_on_stdin_and_none_of_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISP_PASSWORD", "hunter2")
    told, seen = tmp_path / "told", tmp_path / "seen"
    command = program(tmp_path, f'cat > {told}; (echo "$*"; env) > {seen}')
    telling = Telling(policy_with(tmp_path, {"command": [command, "$HOME; true", "b"]}))

    telling.events.tell("upstream_paused", upstream="isp", reason="421 too much", until_at_ns=None)
    await telling.until("sent", 1)
    await telling.hooks.close()

    notice = json.loads(told.read_bytes())
    assert (notice["event"], notice["reason"]) == ("paused", "421 too much")
    assert seen.read_text().startswith("$HOME; true b\n")
    assert "hunter2" not in seen.read_text()


@pytest.mark.parametrize(
    ("text", "within", "said"),
    [
        ("exit 3", "1h", "exit status 3"),
        ("kill -9 $$", "1h", "killed by signal 9"),
        ("sleep 1000", "1s", "no answer within 1s"),
    ],
)
async def test_a_program_that_fails_is_told_of_and_run_again(
    tmp_path: Path, text: str, within: str, said: str
) -> None:
    again = tmp_path / "again"
    command = program(tmp_path, f"test -e {again} && exit 0; touch {again}; {text}")
    telling = Telling(policy_with(tmp_path, {"command": [command], "timeout": within}))

    telling.resume()
    await telling.until("sent", 1)
    await telling.hooks.close()

    assert said in telling.said
