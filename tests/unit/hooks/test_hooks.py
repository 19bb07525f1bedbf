"""Hooks send notices to a real server on loopback and to real programs."""

import asyncio
import base64
import hashlib
import hmac
import io
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from relay.clock import SECOND_NS
from relay.hooks.hooks import GIVE_UP_NS, MOST_NOTICES, Hooks
from relay.mail.envelope import Envelope, QueueId, Shape
from relay.mail.formats import rfc3339
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from relay.smtp.reply import Phase, Reply
from relay.spool.interface import Message
from relay.telemetry.events import Delays, Events, Subject, Via
from relay.telemetry.metrics import Metrics, Telemetry
from relay.verdicts.decision import Fate
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict
from tests.fakes.clock import START_WALL_NS, FakeClock
from tests.fakes.virtual_time import pass_time

PATIENCE_SECONDS = 120.0
SECRET_PATH = "/T0PSECRET/relay"


class Receiver:
    """Keeps each POST and answers with the next status of `answers`; the last one repeats."""

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []
        self.contents: list[bytes] = []
        self.answers = [204]
        self.never_takes: set[str] = set()
        """Notices about these upstreams get 413."""
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        assert request.path == SECRET_PATH, "redirects are not followed"
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.contents.append(await request.read())
        await self.may_answer.wait()
        if json.loads(self.contents[-1])["upstream"] in self.never_takes:
            return web.Response(status=413)
        status = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return web.Response(status=status, headers={"Location": "/elsewhere"}, text="T0PSECRET answer")

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(content) for content in self.contents]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver, app = Receiver(), web.Application()
    app.router.add_route("*", "/{tail:.*}", receiver.take)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}{SECRET_PATH}"
    yield receiver
    receiver.may_answer.set()
    await runner.cleanup()


def policy_with(folder: Path, *hooks: dict[str, Any]) -> Policy:
    policy = {
        "spool": "./spool",
        "listen": [{"address": "127.0.0.1:0", "clients": ["127.0.0.0/8"]}],
        "upstreams": {"isp": {"host": "smtp.example.net", "limits": []}},
        "notify": list(hooks),
    }
    return parse_policy(json.dumps(policy).encode(), folder / "policy.yaml")


