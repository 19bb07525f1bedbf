"""Tells the hooks of the policy: hears of events, keeps notices on disk until they are told, tries again.

Guarantees: a notice that is on disk is told at least once, unless it is dropped: by a bound, after
GIVE_UP_NS, or because its hook left the policy.  What is dropped is counted and logged.  Nothing here
raises into a caller, waits for a receiver or a disk on the loop, or holds up a stop for longer than a
write.  Only the holder of the spool's lock may `start` it.
Assumes: one event loop.  Does not: keep an order; receivers have `at`.
"""

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relay.clock import SECOND_NS
from relay.hooks.notice import HEARD, EventHeard, event_of, notice_id, notice_of, told_together
from relay.hooks.notice_files import KeptNotice, NoticeFiles
from relay.hooks.receiver import Receiver, Undelivered
from relay.mail.formats import Value, rfc3339
from relay.mail.text import clean
from relay.policy.hook import HookSettings
from relay.policy.model import Policy
from relay.spool.disk.durable import Disk
from relay.telemetry.telemetry import Telemetry

MOST_NOTICES = 1000
"""So many wait for all hooks together, in memory and on disk; the oldest goes first."""
MOST_BYTES = 4 * 1024 * 1024
"""Of all notices that wait."""
FIRST_BACK_OFF_NS = 5 * SECOND_NS
LONGEST_BACK_OFF_NS = 3600 * SECOND_NS
AN_EARLIER = "an earlier hook"
GIVE_UP_NS = 24 * 3600 * SECOND_NS
"""From when a notice was made, or the start that found it."""


@dataclass(slots=True, eq=False)
class _Waiting:
    kept: KeptNotice
    since_ns: int
    """Boottime, as `due_ns`."""
    due_ns: int
    back_off_ns: int = FIRST_BACK_OFF_NS
    is_ready: bool = False
    """It is on disk, or cannot be: it may be told."""


