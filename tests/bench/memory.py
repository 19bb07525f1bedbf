"""What a queued message costs in memory, and in time: `python -m tests.bench.memory [MESSAGES]`.

The messages are distinct: ids, Message-IDs, sizes, recipients of 2,000 domains; 3,000 senders, 40 clients,
20 logins, three lanes.  They lie in a spool on the disk of TMPDIR; a sender with the real queue, engine and
arrivals takes them, and sends none.  Each figure is of a process of its own:
- `taken`, `restarted`: growth of resident memory, after mail came in, and after a start;
- `no files`: the same of mail that is made up where the engine would have read it;
- by part: what `tracemalloc` counts, by the file that allocated it (what is read of a file, by its reader);
- processor time that the queue alone takes to add, take and end a message, the median of five rounds.
"""

import argparse
import asyncio
import gc
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from relay.clock import SystemClock
from relay.mail.envelope import Envelope, QueueId, Shape
from relay.mail.header import Names
from relay.queue.lanes import Lane, Price
from relay.queue.queued import NO_REASON, Queued, origin_of
from relay.queue.whole import Queue
from relay.spool.disk.durable import RealDisk
from relay.spool.identity import Identities
from relay.spool.interface import Message, Status
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.maildir.layout import prepare
from tests.bench.filling import accept, slices
from tests.unit.sender.in_process_relay import Relay, policy_of

AT_ONCE = 500
SENDERS, DOMAINS, CLIENTS, USERS = 3000, 2000, 40, 20
LANES = """
lanes:
  resets: {sender: "@resets.example.org", share: 50}
  bulk: {user: "bulk*", share: 10}
  default: {share: 40}
"""
ROUNDS = 5

_Answer = TypeVar("_Answer")


def _envelope(number: int, wall_ns: int) -> Envelope:
    sender, client, user = number * 7 % SENDERS, number * 11 % CLIENTS, number * 13 % (5 * USERS)
    domain = ("resets", "shop", "lists", "invoices")[sender % 4]
    return Envelope(
        f"sender-{sender}@{domain}.example.org",
        (f"first.last{number}@customer{number * 17 % DOMAINS}.example",),
        wall_ns,
        f"app{client}.example.org[10.0.0.{client}]",
        f"app{client}.example.org",
        "ESMTP",
        f"bulk{user}" if user < USERS else None,
    )


def _message_id(number: int) -> str:
    return f"<{number * 2654435761:032x}@mail.example.org>"


def _fill(spool: str, count: int) -> None:
    prepare(spool, RealDisk())
    clock = SystemClock()
    intake = MaildirIntake(spool, RealDisk(), clock)
    for numbers in slices(count, AT_ONCE):
        accept(intake, ((_content(number), _envelope(number, clock.wall_ns())) for number in numbers))


def _content(number: int) -> bytes:
    header = f"From: a@here.example\r\nMessage-ID: {_message_id(number)}\r\n\r\n"
    return header.encode() + b"x" * (number % 997) + b"\r\n"


def _resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def _taking(folder: Path, look: Callable[[], _Answer], *, is_new: bool) -> tuple[_Answer, _Answer, int]:
    """Return what a look sees before and after all mail of a spool is queued, and how much that is.

    `is_new`: it comes in once the sender has started.
    """
    policy = policy_of(folder, 9, ", limits: [{messages: 1, per: 1d}]", LANES)
    new, later = policy.spool / "new", policy.spool / "later"
    if is_new:
        new.rename(later)
        new.mkdir()
    relay = Relay(policy)
    before = look()
    await relay.sender.read()
    if is_new:
        new.rmdir()
        later.rename(new)
        await relay.sender._arrivals.take()
    after = look()
    count = len(relay.sender.queue)
    await relay.sender.stop()
    return before, after, count


def _bytes_each(folder: Path, *, is_new: bool) -> float:
    before, after, count = asyncio.run(_taking(folder, _resident_bytes, is_new=is_new))
    return (after - before) / count


