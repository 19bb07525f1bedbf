"""The load on a spool on a recorded disk, and what must hold of an image.

The spool is used and judged as on the model disk (tests.engines.spool): a listener and a sender share one
spool, and a trace records what clients and upstream were told. `Notes` keeps the trace at places in the log
of blocks: a promise told before a place is owed there, and a call made before it may have begun.
"""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.spool.disk.durable import RealDisk
from relay.spool.interface import Intake, Spool, Status
from tests.engines.spool.engine import LogOnModel, MaildirOnModel, OnModel
from tests.engines.spool.oracle import check_start, check_whole, go_on
from tests.engines.spool.scenarios import MOST_RECIPIENTS, shapes
from tests.engines.spool.world import Letter, Listener, Sender, Trace, Violation
from tests.fakes.clock import FakeClock

LONG = b"Subject: long\r\n\r\n" + b"0123456789abcdef\r\n" * 20_000


class CarelessDisk(RealDisk):
    """A disk that leaves out one kind of sync: METHOD, or METHOD:FOLDER. The laboratory must notice it."""

    def __init__(self, careless: str) -> None:
        super().__init__()
        method, _, folder = careless.partition(":")
        sync = getattr(RealDisk, method)

        def left_out(at: Any) -> None:
            if folder and not str(at).endswith(f"/{folder}"):
                sync(self, at)

        setattr(self, method, left_out)


def engine_on(name: str, folder: Path) -> OnModel:
    root = str(folder / "spool")
    return MaildirOnModel(root) if name == "maildir" else LogOnModel(root)


class Notes:
    """What was known at each place in the log of blocks."""

    def __init__(self, log: Path, trace: Trace) -> None:
        self.trace = trace
        self._log = log
        # Place 0 also covers the writes of the mount.
        self._noted = [(0, trace.copy())]

    def note(self) -> None:
        self._noted.append((self._log.stat().st_size, self.trace.copy()))

    def known(self, place: int) -> Trace:
        return [trace for noted_at, trace in self._noted if noted_at <= place][-1].copy()

    @property
    def places(self) -> list[int]:
        return [place for place, _ in self._noted]


class _Noting:
    """Wraps an object and takes a note before each call."""

    def __init__(self, called: object, notes: Notes) -> None:
        self._called, self._notes = called, notes

    def __getattr__(self, name: str) -> Any:
        self._notes.note()
        return getattr(self._called, name)


def work(
    engine: OnModel, disk: RealDisk, notes: Notes, clock: FakeClock, rng: random.Random, rounds: int
) -> None:
    """Accept and settle messages. Some stay in the spool, some of them held, for the next play."""
    sender = Sender(disk, clock, notes.trace, engine)
    sender.spool = cast(Spool, _Noting(sender.spool, notes))
    sender.claim()
    sender.end_what_is_done()
    sender.report_what_is_owed(sorted(sender.queue))
    listener = Listener(disk, clock, notes.trace, rng.randrange(1 << 30), engine)
    listener.intake = cast(Intake, _Noting(listener.intake, notes))
    fates: dict[QueueId, list[Mapping[int, Status]]] = {}
    for number in range(rounds):
        clock.advance(SECOND_NS)
        letters = [
            rng.choice(shapes(rng.randint(1, MOST_RECIPIENTS))).letter() for _ in range(rng.randint(1, 3))
        ]
        if number % 8 == 3:
            letters.append(Letter(({0: Status.RELAYED},), content=LONG, spills=2))
        for queue_id, letter in zip(listener.offer(*letters), letters, strict=True):
            if queue_id is not None:
                fates[queue_id] = list(letter.fates)
        for queue_id in sender.claim():
            fates.setdefault(queue_id, [{0: Status.RELAYED}])
        due = {q: fates[q].pop(0) for q in sorted(sender.queue) if fates.get(q) and rng.random() < 0.7}
        sender.settle(due)
        if sender.queue and rng.random() < 0.2:
            sender.hold(rng.choice(sorted(sender.queue)))
    notes.note()
    listener.intake.close()
    sender.spool.close()


def judge(engine: OnModel, trace: Trace, clock: FakeClock) -> None:
    """Judge the mounted image against what was known. Raises Violation, OSError, SpoolError."""
    disk = RealDisk()
    trace.crash()
    with _started(disk, engine, trace, clock) as sender:
        check_start(disk, sender.claim(), engine)
        found = dict(sender.queue)
        check_whole(trace, sender)
        sender.spool.close()
    with _started(disk, engine, trace, clock) as sender:
        sender.claim()
        if sender.queue != found:
            raise Violation(f"starting twice is not starting once: {found} then {sender.queue}")
        go_on(disk, sender, engine)


@contextmanager
def _started(disk: RealDisk, engine: OnModel, trace: Trace, clock: FakeClock) -> Iterator[Sender]:
    sender = Sender(disk, clock, trace, engine)
    try:
        yield sender
    except BaseException:
        # An open file would keep the image mounted.
        with suppress(OSError):
            sender.spool.close()
        raise