class Telling:
    """The hooks of one run of a relay, its log and its metrics.  A sleep only advances the clock."""

    def __init__(self, policy: Policy) -> None:
        self.log, self.clock = io.StringIO(), FakeClock()
        self.events, self.metrics = Events(self.log, "text", self.clock), Metrics()
        telemetry = Telemetry(self.events, self.metrics, self.clock)
        self.slept: list[float] = []
        self.may_sleep = asyncio.Event()
        self.may_sleep.set()
        self.hooks = Hooks(policy, "relay.test", telemetry, self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self.may_sleep.wait()
        self.clock.advance(int(seconds * SECOND_NS))
        await asyncio.sleep(0)

    async def until(self, result: str, count: int) -> None:
        """Wait until `count` notices have the result `sent` or `dropped`."""
        await self.until_so(lambda: self.count(result) == count)

    async def until_so(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not is_so():
                await pass_time(0.001)  # receivers and programs need real time

    async def sent(self) -> None:
        await self.until("sent", 1)
        await self.hooks.close()

    @property
    def waiting(self) -> float | None:
        return self.metrics.registry.get_sample_value("relay_notices_waiting")

    @property
    def said(self) -> str:
        return self.log.getvalue()

    def count(self, result: str) -> float | None:
        return self.metrics.registry.get_sample_value("relay_notices_total", {"result": result})

    def resume(self, upstream: str = "isp") -> None:
        self.events.tell("upstream_resumed", upstream=upstream)


def bounce(telling: Telling, *recipients: str) -> None:
    reply = Reply(550, "5.1.1", "no such user")
    envelope = Envelope("list@here.example", recipients, 0, "c", "h", "ESMTP")
    shape = Shape(1, eight_bit=False, smtputf8=False)
    message = Message(QueueId("0123456789abcdef"), envelope, shape, ())
    for index in range(len(recipients)):
        telling.events.delivery(
            Subject(message),
            index,
            Fate.BOUNCED,
            Answer(Verdict.BOUNCE, Phase.RCPT, reply, "550 5.1.1 no such user"),
            delays=Delays(),
            via=Via("isp", "smtp.example.net[192.0.2.7]:587", 1, None),
        )


def program(folder: Path, text: str) -> str:
    path = folder / "tell"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return "tell"


async def test_recipients_that_fail_together_are_one_notice(tmp_path: Path, receiver: Receiver) -> None:
    telling = Telling(policy_with(tmp_path, {"url": receiver.url}))

    bounce(telling, "a@x.example", "b@x.example")
    await telling.sent()

    failed = {"status": "5.1.1", "code": 550, "reply": "550 5.1.1 no such user"}
    nothing = dict.fromkeys(("message_id", "reason", "until_at", "routes", "instead_of"))
    assert receiver.told == [
        {
            "event": "bounced",
            "id": receiver.headers[0]["webhook-id"],
            "at": rfc3339(START_WALL_NS),
            "host": "relay.test",
            "upstream": "isp",
            "queue_id": "0123456789abcdef",
            "sender": "list@here.example",
            "recipients": [{"recipient": "a@x.example", **failed}, {"recipient": "b@x.example", **failed}],
            **nothing,
        }
    ]


@pytest.mark.parametrize(
    ("written", "key"),
    [("plain words\n", b"plain words"), (f"whsec_{base64.b64encode(bytes(24)).decode()}", bytes(24))],
)
async def test_a_post_is_signed_over_id_time_and_content(
    tmp_path: Path, receiver: Receiver, written: str, key: bytes
) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(written)
    telling = Telling(policy_with(tmp_path, {"url": receiver.url, "secret_file": "secret"}))

    telling.resume()
    await telling.sent()

    (headers,), (content,) = receiver.headers, receiver.contents
    said_at = headers["webhook-timestamp"]
    signed = f"{headers['webhook-id']}.{said_at}.".encode() + content
    assert said_at == str(telling.clock.wall_ns() // 10**9)
    version, _, given = headers["webhook-signature"].partition(",")
    assert version == "v1"
    assert base64.b64decode(given) == hmac.digest(key, signed, hashlib.sha256)


@pytest.mark.parametrize("status", [307, 400, 500])
async def test_a_notice_that_is_refused_is_sent_again_with_the_same_id(
    tmp_path: Path, receiver: Receiver, status: int
) -> None:
    receiver.answers = [status, 200]
    telling = Telling(policy_with(tmp_path, {"url": receiver.url}))

    telling.resume()
    await telling.sent()

    assert receiver.contents[0] == receiver.contents[1]
    assert receiver.headers[0]["webhook-id"] == receiver.headers[1]["webhook-id"]
    where = receiver.url.removesuffix(SECRET_PATH)
    assert f"{where} fail, and are tried again: HTTP status {status}" in telling.said
    assert "arrive again" in telling.said
    assert "SECRET" not in telling.said


async def test_each_notice_is_tried_for_an_hour_and_delays_no_other(
    tmp_path: Path, receiver: Receiver
) -> None:
    receiver.never_takes = {"never", "nor this"}
    telling = Telling(policy_with(tmp_path, {"url": receiver.url}))
    began_ns = telling.clock.boottime_ns()
    telling.resume("never")
    await telling.until("dropped", 1)

    assert telling.slept == [5, 10, 20, 40, 80, 160, 320, 600, 600, 600, 600, 565]
    assert telling.clock.boottime_ns() - began_ns == GIVE_UP_NS
    assert "not accepted within an hour" in telling.said

    telling.slept.clear()
    telling.resume("never")
    telling.resume("nor this")
    await telling.until_so(lambda: len(telling.slept) >= 4)
    assert telling.slept[:4] == [5, 5, 10, 10]

    telling.may_sleep.clear()
    before = len(telling.slept)
    await telling.until_so(lambda: len(telling.slept) > before)
    now_ns = telling.clock.boottime_ns()
    telling.resume("new")
    await telling.until("sent", 1)
    assert telling.clock.boottime_ns() == now_ns
    await telling.until_so(lambda: telling.waiting == 2)
    await telling.hooks.close()


async def test_too_many_notices_are_dropped_and_a_stop_waits_for_no_receiver(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.hooks.hooks.LAST_SECONDS", 0.01)
    receiver.may_answer.clear()
    telling = Telling(policy_with(tmp_path, {"url": receiver.url}))

    for number in range(MOST_NOTICES + 3):
        telling.resume(str(number))
    await telling.until("dropped", 3)
    await telling.until_so(lambda: receiver.contents != [])
    await telling.hooks.close()

    assert len(receiver.contents) == 1, "one attempt at a time"
    assert "more than 500 were waiting" in telling.said
    assert telling.count("dropped") == MOST_NOTICES + 3
    where = receiver.url.removesuffix(SECRET_PATH)
    assert f"dropped {MOST_NOTICES} of the notices to {where}: the relay stopped" in telling.said


async def test_an_edit_swaps_hooks_and_drops_the_old_ones_notices(tmp_path: Path, receiver: Receiver) -> None:
    telling = Telling(policy_with(tmp_path, {"command": [program(tmp_path, "sleep 1000")]}))
    telling.resume()
    await telling.until_so(lambda: telling.waiting == 1)
    telling.hooks.use(policy_with(tmp_path, {"url": receiver.url}))
    assert telling.waiting == 0
    telling.resume("new")
    await telling.sent()

    assert [told["upstream"] for told in receiver.told] == ["new"]
    assert telling.count("dropped") == 1
    assert "changed or removed the hook" in telling.said
    # The task of a dropped notice ends its program first.
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)


async def test_a_program_gets_its_notices_on_stdin_and_nothing_of_the_relays_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISP_PASSWORD", "hunter2")
    told, seen = tmp_path / "told", tmp_path / "seen"
    command = program(tmp_path, f'cat > {told}; (echo "$*"; env) > {seen}')
    hook = {"command": [command, "$HOME; true", "b"], "events": ["paused"]}
    telling = Telling(policy_with(tmp_path, hook))

    telling.resume()
    telling.events.tell("upstream_paused", upstream="isp", reason="421 too much", until_at_ns=None)
    await telling.sent()

    notice = json.loads(told.read_bytes())
    assert (notice["event"], notice["reason"]) == ("paused", "421 too much")
    assert seen.read_text().startswith("$HOME; true b\n")
    assert "hunter2" not in seen.read_text()


@pytest.mark.parametrize(
    ("text", "mode", "result", "said"),
    [
        ("#!/bin/sh\ntest -e again && exit 0; touch again; exit 3", 0o700, "sent", "exit status 3"),
        ("#!/bin/sh\ntest -e again && exit 0; touch again; kill -9 $$", 0o700, "sent", "killed by signal 9"),
        ("#!/bin/sh\ntest -e again && exit 0; touch again; sleep 1000", 0o700, "sent", "no answer within 1s"),
        (None, 0, "dropped", "cannot be run: No such file or directory"),
        ("#!/bin/sh\n", 0o600, "dropped", "cannot be run: Permission denied"),
        ("#!/no/such/interpreter\n", 0o700, "dropped", "cannot be run: No such file or directory"),
    ],
)
async def test_a_program_that_fails_is_run_again_and_one_that_cannot_be_run_is_no_fault(
    tmp_path: Path, text: str | None, mode: int, result: str, said: str
) -> None:
    path = tmp_path / "tell"
    if text is not None:
        path.write_text(text.replace("again", str(tmp_path / "again")))
        path.chmod(mode)
    within = "1s" if "within" in said else "1h"
    telling = Telling(policy_with(tmp_path, {"command": ["tell"], "timeout": within}))

    telling.resume()
    await telling.until(result, 1)
    await telling.hooks.close()

    assert said in telling.said
    assert "event=fault" not in telling.said
