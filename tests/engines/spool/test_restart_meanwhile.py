"""A start whose mail is settled, held, taken and reported while the rest of the spool is read.

Each image that a kill or a power cut leaves is started with batches of one message, and what is done
between two batches is drawn from a seed.  It is judged as any other start is (tests.engines.spool.oracle),
and so are some of its instants, by a second crash.
"""

import itertools
import random

import pytest

from relay.mail.envelope import QueueId
from relay.spool.interface import Entry, Recovery, Status
from relay.spool.log import recovery as log_recovery
from relay.spool.log import segments, summary
from relay.spool.maildir import recovery
from tests.engines.spool.campaign import few_folders
from tests.engines.spool.cuts import SCENARIOS, Judge, cuts, killed, run_of
from tests.engines.spool.engine import OnModel
from tests.engines.spool.oracle import ONE_MORE, check_end, check_present, check_told
from tests.engines.spool.world import Snapshot, Trace, Violation, World
from tests.fakes.disk import ModelDisk
from tests.fakes.platter import Model

CUTS_AT_ONCE = 2
RECORDED_IN = 16
"""Of so many starts the instants of one are judged too."""
SOME = 6
"""Of these instants, so many."""


class Start:
    """One start, by and by, and what is done meanwhile."""

    def __init__(
        self, image: ModelDisk, trace: Trace, rng: random.Random, *, record: bool, engine: OnModel
    ) -> None:
        trace.crash()
        self._engine = engine
        self.world = World(image, trace, engine)
        if record:
            self.world.record()
        else:
            image.platter.is_safe = True
        self._rng = rng
        self._image = image
        self._sender = self.world.sender()
        self._met: set[QueueId] = set()

    def run(self) -> list[Snapshot]:
        sender, walk = self._sender, self._sender.spool.recover()
        found: Recovery | None = None
        while found is None:
            try:
                self._meet(next(walk))
            except StopIteration as end:
                found = end.value
                continue
            sender.end_what_is_done()
            self._do_something()
        if found.corrupt or found.missing_recipients or found.corrupt_recipients:
            raise Violation(f"{found}")
        sender.take()
        if imbalance := sender.spool.totals().imbalance:
            raise Violation(f"{imbalance} recipients unaccounted for")
        sender.end_what_is_done()
        sender.report_what_is_owed(sorted(sender.queue))
        sender.warn_after_a_start()
        sender.drain()
        sender.commit()
        # A group that a kill left whole counts, though nobody was told so.
        for key, status in sender.trace.called.items():
            sender.trace.marked.setdefault(key, status)
        check_end(self._image, sender, self._engine)
        check_told(sender.trace)
        sender.spool.close()
        return self.world.snapshots

    def _meet(self, found: list[Entry]) -> None:
        sender = self._sender
        for entry in found:
            if entry.queue_id in self._met:
                raise Violation(f"{entry.queue_id} is queued twice")
            self._met.add(entry.queue_id)
            sender.queue.add(entry.queue_id)
            check_present(sender.trace, sender.spool.load(entry.queue_id), sender)

    def _do_something(self) -> None:
        sender, rng = self._sender, self._rng
        match rng.randrange(5):
            case 0:
                self.world.listener(seed=len(sender.trace.offered)).offer(ONE_MORE)
            case 1:
                before = set(sender.queue)
                taken = sender.take()
                if again := (before | self._met).intersection(taken):
                    raise Violation(f"{again} is queued twice")
                self._met.update(taken)
            case 2:
                sender.report_what_is_owed(sorted(sender.queue))
            case 3:
                self._relay_one(rng.choice(sorted(sender.queue)) if sender.queue else None)
            case _:
                pass

    def _relay_one(self, queue_id: QueueId | None) -> None:
        sender = self._sender
        if queue_id is None or sender.spool.load(queue_id).is_held:
            return
        left = sender.spool.load(queue_id).left
        sender.settle({queue_id: dict.fromkeys(left, Status.RELAYED)})


def _judge(image: ModelDisk, snapshot: Snapshot, rng: random.Random, story: str, engine: OnModel) -> None:
    record = rng.randrange(RECORDED_IN) == 0
    try:
        instants = Start(image, snapshot.trace.copy(), rng, record=record, engine=engine).run()
    except Violation as violation:
        raise Violation(f"{story}: {violation}") from violation
    again = Judge(engine=engine)
    for instant in rng.sample(instants, min(SOME, len(instants))):
        again.judge([instant], lambda s: itertools.chain(killed(s), cuts(s, rng, 1)), story=story)


FEW = ("a batch of two", "bounced one by one", "held and released", "told one by one")


@pytest.mark.parametrize(
    "name", [*FEW, *(pytest.param(name, marks=pytest.mark.full) for name in SCENARIOS if name not in FEW)]
)
def test_a_start_beside_other_work_loses_nothing(
    name: str, engine: OnModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_folders(monkeypatch)
    rng = random.Random(name)
    # Segments end, are copied and go meanwhile, at a start of a log.
    for segment_bytes, model in zip((1, 600, 1, 1 << 24), Model, strict=True):
        monkeypatch.setattr(segments, "SEGMENT_BYTES", segment_bytes)
        monkeypatch.setattr(summary, "LET_BE", 0)
        monkeypatch.setattr(recovery, "BATCH", 1)
        monkeypatch.setattr(log_recovery, "RECOVERED_AT_ONCE", 1)
        snapshots = run_of(name, model, engine=engine)
        for snapshot in rng.sample(snapshots, min(SOME, len(snapshots))):
            for label, image in itertools.chain(killed(snapshot), cuts(snapshot, rng, CUTS_AT_ONCE)):
                _judge(image, snapshot, rng, f"{name} ({model.name}), {label}", engine)
