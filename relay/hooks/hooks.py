"""Tells the hooks of the policy of bounces and pauses: hears of events, and has a task for each notice.

Guarantees: a notice is tried until its receiver takes it or GIVE_UP_NS are over; what is dropped is counted
and logged.  One attempt at a time for each hook; each notice has a back-off of its own, so one that its
receiver never takes holds up no other.  Nothing here raises into a caller or holds up mail; a stop waits at
most LAST_SECONDS.
Assumes: one event loop.  Does not: keep notices over a restart (the log has their events), or in order.
"""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any

from relay.clock import SECOND_NS
from relay.hooks.notice import HEARD, is_joined, told_of
from relay.hooks.receiver import Notice, Undelivered, tell
from relay.mail.formats import Value, rfc3339
from relay.mail.text import clean
from relay.policy.model import HookSettings, Policy
from relay.telemetry.metrics import Telemetry

MOST_NOTICES = 500
"""So many wait for one hook; the oldest goes first.  A notice has about 1 kB, at most 50 kB."""
FIRST_BACK_OFF_NS = 5 * SECOND_NS
LONGEST_BACK_OFF_NS = 600 * SECOND_NS
GIVE_UP_NS = 3600 * SECOND_NS
LAST_SECONDS = 2.0


class _Hook:
    def __init__(self, settings: HookSettings) -> None:
        self.settings = settings
        self.waiting: dict[asyncio.Task[None], None] = {}
        """A task for each notice, the oldest first."""
        self.turn = asyncio.Lock()
        self.is_failing = False


class Hooks:
    def __init__(
        self,
        policy: Policy,
        host: str,
        telemetry: Telemetry,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Hear of events from now on."""
        self._host = host
        self._events, self._metrics, self._clock = telemetry
        self._sleep = sleep
        self._heard: list[dict[str, Any]] = []
        """In this turn of the loop."""
        self._hooks: dict[HookSettings, _Hook] = {}
        self.use(policy)
        self._events.watch(self._hear, HEARD)

    def use(self, policy: Policy) -> None:
        """Go by another policy; what waits for a hook that it changes is dropped."""
        for settings in self._hooks.keys() - set(policy.notify):
            hook = self._hooks[settings]
            self._drop(hook, len(hook.waiting), "the policy changed their hook")
        self._hooks = {settings: self._hooks.get(settings) or _Hook(settings) for settings in policy.notify}
        self._count_waiting()

    async def close(self) -> None:
        """Give receivers that answer a moment for what waits, and stop."""
        self._take()
        hooks, self._hooks = self._hooks.values(), {}
        telling = [task for hook in hooks for task in hook.waiting]
        if hopeful := [task for hook in hooks if not hook.is_failing for task in hook.waiting]:
            await asyncio.wait(hopeful, timeout=LAST_SECONDS)
        for hook in hooks:
            self._drop(hook, len(hook.waiting), "the relay stopped")
        await asyncio.gather(*telling, return_exceptions=True)

    def _hear(self, name: str, fields: Mapping[str, Value], _: object = None) -> None:
        told = told_of(name, fields)
        if told is None or (self._heard and is_joined(self._heard[-1], told)):
            return
        if not self._heard:
            asyncio.get_running_loop().call_soon(self._take)
        names = {"id": f"notice_{secrets.token_hex(16)}", "host": self._host}
        self._heard.append(told | names | {"at": rfc3339(self._clock.wall_ns())})

    def _take(self) -> None:
        heard, self._heard = self._heard, []
        for told in heard:
            notice = Notice(told["id"], json.dumps(told).encode())
            for settings, hook in self._hooks.items():
                if told["event"] in settings.events:
                    task = asyncio.get_running_loop().create_task(self._tell(hook, notice))
                    hook.waiting[task] = None
                    task.add_done_callback(partial(self._forget, hook))
        for hook in self._hooks.values():
            self._drop(hook, len(hook.waiting) - MOST_NOTICES, "too many wait")
        self._count_waiting()

    async def _tell(self, hook: _Hook, notice: Notice) -> None:
        until_ns = self._clock.boottime_ns() + GIVE_UP_NS
        back_off_ns = FIRST_BACK_OFF_NS
        while not await self._is_taken(hook, notice):
            left_ns = until_ns - self._clock.boottime_ns()
            if left_ns <= 0:
                self._dropped(hook, 1, "told in vain for an hour")
                break
            await self._sleep(min(back_off_ns, left_ns) / SECOND_NS)
            back_off_ns = min(2 * back_off_ns, LONGEST_BACK_OFF_NS)

    async def _is_taken(self, hook: _Hook, notice: Notice) -> bool:
        async with hook.turn:
            try:
                await tell(hook.settings, notice, self._clock.wall_ns())
            except Exception as error:  # noqa: BLE001 - whatever it is, mail goes on, and the notice waits
                if not isinstance(error, Undelivered):
                    self._metrics.count("relay_faults_total")
                    self._events.fault(where="hooks", error=error)
                self._metrics.count("relay_notice_failures_total")
                if not hook.is_failing:
                    hook.is_failing = True
                    self._events.tell("hook_failed", hook=hook.settings.shown, error=clean(str(error)))
                return False
        self._metrics.count("relay_notices_total", "sent")
        if hook.is_failing:
            hook.is_failing = False
            self._events.tell("hook_resumed", hook=hook.settings.shown)
        return True

    def _drop(self, hook: _Hook, count: int, reason: str) -> None:
        """Drop the oldest that wait."""
        if count > 0:
            for task in list(islice(hook.waiting, count)):
                del hook.waiting[task]
                task.cancel()
            self._dropped(hook, count, reason)

    def _dropped(self, hook: _Hook, count: int, reason: str) -> None:
        self._metrics.count("relay_notices_total", "dropped", by=count)
        self._events.tell("notices_dropped", notices=count, hook=hook.settings.shown, reason=reason)

    def _forget(self, hook: _Hook, task: asyncio.Task[None]) -> None:
        hook.waiting.pop(task, None)
        self._count_waiting()

    def _count_waiting(self) -> None:
        waiting = sum(len(hook.waiting) for hook in self._hooks.values())
        self._metrics.set("relay_notices_waiting", to=waiting)