def _bytes_each_without_files(folder: Path, count: int) -> float:
    """Admit what the engine would have read, so that a million takes a minute."""

    async def growth() -> int:
        relay = Relay(policy_of(folder, 9, ", limits: [{messages: 1, per: 1d}]", LANES))
        await relay.sender.read()
        clock, identities = SystemClock(), Identities(SystemClock(), os.urandom)
        before = _resident_bytes()
        for number in range(count):
            envelope = _envelope(number, clock.wall_ns())
            envelope = replace(envelope, boot_id=clock.boot_id(), boottime_ns=clock.boottime_ns())
            queue_id, lane = identities.next_id(), ("resets", "bulk", "default")[number % 3]
            shape, message_id = Shape(number % 9973, eight_bit=False, smtputf8=False), _message_id(number)
            message = Message(
                queue_id,
                envelope,
                shape,
                (Status.TODO,),
                is_held=False,
                is_warned=False,
                content=None,
                lane=lane,
                names=Names(message_id, f"Report {number} of this week", f"4{number:010X}"),
            )
            relay.spool._ledger.count_in([(queue_id, 1)])
            await relay.sender._arrivals._admit(message.entry)
        grown = _resident_bytes() - before
        assert len(relay.sender.queue) == count
        await relay.sender.stop()
        return grown

    return asyncio.run(growth()) / count


def _parts(folder: Path) -> list[tuple[str, float]]:
    def look() -> tracemalloc.Snapshot:
        gc.collect()
        return tracemalloc.take_snapshot()

    tracemalloc.start()
    before, after, count = asyncio.run(_taking(folder, look, is_new=False))
    grown = after.compare_to(before, "lineno")
    sized = [(f"{each.traceback[0].filename}:{each.traceback[0].lineno}", each.size_diff) for each in grown]
    parts = [(where.rpartition("relay/")[2], size / count) for where, size in sized if size > count // 4]
    return [*sorted(parts, key=lambda part: -part[1]), ("all", sum(size for _, size in sized) / count)]


def _microseconds(count: int) -> dict[str, float]:
    """Return what a message costs the queue, of which it has so many: medians."""
    rounds = [_round(count) for _ in range(ROUNDS)]
    return {what: statistics.median(each[what] for each in rounds) for what in rounds[0]}


def _round(count: int) -> dict[str, float]:
    queue = Queue()
    queue.use(["isp"], [])
    line = queue.line("isp")
    line.arrange((Lane("resets", 50, 10**15), Lane("default", 50, 10**15)), Price(10**9), 100)

    def add() -> None:
        for number in range(count):
            sender, lane = f"sender-{number * 7 % SENDERS}@x.example", ("resets", "default")[number % 2]
            origin = origin_of(sender, lane=lane)
            queued = Queued(QueueId(f"{number:016d}"), origin, number, number, 1)
            queue.add(queued, now_ns=number)

    def defer() -> None:
        for number in range(count):
            if (queued := line.next_ready(10**9)) is not None:
                line.reserved(queued.key, 1)
                line.postpone(queued.key, 2 * 10**9 + number, 1, NO_REASON)

    def relay() -> None:
        while (queued := line.next_ready(4 * 10**9)) is not None or line.is_behind:
            if queued is not None:
                line.reserved(queued.key, 1)
                queue.remove(queued.queue_id)

    took = {}
    for what, act in {"add": add, "take and defer": defer, "wake, take and end": relay}.items():
        gc.collect()
        began = time.process_time()
        act()
        took[what] = (time.process_time() - began) / count * 1e6
    assert not len(queue)
    return took


def _alone(call: Callable[..., _Answer], *arguments: object, **named: object) -> _Answer:
    """Call in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(call, *arguments, **named).result()


def _tell(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.memory", description=__doc__)
    parser.add_argument("messages", type=int, nargs="?", default=200_000)
    parser.add_argument("--spool", type=Path, help="a folder whose spool was filled before, or is to be kept")
    parser.add_argument("--no-files", action="store_true", help="only what the engine would have read")
    parser.add_argument("--time", action="store_true", help="only the time that a message takes")
    parser.add_argument("--parts", action="store_true", help="also by part")
    options = parser.parse_args()
    if not options.time:
        _tell_bytes(options)
    for what, took in _alone(_microseconds, options.messages).items():
        _tell(f"microseconds, {what:20}{took:8.2f}")


def _tell_bytes(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        where = options.spool or Path(folder)
        if options.no_files:
            each = _alone(_bytes_each_without_files, Path(folder), options.messages)
            _tell(f"bytes a message, no files     {each:8.0f}")
            return
        if not (where / "spool").exists():
            where.mkdir(exist_ok=True)
            _alone(_fill, str(where / "spool"), options.messages)
            _tell(f"bytes a message, taken        {_alone(_bytes_each, where, is_new=True):8.0f}")
        _tell(f"bytes a message, restarted    {_alone(_bytes_each, where, is_new=False):8.0f}")
        for part, size in _alone(_parts, where) if options.parts else ():
            _tell(f"  {part:50} {size:8.1f}")


if __name__ == "__main__":
    main()
