"""Sends notices of bounces and pauses to the policy's hooks: watches events, and runs a task for each notice.

Guarantees: a notice is tried until its receiver takes it or GIVE_UP_NS are over; a dropped notice is counted
and logged.  Each hook has one attempt at a time.  Each notice has its own back-off, so a notice that its
receiver never takes delays no other.  Nothing here raises into a caller or delays mail; a stop waits at most
LAST_SECONDS.  The keys of a notice are an interface: each is always there, and null means "none".
An attempt ends within the hook's timeout, and its program with it.  No redirect is followed, and only the
status of an answer is read.  No error shows a secret, and the URL's path counts as one.
Does not: keep notices over a restart (the log has their events), or keep their order.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from subprocess import DEVNULL, PIPE
from typing import Any

from relay import __version__
from relay.clock import SECOND_NS
from relay.mail.formats import Value, rfc3339
from relay.mail.text import clean
from relay.policy.model import HookSettings, Policy
from relay.policy.secrets import SecretError, read_signing_key
from relay.telemetry.metrics import Telemetry

MOST_NOTICES = 500
"""How many notices may wait for one hook; then the oldest is dropped.  A notice has 1 kB, at most 50 kB."""
MOST_RECIPIENTS = 50
"""How many recipients a notice may have; a failed message with more of them makes several notices."""
LONGEST_TEXT = 500
"""How many characters of a reply or a reason are sent."""
FIRST_BACK_OFF_NS = 5 * SECOND_NS
LONGEST_BACK_OFF_NS = 600 * SECOND_NS
GIVE_UP_NS = 3600 * SECOND_NS
LAST_SECONDS = 2.0

_EVENTS = {
    "upstream_paused": "paused",
    "upstream_stopped": "stopped",
    "upstream_resumed": "resumed",
    "operator_paused": "paused",
    "sender_paused": "sender_paused",
    "route_diverted": "route_diverted",
    "route_down": "route_down",
    "route_restored": "route_restored",
}
Sleep = Callable[[float], Awaitable[object]]
# Programs do not get the relay's environment: it may hold passwords.
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_SAME = ("queue_id", "message_id", "until_at", "routes", "instead_of")


@dataclass(slots=True)
class _Hook:
    settings: HookSettings
    waiting: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """The task of each notice, by its id; the oldest first."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_failing: bool = False


