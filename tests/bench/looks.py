"""What looks at a long queue cost: `python -m tests.bench.looks [MESSAGES …] [--only WORD]`.

The queue is filled in memory, behind a limit that is full; HTTP, control socket and commands are the
real ones.  What is printed of each is told in `tests.bench.stalls`.  The messages have no files, so verbs
that change them are measured by `tests.bench.long_queue`.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from relay.control.client import ControlClient
from relay.control.server import ControlServer
from relay.control.wire import PolicyInForce
from relay.daemon.loops import run, spare_queue
from relay.daemon.spilling import Spilling
from relay.mail.envelope import QueueId
from relay.mail.header import NO_NAMES
from relay.policy.lane import routes_of
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from relay.queue.queued import NO_REASON, ListedWords, Queued, State, WaitKind, WaitReason, origin_of
from relay.queue.routes import WHOLE, Part
from relay.status.collector import collect
from relay.status.http import StatusServer
from relay.status.snapshot import Condition
from relay.telemetry.listener_counts import ListenerCounts
from relay.verdicts.operator_pause import PauseAsked
from tests.bench.stalls import measured
from tests.fakes.smarthost import Smarthost
from tests.unit.sender.in_process_relay import Relay

SIZES = (5_000, 100_000, 1_000_000)
AT_ONCE = 500
SENDERS = 50
LANES = 'lanes: {fast: {sender: "@fast.example", share: 60}, default: {share: 40}}'
ROUTES = 'routes: [{sender: "1@here.example", upstreams: [other]}, {upstreams: [isp, other]}]'
SPILLING = "routes: [{upstreams: [isp, other], spill_after: 1h}]"
_GREYLISTED = WaitReason("451 4.7.1 come back later", WaitKind.REFUSAL, "4.7.1")


async def _measured(name: str, asked: Callable[[], Awaitable[Any]]) -> None:
    if (only := _arguments().only) is None or only in name:
        await measured(name, asked)


def _policy(folder: Path, port: int, limit: str = "{messages: 1, per: 24h}", rest: str = "") -> Policy:
    text = f"""
