"""Tells the hooks of the policy: hears of events, keeps notices in memory until they are told.

Guarantees: a notice is tried until its receiver takes it or GIVE_UP_NS are over; what is dropped is counted
and logged.  One attempt at a time for each hook, first of notices never tried; each other notice has a
back-off of its own, so one that its receiver never takes holds up no other.  Nothing here raises into a
caller or holds up mail; a stop waits at most LAST_SECONDS.
Assumes: one event loop.  Does not: keep notices over a restart (the log has their events), or in order.
"""

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from relay.clock import SECOND_NS
from relay.hooks.notice import HEARD, Notice, is_joined, told_of
from relay.hooks.receiver import Undelivered, tell
from relay.mail.formats import Value, rfc3339
from relay.mail.text import clean
from relay.policy.hook import HookSettings
from relay.policy.model import Policy
from relay.telemetry.telemetry import Telemetry

MOST_NOTICES = 500
"""So many wait for one hook; the oldest goes first.  A notice has about 1 kB, at most 50 kB."""
FIRST_BACK_OFF_NS = 5 * SECOND_NS
LONGEST_BACK_OFF_NS = 600 * SECOND_NS
GIVE_UP_NS = 3600 * SECOND_NS
LAST_SECONDS = 2.0


@dataclass(eq=False, slots=True)
class _Waiting:
    notice: Notice
    next_at_ns: int = 0
    """Boottime of the next attempt; 0 before the first."""
    back_off_ns: int = FIRST_BACK_OFF_NS


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
        self._waiting: dict[HookSettings, deque[_Waiting]] = {}
        """The oldest first."""
        self._telling: dict[HookSettings, asyncio.Task[None]] = {}
        self._resting: set[HookSettings] = set()
        """Of those in `_telling`: no notice is due."""
        self._failing: set[HookSettings] = set()
        self.use(policy)
        self._events.watch(self._hear, HEARD)

    def use(self, policy: Policy) -> None:
        """Go by another policy; what waits for a hook that it changes is dropped."""
        for hook in self._waiting.keys() - set(policy.notify):
            self._stop(hook, "the policy changed their hook")
        self._waiting = {hook: self._waiting.get(hook, deque()) for hook in policy.notify}
        self._count_waiting()

    async def close(self) -> None:
        """Give receivers that answer a moment for what waits, and stop."""
        self._take()
        telling = list(self._telling.values())
        hopeless = self._failing | self._resting
        if hopeful := [task for hook, task in self._telling.items() if hook not in hopeless]:
            await asyncio.wait(hopeful, timeout=LAST_SECONDS)
        for hook in list(self._waiting):
            self._stop(hook, "the relay stopped")
        await asyncio.gather(*telling, return_exceptions=True)

    def _stop(self, hook: HookSettings, reason: str) -> None:
        if (telling := self._telling.pop(hook, None)) is not None:
            telling.cancel()
        self._failing.discard(hook)
        self._resting.discard(hook)
        if count := len(self._waiting.pop(hook)):
            self._dropped(hook, count, reason)

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
        until_ns = self._clock.boottime_ns() + GIVE_UP_NS
        for told in heard:
            notice = Notice(told["id"], json.dumps(told).encode(), until_ns)
            for hook, waiting in self._waiting.items():
                if told["event"] in hook.events:
                    waiting.append(_Waiting(notice))
        for hook, waiting in self._waiting.items():
            if (too_many := len(waiting) - MOST_NOTICES) > 0:
                for _ in range(too_many):
                    waiting.popleft()
                self._dropped(hook, too_many, "too many wait")
            if hook in self._resting:
                self._resting.remove(hook)
                self._telling.pop(hook).cancel()
            if waiting and hook not in self._telling:
                self._telling[hook] = asyncio.get_running_loop().create_task(self._tell(hook, waiting))
        self._count_waiting()

    async def _tell(self, hook: HookSettings, waiting: deque[_Waiting]) -> None:
        while waiting:
            first = min(waiting, key=lambda each: each.next_at_ns)
            if (left_ns := first.next_at_ns - self._clock.boottime_ns()) > 0:
                self._resting.add(hook)
                await self._sleep(left_ns / SECOND_NS)  # cancelled where a new notice comes
                self._resting.remove(hook)
                continue
            is_taken = await self._is_taken(hook, first.notice)
            if first not in waiting:
                continue  # too many wait, and so it was dropped meanwhile
            now_ns, until_ns = self._clock.boottime_ns(), first.notice.until_ns
            if is_taken or now_ns >= until_ns:
                waiting.remove(first)
                self._count_waiting()
                if not is_taken:
                    self._dropped(hook, 1, "told in vain for an hour")
            else:
                first.next_at_ns = min(now_ns + first.back_off_ns, until_ns)
                first.back_off_ns = min(2 * first.back_off_ns, LONGEST_BACK_OFF_NS)
        del self._telling[hook]

    def _count_waiting(self) -> None:
        self._metrics.set("relay_notices_waiting", to=sum(map(len, self._waiting.values())))

    async def _is_taken(self, hook: HookSettings, notice: Notice) -> bool:
        try:
            await tell(hook, notice, self._clock.wall_ns())
        except Exception as error:  # noqa: BLE001 - whatever it is, mail goes on, and the notice waits
            if not isinstance(error, Undelivered):
                self._metrics.count("relay_faults_total")
                self._events.fault(where="hooks", error=error)
            self._metrics.count("relay_notice_failures_total")
            if hook not in self._failing:
                self._failing.add(hook)
                self._events.tell("hook_failed", hook=hook.shown, error=clean(str(error)))
            return False
        self._metrics.count("relay_notices_total", "sent")
        if hook in self._failing:
            self._failing.remove(hook)
            self._events.tell("hook_resumed", hook=hook.shown)
        return True

    def _dropped(self, hook: HookSettings, count: int, reason: str) -> None:
        self._metrics.count("relay_notices_total", "dropped", by=count)
        self._events.tell("notices_dropped", notices=count, hook=hook.shown, reason=reason)
