"""Keeps what became of messages for a while, for `relay find`: hears of it, and has a thread write it.

Guarantees: nothing here raises into a caller, waits on the loop, or holds up a stop for longer than one
write.  What is heard is written within GATHER_SECONDS while the disk keeps up; secrets are taken out
first.  What cannot be written is dropped, and told of once until something is written again.
Assumes: one event loop; only the holder of the spool's lock may `start` it.  No promise about mail
depends on it.
"""

import asyncio
import contextlib
from collections.abc import Mapping

from relay.clock import Clock
from relay.mail.formats import Value
from relay.mail.text import clean
from relay.spool.disk.durable import Disk
from relay.telemetry.endings import ENDINGS, encode, ending_of
from relay.telemetry.events import Events
from relay.telemetry.past_files import Bounds, PastFiles

GATHER_SECONDS = 0.2
"""Between two writes: what is heard meanwhile is written together."""
TIDY_SECONDS = 600.0
"""Between two looks for what is too old, while nothing ends."""
MOST_HEARD = 20_000
"""Endings in memory; a disk that does not answer must not fill it."""


def past_folder(spool: str) -> str:
    return f"{spool}.recent"


class RecentPast:
    def __init__(
        self,
        folder: str,
        bounds: Bounds | None,
        disk: Disk,
        *,
        events: Events,
        clock: Clock,
    ) -> None:
        """Hears of endings from now on; None: keeps none, and removes what was kept."""
        self._bounds = bounds
        self._files = PastFiles(folder, disk)
        self._events = events
        self._clock = clock
        self._heard: list[tuple[int, Mapping[str, Value]]] = []
        self._dropped = 0
        self._wake, self._closing = asyncio.Event(), asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._is_unrecorded = False
        events.watch(self._hear, ENDINGS)

    def start(self) -> None:
        """Write what was heard, and go on."""
        self._wake.set()
        self._running = asyncio.get_running_loop().create_task(self._run())

    def use(self, bounds: Bounds | None) -> None:
        """Go by other bounds."""
        if bounds != self._bounds:
            self._bounds = bounds
            self._wake.set()

    async def close(self) -> None:
        """Write what was heard, and stop."""
        if self._running is not None:
            self._closing.set()
            self._wake.set()
            await self._running
            self._running = None

    def _hear(self, name: str, fields: Mapping[str, Value]) -> None:
        # Once for each recipient, on the loop: in few calls.
        if self._bounds is None or fields.get("status") not in ENDINGS[name]:
            return
        if len(self._heard) >= MOST_HEARD:
            self._dropped += 1
            return
        if not self._heard:
            self._wake.set()
        self._heard.append((self._clock.wall_ns(), fields))

    async def _run(self) -> None:
        while not self._closing.is_set():
            await _set_within(self._wake, TIDY_SECONDS)
            self._wake.clear()
            await self._write()
            await _set_within(self._closing, GATHER_SECONDS)
        await self._write()

    async def _write(self) -> None:
        heard, self._heard = self._heard, []
        dropped, self._dropped = self._dropped, 0
        try:
            await asyncio.to_thread(self._keep, heard, self._bounds)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            self._tell(f"{clean(str(error))}; endings dropped: {len(heard) + dropped}")
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, mail and the next ending go on
            self._events.fault(where="the recent past", error=error)
            return
        if dropped:
            self._tell(f"the disk is too slow; endings dropped: {dropped}")
        elif heard:
            self._is_unrecorded = False

    def _keep(self, heard: list[tuple[int, Mapping[str, Value]]], bounds: Bounds | None) -> None:
        if bounds is None:
            self._files.remove()
            return
        now_ns = self._clock.wall_ns()
        if heard:
            lines = [encode(ending_of(fields, at_ns)) for at_ns, fields in heard]
            self._files.append(lines, bounds, now_ns)
        else:
            self._files.tidy(bounds, now_ns)

    def _tell(self, error: str) -> None:
        if not self._is_unrecorded:
            self._is_unrecorded = True
            self._events.recent_unrecorded(error=error)


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
