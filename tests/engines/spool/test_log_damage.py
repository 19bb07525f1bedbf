"""Damage to a log at rest, of every kind and at every place: told, set aside, never sent wrong.

One spool, and a copy of it for each damage.  The places are all files of the engine, from the first byte to
the last: headers, heads, records and tails of the segments of listeners and of the sender, long content,
summaries and locks.  They are some hundred bytes apart, and others in `make test`, `make test-all` and each
seed of `make crash`.
"""

import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import opened
from relay.spool.identity import report_id, subject_of
from relay.spool.interface import INLINE_BYTES, Corrupt, Spool, Status, Unreadable
from relay.spool.log.engine import LogSpool
from tests.budget import SEED
from tests.engines.spool.engine import BOUNCED, ENVELOPE, RELAYED, accept, note, recovered, taken
from tests.engines.spool.log_engine import LogEngine, drop_summaries, end, log_on_the_model, model_of
from tests.engines.spool.recovering import recover
from tests.fakes.disk import ModelDisk
from tests.fakes.platter import SECTOR_BYTES, disk_error

pytestmark = pytest.mark.draws

STEP_BYTES = 131
FIRST_BYTE = 65 if os.environ.get("RELAY_TESTS") == "full" else SEED % STEP_BYTES
REPORT = replace(ENVELOPE, reverse_path="", recipients=("list-owner@example.org",))

DAMAGE: dict[str, Callable[[bytes, int], bytes]] = {
    "a flipped bit": lambda raw, at: raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :],
    "a sector of zeros": lambda raw, at: _with_sector(raw, at, bytes(SECTOR_BYTES)),
    "a sector of another file": lambda raw, at: _with_sector(
        raw, at, random.Random(at).randbytes(SECTOR_BYTES)
    ),
    "no tail": lambda raw, at: raw[:at],
}


def _with_sector(raw: bytes, at: int, sector: bytes) -> bytes:
    first = at // SECTOR_BYTES * SECTOR_BYTES
    return raw[:first] + sector[: len(raw) - first] + raw[first + SECTOR_BYTES :]


@dataclass(frozen=True, slots=True)
class Known:
    """All that is to be known of a queued message."""

    content: bytes
    statuses: tuple[Status, ...]
    is_held: bool


@dataclass(slots=True)
class Written:
    """A spool at rest, and what is in it."""

    engine: LogEngine
    queued: dict[QueueId, Known] = field(default_factory=dict)
    ended: dict[QueueId, bytes] = field(default_factory=dict)

    @property
    def disk(self) -> ModelDisk:
        return model_of(self.engine)

    def files(self) -> list[str]:
        folders = self.engine.layout.log, self.engine.layout.long
        return [f"{folder}/{name}" for folder in folders for name in sorted(self.disk.names(folder))]


def written(*, with_summaries: bool) -> Written:
    """Return a spool of three listeners and two lives of a sender."""
    engine = log_on_the_model()
    spool, intakes, base = recovered(engine), [engine.intake() for _ in range(3)], Written(engine)
    contents = {
        accept(intakes[number % 3], content=content): content
        for number, content in enumerate(
            [b"Subject: %d\r\n\r\n" % each + bytes([65 + each]) * 700 for each in range(8)]
            + [b"Subject: long\r\n\r\n" + b"y" * INLINE_BYTES]
        )
    }
    taken(spool)
    ended, partly, bounced, held, refused, *_ = contents
    end(spool, ended)
    spool.mark({partly: {0: RELAYED}})
    spool.hold(held)
    spool.commit()
    spool.close()
    spool = recovered(engine)
    spool.note({bounced: [note(1)]})
    spool.mark({bounced: {1: BOUNCED}})
    own = report_id(bounced, 1)
    assert spool.publish_report(own, REPORT, contents.setdefault(own, b"Subject: sorry\r\n\r\n"))
    spool.commit()
    spool.note({refused: [note(1)]})
    spool.mark({refused: dict.fromkeys(range(3), BOUNCED)})
    last = report_id(refused)
    assert spool.publish_report(last, REPORT, contents.setdefault(last, b"Subject: none\r\n\r\n"))
    spool.finish([refused])
    spool.commit()
    taken(spool)
    # Behind all that matters a sector more: a damaged last group of the sender would count as torn.
    for number in range(8):
        spool.postpone(held, number)
        spool.commit()
    base.ended |= {ended: contents[ended], refused: contents[refused]}
    for queue_id in contents.keys() - base.ended:
        message = spool.load(queue_id)
        base.queued[queue_id] = Known(contents[queue_id], message.statuses, message.is_held)
    spool.close()
    if not with_summaries:
        drop_summaries(engine)
    for path in base.files():
        # At rest for long: all of it is durable.
        with opened(base.disk, base.disk.open_update(path)) as fd:
            base.disk.sync(fd)
    base.engine = LogEngine(engine.root, base.disk.after_kill(), first_intake=50)
    return base