class Hooks:
    def __init__(
        self, policy: Policy, host: str, disk: Disk, telemetry: Telemetry, most: int = MOST_NOTICES
    ) -> None:
        """Hears of events from now on."""
        self._hooks = {hook.key: hook for hook in policy.notify}
        self._host = host
        self._most = most
        self._events, self._metrics, self._clock = telemetry
        self._files = NoticeFiles(f"{policy.spool}.notices", disk)
        self._receiver = Receiver(self._clock)
        self._heard: list[EventHeard] = []
        self._waiting: dict[KeptNotice, _Waiting] = {}
        """The oldest first."""
        self._bytes = 0
        self._unwritten: deque[_Waiting] = deque()
        """Whose file is to be made, or to go."""
        self._writing: asyncio.Task[None] | None = None
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._wakes: dict[str, asyncio.Event] = {}
        self._failing: set[str] = set()
        self._is_unrecorded = False
        self._is_started = False
        self._events.watch(self.hear, HEARD)

    def hear(self, name: str, fields: Mapping[str, Value], _: object = None) -> None:
        """Take an event of the log.  Never raises and never waits."""
        event = event_of(name, fields)
        if event is None or not any(event in hook.events for hook in self._hooks.values()):
            return
        if not self._heard and self._is_started:
            # What else is told in this turn of the loop may belong to the same notice.
            asyncio.get_running_loop().call_soon(self._take)
        self._heard.append(EventHeard(event, fields, rfc3339(self._clock.wall_ns())))
        if not self._is_started:
            # A start that takes long must not hold more than may wait.
            del self._heard[: -self._most]

    async def start(self) -> None:
        """Go on with what an earlier run left, and with what was heard meanwhile."""
        try:
            kept, unread = await asyncio.to_thread(self._files.read)
        except (OSError, RuntimeError) as error:
            self._tell_unrecorded(error)
            kept, unread = [], []
        if unread:
            self._tell_dropped(len(unread), AN_EARLIER, f"unreadable: {clean(unread[0])}")
        for each in kept:
            self._add(each).is_ready = True
        self._drop_those_without_hook()
        self._is_started = True
        self._take()
        self._serve()

    async def use(self, policy: Policy) -> None:
        """Go by another policy; an attempt that it changes is cut off and made again."""
        before, self._hooks = self._hooks, {hook.key: hook for hook in policy.notify}
        if before == self._hooks:
            return
        stale = [key for key, hook in before.items() if self._hooks.get(key) != hook]
        await _end([self._serving.pop(key) for key in stale if key in self._serving])
        self._failing -= set(stale)
        self._drop_those_without_hook(before)
        if self._is_started:
            self._serve()

    async def close(self) -> None:
        """Write what is not on disk yet, and stop; what waits is told by the next start."""
        if not self._is_started:
            return
        self._take()
        self._is_started = False
        await _end(list(self._serving.values()))
        self._serving.clear()
        if self._writing is not None:
            await self._writing
        await self._receiver.close()

    def _take(self) -> None:
        """Make notices of what was heard."""
        heard, self._heard = self._heard, []
        for told in told_together(heard):
            chosen = notice_id(self._clock.wall_ns(), secrets.token_hex(4))
            notice = notice_of(told, chosen, self._host)
            for key, hook in self._hooks.items():
                if notice.event in hook.events:
                    self._write(self._add(KeptNotice(notice, key)))

    def _add(self, kept: KeptNotice) -> _Waiting:
        now_ns = self._clock.boottime_ns()
        waiting = self._waiting[kept] = _Waiting(kept, now_ns, now_ns)
        self._bytes += len(kept.notice.content)
        over: dict[str, int] = {}
        while len(self._waiting) > self._most or self._bytes > MOST_BYTES:
            oldest = next(iter(self._waiting.values()))
            self._forget(oldest)
            over[oldest.kept.key] = over.get(oldest.kept.key, 0) + 1
        for key, count in over.items():
            self._tell_dropped(count, self._shown(key), "too many wait")
        self._metrics.notices_wait(len(self._waiting))
        return waiting

    def _forget(self, waiting: _Waiting) -> None:
        """End a notice: told or dropped.  Its file goes when the disk comes to it."""
        if self._waiting.pop(waiting.kept, None) is not None:
            self._bytes -= len(waiting.kept.notice.content)
            self._metrics.notices_wait(len(self._waiting))
            self._write(waiting)

    def _drop_those_without_hook(self, before: Mapping[str, HookSettings] | None = None) -> None:
        gone: dict[str, int] = {}
        for waiting in [each for each in self._waiting.values() if each.kept.key not in self._hooks]:
            self._forget(waiting)
            gone[waiting.kept.key] = gone.get(waiting.kept.key, 0) + 1
        for key, count in gone.items():
            hook = (before or {}).get(key)
            self._tell_dropped(count, hook.shown if hook else AN_EARLIER, "their hook left the policy")

    def _write(self, waiting: _Waiting) -> None:
        self._unwritten.append(waiting)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._unwritten:
                waiting = self._unwritten.popleft()
                is_over = waiting.kept not in self._waiting
                change = self._files.remove if is_over else self._files.write
                try:
                    await asyncio.to_thread(change, waiting.kept)
                    self._is_unrecorded = self._is_unrecorded and is_over
                except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
                    self._tell_unrecorded(error)
                waiting.is_ready = True
                if waiting.kept.key in self._wakes:
                    self._wakes[waiting.kept.key].set()
        finally:
            self._writing = None

    def _serve(self) -> None:
        for key, hook in self._hooks.items():
            if key not in self._serving:
                self._wakes[key] = asyncio.Event()
                self._serving[key] = asyncio.get_running_loop().create_task(self._serve_one(hook))

    async def _serve_one(self, hook: HookSettings) -> None:
        wake = self._wakes[hook.key]
        while True:
            ready = [each for each in self._waiting.values() if each.kept.key == hook.key and each.is_ready]
            first = min(ready, key=lambda each: each.due_ns, default=None)
            rest_ns = None if first is None else first.due_ns - self._clock.boottime_ns()
            if first is None or (rest_ns is not None and rest_ns > 0):
                wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if rest_ns is None else rest_ns / SECOND_NS):
                        await wake.wait()
            elif self._clock.boottime_ns() - first.since_ns >= GIVE_UP_NS:
                self._forget(first)
                self._tell_dropped(1, hook.shown, "told in vain for a day")
            else:
                await self._try(hook, first)

    async def _try(self, hook: HookSettings, waiting: _Waiting) -> None:
        try:
            await self._receiver.tell(hook, waiting.kept.notice)
        except Exception as error:  # noqa: BLE001 - whatever it is, mail goes on, and the notice waits
            if not isinstance(error, Undelivered):
                self._metrics.fault()
                self._events.fault(where="hooks", error=error)
            self._metrics.notice_failed()
            waiting.due_ns = self._clock.boottime_ns() + waiting.back_off_ns
            waiting.back_off_ns = min(2 * waiting.back_off_ns, LONGEST_BACK_OFF_NS)
            if hook.key not in self._failing:
                self._failing.add(hook.key)
                self._events.hook_failed(hook=hook.shown, error=clean(str(error)))
        else:
            self._metrics.notice_sent()
            self._forget(waiting)
            if hook.key in self._failing:
                self._failing.remove(hook.key)
                self._events.hook_resumed(hook=hook.shown)

    def _tell_dropped(self, count: int, hook: str, reason: str) -> None:
        self._metrics.notices_dropped(count)
        self._events.notices_dropped(notices=count, hook=hook, reason=reason)

    def _tell_unrecorded(self, error: Exception) -> None:
        if not self._is_unrecorded:
            self._is_unrecorded = True
            self._events.notices_unrecorded(error=clean(str(error)))

    def _shown(self, key: str) -> str:
        return self._hooks[key].shown if key in self._hooks else AN_EARLIER


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
