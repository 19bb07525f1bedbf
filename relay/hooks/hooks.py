"""Tells the hooks of the policy: hears of events, keeps notices in memory until they are told.

Guarantees: a notice is tried at once, then again until its receiver takes it or GIVE_UP_NS are over; what
is dropped is counted and logged.  One attempt at a time for each hook.  Nothing here raises into a caller
or holds up mail; a stop waits at most LAST_SECONDS.
Assumes: one event loop.  Does not: keep notices over a restart (the log has their events), or in order.
"""

import asyncio
import secrets
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping

from relay.clock import SECOND_NS
from relay.hooks.notice import HEARD, EventHeard, Notice, event_of, notice_of, told_together
from relay.hooks.receiver import Undelivered, tell
from relay.mail.formats import Value, rfc3339
from relay.mail.text import clean
from relay.policy.hook import HookSettings
from relay.policy.model import Policy
from relay.telemetry.telemetry import Telemetry

MOST_NOTICES = 500
"""So many wait for all hooks together; the oldest goes first.  A notice has about 1 kB, at most 50 kB."""
FIRST_BACK_OFF_SECONDS = 5.0
LONGEST_BACK_OFF_SECONDS = 600.0
GIVE_UP_NS = 3600 * SECOND_NS
LAST_SECONDS = 2.0

Telling = asyncio.Task[None]


class Hooks:
    def __init__(
        self,
        policy: Policy,
        host: str,
        telemetry: Telemetry,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Hear of events from now on."""
        self._hooks = policy.notify
        self._host = host
        self._events, self._metrics, self._clock = telemetry
        self._sleep = sleep
        self._heard: list[EventHeard] = []
        self._telling: dict[Telling, HookSettings] = {}
        """The notices that wait, the oldest first."""
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._failing: set[str] = set()
        self._events.watch(self._hear, HEARD)

    def use(self, policy: Policy) -> None:
        """Go by another policy; what waits for a hook that it changes is dropped."""
        self._failing -= {hook.key for hook in self._hooks if hook not in policy.notify}
        self._hooks = policy.notify
        stale = [telling for telling, hook in self._telling.items() if hook not in self._hooks]
        self._drop(stale, "the policy changed their hook")

    async def close(self) -> None:
        """Give receivers that answer a moment for what waits, and stop."""
        self._take()
        if hopeful := [each for each, hook in self._telling.items() if hook.key not in self._failing]:
            await asyncio.wait(hopeful, timeout=LAST_SECONDS)
        left = list(self._telling)
        self._drop(left, "the relay stopped")
        await asyncio.gather(*left, return_exceptions=True)

    def _hear(self, name: str, fields: Mapping[str, Value], _: object = None) -> None:
        event = event_of(name, fields)
        if event is None or not any(event in hook.events for hook in self._hooks):
            return
        if not self._heard:
            # What else is told in this turn of the loop may belong to the same notice.
            asyncio.get_running_loop().call_soon(self._take)
        self._heard.append(EventHeard(event, fields, rfc3339(self._clock.wall_ns())))

    def _take(self) -> None:
        heard, self._heard = self._heard, []
        for told in told_together(heard):
            notice = notice_of(told, f"notice_{secrets.token_hex(16)}", self._host)
            for hook in self._hooks:
                if notice.event in hook.events:
                    telling = asyncio.get_running_loop().create_task(self._tell(hook, notice))
                    self._telling[telling] = hook
                    telling.add_done_callback(self._forget)
        self._drop(list(self._telling)[:-MOST_NOTICES], "too many wait")
        self._metrics.set("relay_notices_waiting", to=len(self._telling))

    async def _tell(self, hook: HookSettings, notice: Notice) -> None:
        until_ns = self._clock.boottime_ns() + GIVE_UP_NS
        back_off_seconds = FIRST_BACK_OFF_SECONDS
        while not await self._is_taken(hook, notice):
            if self._clock.boottime_ns() >= until_ns:
                self._tell_dropped(1, hook, "told in vain for an hour")
                return
            await self._sleep(back_off_seconds)
            back_off_seconds = min(2 * back_off_seconds, LONGEST_BACK_OFF_SECONDS)

    async def _is_taken(self, hook: HookSettings, notice: Notice) -> bool:
        try:
            async with self._turns[hook.key]:
                await tell(hook, notice, self._clock.wall_ns())
        except Exception as error:  # noqa: BLE001 - whatever it is, mail goes on, and the notice waits
            if not isinstance(error, Undelivered):
                self._metrics.count("relay_faults_total")
                self._events.fault(where="hooks", error=error)
            self._metrics.count("relay_notice_failures_total")
            if hook.key not in self._failing:
                self._failing.add(hook.key)
                self._events.tell("hook_failed", hook=hook.shown, error=clean(str(error)))
            return False
        self._metrics.count("relay_notices_total", "sent")
        if hook.key in self._failing:
            self._failing.remove(hook.key)
            self._events.tell("hook_resumed", hook=hook.shown)
        return True

    def _forget(self, telling: Telling) -> None:
        self._telling.pop(telling, None)
        self._metrics.set("relay_notices_waiting", to=len(self._telling))

    def _drop(self, stale: Iterable[Telling], reason: str) -> None:
        dropped = Counter[HookSettings]()
        for telling in stale:
            dropped[self._telling[telling]] += 1
            telling.cancel()
            self._forget(telling)
        for hook, count in dropped.items():
            self._tell_dropped(count, hook, reason)

    def _tell_dropped(self, count: int, hook: HookSettings, reason: str) -> None:
        self._metrics.count("relay_notices_total", "dropped", by=count)
        self._events.tell("notices_dropped", notices=count, hook=hook.shown, reason=reason)