spool: ./spool
hostname: relay.test
listen: [{{address: "127.0.0.1:0", clients: [127.0.0.0/8]}}]
http: 127.0.0.1:0
upstreams:
  isp: {{host: 127.0.0.1, port: {port}, tls: none, limits: [{limit}]}}
  other: {{host: 127.0.0.1, port: 9, tls: none, history: ./other, limits: [{limit}]}}
{rest}
"""
    (folder / "policy.yaml").write_text(text)
    return parse_policy(text.encode(), folder / "policy.yaml")


async def _fill(relay: Relay, count: int) -> None:
    queue, now_ns, wall_ns = relay.sender.queue, relay.clock.boottime_ns(), relay.clock.wall_ns()
    routes = routes_of(relay.policy.routes)
    part = Part(routes[-1]) if routes else WHOLE
    for number in range(count):
        queued = Queued(
            QueueId(f"{number:016d}"),
            origin_of(f"{number % SENDERS}@here.example", "unknown[127.0.0.1]"),
            4096,
            now_ns + number,
            1,
            listed=ListedWords(NO_NAMES, wall_ns + number, (f"b{number}@there.example",)),
            domains=(("there.example", 1),),
            part=part,
        )
        if number % 50 == 1:
            queued.state, queued.due_at_ns, queued.why = State.DEFERRED, now_ns + 10**13, _GREYLISTED
        queue.add(queued, now_ns=now_ns)
        if number % 50 == 2:
            queue.hold(queued.queue_id, NO_REASON)
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
    relay.sender.wake()
    while relay.line.is_behind:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.01)


def _get(url: str) -> Callable[[], Awaitable[str]]:
    def read() -> str:
        with urlopen(url) as answer:
            return f"{len(answer.read())} bytes"

    return lambda: asyncio.to_thread(read)


def _command(folder: Path, *arguments: str) -> Callable[[], Awaitable[str]]:
    async def ask() -> str:
        call = (sys.executable, "-m", "relay", *arguments, "--policy", str(folder / "policy.yaml"))
        pipe = asyncio.subprocess.PIPE
        # The reader is a program too: reading a long listing here would hold up the loop.
        shell = ("sh", "-c", '"$@" 2>&1 | { read -r line; date +%s.%N; wc -l; }', "sh", *call)
        began = time.time()
        child = await asyncio.create_subprocess_exec(*shell, stdout=pipe)
        said, _ = await child.communicate()
        first, lines = said.decode().split()
        return f"{1 + int(lines)} lines, the first after {float(first) - began:.2f} s"

    return ask


async def _look(
    folder: Path, count: int, each_look: Callable[[Relay, Path, int], Awaitable[None]], rest: str
) -> None:
    async with Smarthost() as host:
        policy = _policy(folder, host.port, rest=rest)
        async with Relay(policy) as relay:
            relay.accept()
            await relay.until(lambda: host.transactions)
            await relay.until_empty()
            if rest:
                # Else what it is given by the first look would go, and has no file.
                relay.sender.upstreams.halt()
            sparing = asyncio.create_task(spare_queue(relay.sender.queue.__len__))
            await measured(f"{count} messages are queued", lambda: _fill(relay, count))
            await each_look(relay, folder, host.port)
            sparing.cancel()
            # Nothing of it is on disk.
            relay.sender.upstreams.halt()


async def _look_for_mail_to_spill(relay: Relay, _folder: Path, _port: int) -> None:
    looking = Spilling(relay.sender, relay.watch, relay.clock)

    async def look() -> str:
        return f"{await looking.look()} messages moved"

    await _measured("look for mail to spill", look)
    await _measured("the next look for mail to spill", look)


async def _each_look(relay: Relay, folder: Path, port: int) -> None:
    watch, sender = relay.watch, relay.sender
    watch.condition, watch.refusing_because = Condition.RUNNING, ""
    collect(relay.metrics, watch.snapshot, ListenerCounts([]), relay.events, relay.clock)
    address = relay.policy.http
    assert address is not None
    server = StatusServer(
        address, watch.snapshot, watch.foresee, relay.metrics.registry, relay.events, coming=watch.coming
    )
    bound = await server.start()
    spool = relay.policy.spool
    control = ControlServer(
        spool, relay.operator, relay.events, lambda: PolicyInForce(folder / "policy.yaml", "")
    )
    await control.start()
    client = ControlClient(spool)
    try:
        await _measured("nothing", lambda: asyncio.sleep(1))
        await _measured("estimate", watch.foresee)
        for path in ("/status.json", "/metrics", "/"):
            await _measured(f"GET {path}", _get(f"http://{bound.host}:{bound.port}{path}"))
        await _measured("relay top: snapshot", client.snapshot)
        await _measured("relay top: breakdown", client.breakdown)
        some = next(iter(sender.queue)).queue_id
        for arguments in (
            ("status",),
            ("queue",),
            ("queue", "--json"),
            ("queue", "--limit", "50"),
            ("queue", "--limit", "50", "--sort", "size"),
            ("queue", "--sender", "3@here.example", "--limit", "50"),
            ("queue", "--state", "held", "--json"),
            ("queue", "--by", "sender"),
            ("queue", "hold", "--sender", "3@here.example"),
            ("find", str(some)),
        ):
            await _measured("relay " + " ".join(arguments), _command(folder, *arguments))

        def edit(**changed: str) -> Callable[[], Awaitable[None]]:
            policy = _policy(folder, port, **changed)

            async def go_by() -> None:
                await sender.apply(policy)
                watch.policy = policy
                while any(sender.queue.line(name).is_behind for name in sender.queue.names):  # noqa: ASYNC110 - so
                    await asyncio.sleep(0.01)

            return go_by

        more = "{messages: 1, per: 48h}"
        await _measured("edit of the lanes", edit(rest=LANES))
        await _measured("edit of the limits", edit(limit=more, rest=LANES))
        edited = folder / "edited.yaml"
        edited.write_text((folder / "policy.yaml").read_text().replace("per: 48h", "per: 12h"))
        await _measured("relay plan", _command(folder, "plan", str(edited)))
        await _measured("edit of the routes", edit(limit=more, rest=f"{LANES}\n{ROUTES}"))
        await _measured("pause", lambda: relay.operator.pause("isp", PauseAsked("bench")))
        await _measured("resume", lambda: relay.operator.resume("isp"))
    finally:
        await client.close()
        await control.stop()
        await server.stop()


@cache
def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="*", type=int, metavar="MESSAGES")
    parser.add_argument("--only", metavar="WORD", help="only what has this in its name")
    return parser.parse_args()


def main() -> None:
    for count in _arguments().sizes or SIZES:
        with tempfile.TemporaryDirectory() as folder:
            run(_look(Path(folder), count, _each_look, ""))
        with tempfile.TemporaryDirectory() as folder:
            run(_look(Path(folder), count, _look_for_mail_to_spill, SPILLING))


if __name__ == "__main__":
    main()