def is_senders(path: str) -> bool:
    return "/sender." in path and not path.endswith(".sum")


def damages(base: Written, kind: str) -> Iterator[tuple[LogEngine, str, int, set[QueueId]]]:
    """Yield the spool with each damage of a kind, where that is, and the messages that it meets."""
    places = {q: base.engine.places(q) + base.engine.records(q) for q in base.queued}
    for path in base.files():
        raw = base.disk.peek(path)
        step = STEP_BYTES if len(raw) < INLINE_BYTES else len(raw) // 9
        for at in sorted({*range(FIRST_BYTE % step, len(raw), step), len(raw) - 1}):
            if (damaged := DAMAGE[kind](raw, at)) == raw:
                continue
            engine = LogEngine(base.engine.root, base.disk.after_kill(), first_intake=50)
            model_of(engine).poke(path, damaged)
            met = {
                queue_id
                for queue_id, its in places.items()
                if any(p == path and raw[a : a + size] != damaged[a : a + size] for p, a, size in its)
            }
            yield engine, path, at, met


def start(engine: LogEngine) -> tuple[Spool, dict[QueueId, Known]]:
    """Start on a spool; return what of its queue can be sent, and what would be."""
    spool, found = engine.start(), dict[QueueId, Known]()
    for queue_id in [entry.queue_id for entry in recover(spool).entries]:
        try:
            message = spool.load(queue_id)
            content = b"".join(spool.content(queue_id))
        except (Corrupt, Unreadable):
            continue
        assert message.envelope == (ENVELOPE if subject_of(queue_id) is None else REPORT)
        found[queue_id] = Known(content, message.statuses, message.is_held)
    return spool, found


def set_aside(engine: LogEngine) -> dict[str, bytes]:
    return {name: engine.content_of(f"{engine.layout.corrupt}/{name}") for name in engine.names("corrupt")}


@pytest.mark.parametrize(
    ("kind", "with_summaries"),
    [("a flipped bit", True), *((kind, False) for kind in DAMAGE)]
    + [pytest.param(kind, True, marks=pytest.mark.full) for kind in DAMAGE if kind != "a flipped bit"]
    + [pytest.param(kind, False, marks=pytest.mark.crash(least_s=60)) for kind in DAMAGE],
)
def test_damage_costs_what_it_meets_and_is_told_and_kept(kind: str, *, with_summaries: bool) -> None:
    base, cost = written(with_summaries=with_summaries), 0
    for engine, path, at, met in damages(base, kind):
        where = f"{kind} of {path} at {at}"
        spool, found = start(engine)
        for queue_id, known in found.items():
            check(base, queue_id, known, are_fates_damaged=is_senders(path))
        lost = base.queued.keys() - found.keys()
        cost += len(lost)
        # An end does not count without the report that came with it.
        assert all({q, subject_of(q)} & found.keys() for q in lost if subject_of(q) in base.ended), where
        # A segment without its tail cannot be told from one that a crash tore.
        if kind == "no tail" and is_senders(path):
            # Then the report and the mark that it is about were never there.
            assert all(found[QueueId(q[:16])].statuses[1] is Status.TODO for q in lost), where
        else:
            assert lost <= met, f"{where} cost {lost - met}"
        if lost and (kind != "no tail" or "/log/" not in path):
            assert (bool(engine.told), spool.corrupt_count() > 0, bool(set_aside(engine))) == (True,) * 3, (
                where
            )
        # There is nothing to set aside of what is gone.
        assert engine.told or not lost or is_senders(path), where
        spool.commit()
        spool.close()
        before = set_aside(engine)
        spool, again = start(engine)
        assert (again, set_aside(engine)) == (found, before), where
        # The others go on.
        for queue_id in again:
            end(spool, queue_id)
        spool.close()
        assert (start(engine)[1], set_aside(engine)) == ({}, before), where
    assert cost > 5


