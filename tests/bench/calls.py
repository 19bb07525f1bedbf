"""What a message costs the sender's loop: `python -m tests.bench.calls [MESSAGES] [CONNECTIONS]`.

Prints how many calls of functions the loop's thread makes for a message, from the trigger to the durable
end, by cProfile.  A coroutine that goes on counts as called again.  The number depends little on what else
the machine does, where a rate does.  The loop is asyncio's own, whose calls are seen; uvloop makes fewer.
"""

import asyncio
import cProfile
import pstats
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Self

from relay.clock import SystemClock
from relay.mail.envelope import Envelope
from relay.policy.model import Policy
from relay.spool.disk.durable import RealDisk
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.root.trigger import Trigger
from relay.telemetry.outcomes import OutcomeStore
from relay.telemetry.telemetry import Telemetry
from tests.bench.filling import accept, slices
from tests.fakes.smarthost import Smarthost
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of

AT_ONCE = 20
"""Messages that a listener accepts together."""
LIMITS = ", limits: [{messages: 1000000, per: 1h}]"
LIBRARIES = ("asyncio", "aiosmtplib", "prometheus_client", "concurrent")
C = "in C"
SHOWN = 40
"""Functions that are listed, those called most."""


def _accept(policy: Policy, count: int) -> None:
    """Do as a listener in another process does."""
    root, clock = str(policy.spool), SystemClock()
    intake, trigger = MaildirIntake(root, RealDisk(), clock), Trigger(root, RealDisk())
    for numbers in slices(count, AT_ONCE):
        to = ((f"b{number}@there.example",) for number in numbers)
        accept(
            intake, ((CONTENT, Envelope("a@here.example", each, clock.wall_ns(), "", "", "")) for each in to)
        )
        trigger.pull()
    trigger.close()


class _Upstream:
    """A smarthost on a loop of its own: its calls are not the sender's."""

    def __init__(self) -> None:
        self.port = 0
        self._is_up, self._is_over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with Smarthost() as host:
            self.port = host.port
            self._is_up.set()
            await self._is_over.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_up.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join()


async def _measure(folder: Path, port: int, messages: int, connections: int) -> pstats.Stats:
    policy = policy_of(folder, port, LIMITS, connections=connections)
    async with Relay(policy) as relay:
        # As the daemon has it.
        outcomes = OutcomeStore(
            str(policy.spool),
            policy.recent,
            relay.disk,
            Telemetry(relay.events, relay.metrics, relay.clock),
        )
        outcomes.start()
        # Connected, and every path taken once.
        await asyncio.to_thread(_accept, policy, 2 * connections)
        await relay.until_empty()
        profile = cProfile.Profile()
        profile.enable()
        await asyncio.to_thread(_accept, policy, messages)
        while relay.sender.seen.totals.relayed < messages + 2 * connections:  # noqa: ASYNC110 - the sender has no event for it
            await asyncio.sleep(0.2)  # next to no calls
        profile.disable()
        await outcomes.close()
    return pstats.Stats(profile)


def _whose(path: str) -> str:
    if path == "~":
        return C
    if "/relay/" in path:
        return "relay " + path.rpartition("/relay/")[2].partition("/")[0]
    return next((library for library in LIBRARIES if f"/{library}/" in path), "others")


def main(messages: int = 1000, connections: int = 4) -> None:
    with tempfile.TemporaryDirectory() as folder, _Upstream() as upstream:
        stats = asyncio.run(_measure(Path(folder), upstream.port, messages, connections))
    calls, functions = Counter[str](), Counter[str]()
    counted = stats.stats  # type: ignore[attr-defined]  # typeshed leaves it out
    for (path, line, name), (_, count, *_times) in counted.items():
        calls[_whose(path)] += count
        functions[name if path == "~" else f"{Path(path).name}:{line} {name}"] += count
    in_c = calls.pop(C)
    sys.stdout.write(
        f"{sum(calls.values()) / messages:.0f} calls a message of functions in Python, "
        f"{in_c / messages:.0f} of functions in C; {messages} messages, {connections} connections\n"
    )
    for rows, shown in ((calls, len(calls)), (functions, SHOWN)):
        sys.stdout.write("\n")
        for whose, count in rows.most_common(shown):
            sys.stdout.write(f"{count / messages:8.1f} {whose}\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