class Hooks:
    def __init__(self, policy: Policy, host: str, telemetry: Telemetry, sleep: Sleep = asyncio.sleep) -> None:
        """Watch events from now on."""
        self._host, self._sleep = host, sleep
        self._events, self._metrics, self._clock = telemetry
        self._newest: dict[str, Any] = {}
        """The newest notice, until one of its tasks runs: recipients that fail together share it."""
        self._hooks: dict[HookSettings, _Hook] = {}
        self.use(policy)
        self._events.watch(self._on_event, ("delivery", *_EVENTS))
        self._metrics.read(
            "relay_notices_waiting", lambda: sum(len(hook.waiting) for hook in self._hooks.values())
        )

    def use(self, policy: Policy) -> None:
        """Use another policy; notices that wait for a hook which it changes are dropped."""
        self._newest = {}
        for hook in [self._hooks[gone] for gone in self._hooks.keys() - set(policy.notify)]:
            self._drop(hook, list(hook.waiting), "the policy changed or removed the hook")
        self._hooks = {settings: self._hooks.get(settings) or _Hook(settings) for settings in policy.notify}

    async def close(self) -> None:
        """Wait up to LAST_SECONDS for the notices that are left, drop the rest, and stop."""
        hooks, self._hooks = self._hooks.values(), {}
        telling = [task for hook in hooks for task in hook.waiting.values()]
        if telling:
            await asyncio.wait(telling, timeout=LAST_SECONDS)
        for hook in hooks:
            self._drop(hook, list(hook.waiting), "the relay stopped")
        await asyncio.gather(*telling, return_exceptions=True)

    def _on_event(self, name: str, fields: Mapping[str, Value], _: object = None) -> None:
        event = _EVENTS.get(name) or str(fields["status"])
        hooks = [hook for hook in self._hooks.values() if event in hook.settings.events]
        if not hooks:
            return
        recipients = []
        if name == "delivery":
            its = {"recipient": fields["recipient"], "status": fields["dsn"], "code": fields["code"]}
            recipients = [its | {"reply": str(fields["text"])[:LONGEST_TEXT]}]
        by, reason = fields.get("by"), str(fields.get("reason", fields.get("because")) or "")
        notice: dict[str, Any] = {
            "event": event,
            "upstream": fields.get("upstream") or None,
            "sender": fields.get("reverse_path"),
            "reason": f"relay pause, by {by}" if by else reason[:LONGEST_TEXT] or None,
            **{key: fields.get(key) for key in _SAME},
        }
        newest = self._newest
        if recipients and newest.items() >= notice.items() and len(newest["recipients"]) < MOST_RECIPIENTS:
            newest["recipients"] += recipients
            return
        notice_id, at = f"notice_{secrets.token_hex(16)}", rfc3339(self._clock.wall_ns())
        notice |= {"id": notice_id, "host": self._host, "at": at, "recipients": recipients}
        self._newest = notice
        for hook in hooks:
            hook.waiting[notice_id] = asyncio.get_running_loop().create_task(self._tell(hook, notice))
            self._drop(hook, list(hook.waiting)[:-MOST_NOTICES], f"more than {MOST_NOTICES} were waiting")

    async def _tell(self, hook: _Hook, notice: Mapping[str, Any]) -> None:
        self._newest = {}
        notice_id, content = notice["id"], json.dumps(notice).encode()
        until_ns, back_off_ns = self._clock.boottime_ns() + GIVE_UP_NS, FIRST_BACK_OFF_NS
        try:
            while not await self._is_taken(hook, notice_id, content):
                left_ns = until_ns - self._clock.boottime_ns()
                if left_ns <= 0:
                    self._drop(hook, [notice_id], "not accepted within an hour")
                    break
                await self._sleep(min(back_off_ns, left_ns) / SECOND_NS)
                back_off_ns = min(2 * back_off_ns, LONGEST_BACK_OFF_NS)
        finally:
            hook.waiting.pop(notice_id, None)

    async def _is_taken(self, hook: _Hook, notice_id: str, content: bytes) -> bool:
        settings, seconds, error = hook.settings, hook.settings.timeout_ns / SECOND_NS, ""
        try:
            async with hook.turn, asyncio.timeout(seconds):
                if settings.command is not None:
                    error = await _run(settings.command, content)
                else:
                    sent_at = str(self._clock.wall_ns() // SECOND_NS)
                    error = await _post(settings, notice_id, content, sent_at)
        except TimeoutError:
            error = f"no answer within {seconds:g}s"
        except SecretError as unusable:
            error = str(unusable)
        if error and not hook.is_failing:
            self._events.tell("hook_failed", hook=settings.shown, error=clean(error))
        elif hook.is_failing and not error:
            self._events.tell("hook_resumed", hook=settings.shown)
        hook.is_failing = error != ""
        if not error:
            self._metrics.count("relay_notices_total", "sent")
        return not error

    def _drop(self, hook: _Hook, notice_ids: Sequence[str], reason: str) -> None:
        for notice_id in notice_ids:
            hook.waiting.pop(notice_id).cancel()
        if count := len(notice_ids):
            self._metrics.count("relay_notices_total", "dropped", by=count)
            self._events.tell("notices_dropped", notices=count, hook=hook.settings.shown, reason=reason)


async def _post(hook: HookSettings, notice_id: str, content: bytes, sent_at: str) -> str:
    """Return why the receiver did not take the notice; empty if it did.  Raises SecretError."""
    import aiohttp  # noqa: PLC0415 - it delays the start by 0.25 s, and few owners have hooks

    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"relay/{__version__}",
        "webhook-id": notice_id,
        "webhook-timestamp": sent_at,
    }
    if hook.secret_file is not None:
        # Read for each attempt: a new secret counts from the next attempt on.
        key = await asyncio.to_thread(read_signing_key, hook.secret_file)
        signed = b".".join((notice_id.encode(), sent_at.encode(), content))
        digest = hmac.digest(key, signed, hashlib.sha256)
        headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.post(hook.url or "", data=content, headers=headers, allow_redirects=False) as response,
        ):
            return "" if response.status // 100 == 2 else f"HTTP status {response.status}"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # Not the error's own text, which may contain the URL.
        why = getattr(error, "strerror", None) or type(error).__name__
        return f"the request failed: {why}"


async def _run(command: tuple[str, ...], content: bytes) -> str:
    """Return why the program did not take the notice; empty if it did."""
    try:
        program = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=DEVNULL,
            stderr=DEVNULL,
            cwd="/",
            env=_ENVIRONMENT,
            start_new_session=True,
        )
    except OSError as error:
        return f"the program cannot be run: {error.strerror}"
    try:
        await program.communicate(content)
    finally:
        if program.returncode is None:
            # Kill the whole group: the program may have started others.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(program.pid, signal.SIGKILL)
            await program.wait()
    if not (code := program.returncode):
        return ""
    return f"exit status {code}" if code > 0 else f"killed by signal {-code}"