def check(base: Written, queue_id: QueueId, known: Known, *, are_fates_damaged: bool) -> None:
    """Judge what would be sent: what ended may come again, rather than never, where its end is damaged."""
    was = base.queued.get(queue_id)
    if not are_fates_damaged:
        assert known == was
    elif was is None:
        assert known.content == base.ended[queue_id]
    else:
        # What became of a recipient may be forgotten, and is never another thing.
        assert known.content == was.content
        assert all(s in (Status.TODO, w) for s, w in zip(known.statuses, was.statuses, strict=True))


@pytest.mark.parametrize("kind", [kind for kind in DAMAGE if kind != "no tail"])
def test_what_a_killed_start_set_aside_is_whole_after_a_cut(kind: str) -> None:
    base, rng = written(with_summaries=False), random.Random(kind)
    # Damage in long content is met when that is read.
    meeting = [each for each in damages(base, kind) if each[3] and "/log/" in each[1]]
    (long,) = [queue_id for queue_id, known in base.queued.items() if len(known.content) > INLINE_BYTES]
    its_record = next(each for each in meeting if long in each[3])
    others = [each for each in meeting if each is not its_record]
    for engine, path, at, _ in [*rng.sample(others, 3), its_record]:
        images: list[ModelDisk] = []
        view = model_of(engine).another()
        view.before = lambda _step, view=view, images=images: images.extend(
            [*view.cuts(rng, 3), view.after_kill()]
        )
        spool = LogSpool(engine.root, view, engine.clock)
        recover(spool)
        view.before = None
        whole = set(set_aside(engine).values())
        assert whole
        assert len(images) > 10
        spool.close()
        again, found = start(engine)
        for queue_id in found:
            end(again, queue_id)
        # Now segments go, and with them what said that it was a message.
        for image in [*images, *model_of(engine).cuts(rng, 16)]:
            there = LogEngine(engine.root, image, first_intake=80)
            recover(there.start())
            assert whole <= set(set_aside(there).values()), f"{kind} of {path} at {at}"


class Scratched(ModelDisk):
    """A disk that does not give one sector of one file."""

    def __init__(self, of: ModelDisk, path: str, at: int) -> None:
        super().__init__(of.platter)
        self._path, self._at = path, at

    def another(self) -> "Scratched":
        return self

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        if self._entry(fd)[1] == self._path and offset < self._at + SECTOR_BYTES and self._at < offset + size:
            raise disk_error(errno.EIO, self._path)
        return super().pread(fd, size, offset)


@pytest.mark.parametrize("with_summaries", [True, False])
def test_a_sector_that_is_not_given_for_a_while_costs_nothing(*, with_summaries: bool) -> None:
    base = written(with_summaries=with_summaries)
    for path in base.files():
        for at in range(0, min(len(base.disk.peek(path)), 8 * SECTOR_BYTES), SECTOR_BYTES):
            disk = base.disk.after_kill()
            engine = LogEngine(base.engine.root, Scratched(disk, path, at), first_intake=50)
            if is_senders(path):
                # What became of mail is not known: nothing may be sent.
                with pytest.raises(OSError, match="Input/output"):
                    recovered(engine)
            else:
                spool, found = start(engine)
                assert found.items() <= base.queued.items()
                assert len(found) >= len(base.queued) - 3
                # Much else ends meanwhile, also what cleaning would take along.
                late = accept(engine.intake())
                spool.take(1)
                end(spool, late)
                spool.close()
            disk = disk.after_kill()
            assert start(LogEngine(base.engine.root, disk, first_intake=90))[1] == base.queued, (
                f"{path} at {at}"
            )
