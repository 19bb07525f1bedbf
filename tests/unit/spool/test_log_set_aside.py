"""What is damaged in a log is set aside whole and counted, also over a cut, a summary, a failed start."""

import errno
import random

import pytest

from relay.mail.envelope import QueueId
from relay.spool.identity import warning_id
from relay.spool.interface import Corrupt, Spool
from relay.spool.log import segments
from relay.spool.log.engine import LogSpool
from relay.spool.log.intake import LogIntake
from relay.spool.log.record import GROUP_BYTES, HEAD_BYTES, HEADER_BYTES
from tests.fakes.disk import Fault, ModelDisk
from tests.unit.spool.engine import CONTENT, ENVELOPE, accept, again, recovered, taken
from tests.unit.spool.log_engine import LogEngine, log_on_the_model
from tests.unit.spool.recovering import recover
from tests.unit.spool.test_log_attacked import end
from tests.unit.spool.test_log_damage import drop_summaries, is_senders, model_of
from tests.unit.spool.test_log_refusals import LONG, sender


def with_damage() -> tuple[LogEngine, QueueId]:
    """Return a spool without a summary in which one of two messages is damaged, and that one."""
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    damaged, _ = accept(intake), accept(intake)
    taken(spool)
    spool.close()
    drop_summaries(engine)
    damage(engine, damaged)
    return engine, damaged


def test_long_content_set_aside_stays_so_through_a_cut() -> None:
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake(), content=LONG)
    taken(spool)
    damage(engine, queue_id)
    with pytest.raises(Corrupt):
        list(spool.content(queue_id))
    # Its move takes no sync: the log says durably that it was.
    spool.commit()
    for image in model_of(engine).subsets(random.Random(1), 64):
        there = LogEngine(engine.root, image, first_intake=50)
        recover(there.start())
        assert (there.names("long"), there.names("corrupt")) == ([], [queue_id])


def test_content_set_aside_without_its_record_outlives_a_cut() -> None:
    engine, queue_id, other = long_and_short()
    damage_first_record(engine)
    spool = recovered(engine)
    assert queue_id in engine.names("corrupt")
    # What said that it was a message goes.
    end(spool, other)
    assert all(map(is_senders, engine.segments()))
    for image in model_of(engine).subsets(random.Random(1), 64):
        there = LogEngine(engine.root, image, first_intake=50)
        recover(there.start())
        assert queue_id in there.names("corrupt")


def test_no_summary_hides_damage_whose_end_is_not_durable() -> None:
    engine, damaged = with_damage()
    spool = recovered(engine)
    before = spool.totals()
    assert (before.queued, engine.names("corrupt")) == (6, [damaged])
    spool.close()
    spool = recovered(engine)
    assert spool.totals() == before
    # Now it may: who removes it from corrupt/ does not find it there again.
    again(engine, spool).close()
    engine.disk.unlink(f"{engine.layout.corrupt}/{damaged}")
    assert recover(engine.start()).removed_recipients == 3
    assert engine.names("corrupt") == []


def test_no_summary_hides_damage_from_what_a_failed_start_left() -> None:
    engine, queue_id, _ = long_and_short()
    damage_first_record(engine)
    view = model_of(engine).another()
    spool = LogSpool(engine.root, view, engine.clock)
    view.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"rename"}), path="/long/"))
    with pytest.raises(OSError, match="No space left"):
        recover(spool)
    spool.close()
    assert engine.names("long") == [queue_id]
    recover(engine.start())
    assert queue_id in engine.names("corrupt")


def test_no_summary_hides_damage_that_new_mail_came_with() -> None:
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    queue_id, other = accept(intake, content=LONG), accept(intake)
    damage_first_record(engine)
    assert taken(spool) == [other]
    again(engine, spool).close()
    assert queue_id in engine.names("corrupt")


def test_what_is_set_aside_is_whole_wherever_the_power_is_cut() -> None:
    engine, _ = with_damage()
    images: list[ModelDisk] = []
    view = model_of(engine).another()
    view.before = lambda _step: images.extend(view.subsets(random.Random(1), 50))
    spool = LogSpool(engine.root, view, engine.clock)
    recover(spool)
    view.before = None
    whole = set_aside(engine)
    assert len(whole) == 1
    for image in images:
        there = LogEngine(engine.root, image, first_intake=50)
        recover(there.start())
        assert whole <= set_aside(there)


def test_what_a_killed_start_set_aside_is_made_durable() -> None:
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    queue_id, other = accept(intake), accept(intake)
    taken(spool)
    spool.close()
    drop_summaries(engine)
    damage(engine, queue_id)
    view = model_of(engine).another()
    spool = LogSpool(engine.root, view, engine.clock)
    # Written, and never on the disk: the next sync says that all is well.
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"sync"}), path="/corrupt/"))
    recover(spool)
    view.die()
    whole = set_aside(engine)
    spool = recovered(engine)
    end(spool, other)
    for image in model_of(engine).subsets(random.Random(1), 64):
        there = LogEngine(engine.root, image, first_intake=50)
        recover(there.start())
        assert set_aside(there) == whole


@pytest.mark.parametrize(
    ("error", "names", "corrupt"), [(errno.EACCES, 2, 2), (errno.EIO, 2, 2), (errno.EMFILE, 1, 3)]
)
def test_what_cannot_be_compared_in_corrupt_is_not_relied_on(error: int, names: int, corrupt: int) -> None:
    engine, queue_id = with_damage()
    # It was set aside, and is not ended yet.
    recovered(engine).close()
    view = model_of(engine).another()
    spool = LogSpool(engine.root, view, engine.clock)
    view.fail(Fault(1, error, kinds=frozenset({"open"}), path=f"/corrupt/{queue_id}", forever=True))
    recover(spool)
    assert len(engine.names("corrupt")) == names
    # Where there is no other copy the message and its segment stay.
    assert spool.corrupt_count() == corrupt
    spool.close()


@pytest.mark.parametrize("is_followed", [False, True])
def test_damage_in_the_last_group_costs_one_copy_and_not_all(
    monkeypatch: pytest.MonkeyPatch, *, is_followed: bool
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 4000)
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    long = accept(intake, content=LONG)
    queue_ids = [accept(intake, content=b"x" * 800) for _ in range(40)]
    assert isinstance(intake, LogIntake)
    intake.close()
    taken(spool)
    spool.take(1)
    copied = copied_forward(engine, spool, queue_ids)
    if is_followed:
        # By a segment that is needed no more, and so says no more how much of this one counts.
        spool = again(engine, spool)
        warning = warning_id(long)
        assert spool.publish_report(warning, ENVELOPE, CONTENT)
        spool.commit()
        spool = again(engine, spool)
        end(spool, warning)
        assert [int(path[-10:]) for path in engine.segments() if is_senders(path)] == [2, 4]
    spool.close()
    drop_summaries(engine)
    damage(engine, copied)
    before = spool.totals()
    spool = recovered(engine)
    assert spool.totals() == before
    assert engine.names("corrupt") == [copied]
    assert sum(map(len, spool.content(long))) == len(LONG)


def test_a_torn_copy_is_not_back_when_what_followed_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 4000)
    engine = log_on_the_model()
    first, view = sender(engine)
    intake = engine.intake()
    held, *queue_ids = [accept(intake, content=b"x" * 800) for _ in range(41)]
    assert isinstance(intake, LogIntake)
    intake.close()
    taken(first)
    first.take(1)
    images: list[ModelDisk] = []

    def before(step: str) -> None:
        # Copied, and not removed.
        if step.startswith("unlink") and not is_senders(step):
            images[:] = [view.after_kill()]

    view.before = before
    copied = copied_forward(engine, first, queue_ids, held)
    there = LogEngine(engine.root, images[0], first_intake=50)
    (_, (path, at, size)) = there.places(copied)
    there.flip(path, at + size // 2)

    # Room for all: nothing else is copied.
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1_000_000)
    spool = recovered(there)
    number = int(path[-10:])
    # The first place goes when it ended, and then what tells of its end.
    end(spool, copied)
    spool = again(there, spool)
    spool.hold(next(each for each in queue_ids[::4] if each != copied))
    spool.commit()
    numbers = [int(path[-10:]) for path in there.segments() if is_senders(path)]
    assert numbers == [number, number + 2]
    before_start = spool.totals()
    spool.close()
    spool = recovered(there)
    assert (spool.totals(), there.names("corrupt")) == (before_start, [])


def test_damage_at_the_end_of_an_older_segment_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1)
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    queue_id, last = accept(intake), accept(intake)
    assert isinstance(intake, LogIntake)
    intake.close()
    taken(spool)
    # The segment behind it goes; its listener's lock says that there was one.
    end(spool, last)
    spool.close()
    drop_summaries(engine)
    damage(engine, queue_id)
    recover(engine.start())
    assert engine.names("corrupt") == [queue_id]


def test_a_message_whose_head_is_damaged_stays_counted() -> None:
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    before = spool.totals()
    ((path, at, _),) = engine.places(queue_id)
    engine.flip(path, at + HEAD_BYTES // 2)
    with pytest.raises(Corrupt):
        spool.load(queue_id)
    assert spool.totals() == before
    spool = again(engine, spool)
    assert spool.totals() == before
    spool.close()
    for name in engine.names("corrupt"):
        engine.disk.unlink(f"{engine.layout.corrupt}/{name}")
    assert recover(engine.start()).removed_recipients == 3


def long_and_short() -> tuple[LogEngine, QueueId, QueueId]:
    """Return a spool of two messages, the first of them long, that no summary tells of."""
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    both = accept(intake, content=LONG), accept(intake)
    taken(spool)
    spool.close()
    assert isinstance(intake, LogIntake)
    intake.close()
    drop_summaries(engine)
    return engine, *both


def damage(engine: LogEngine, queue_id: QueueId) -> None:
    """Damage a message, durably as all that was removed before."""
    engine.damage(queue_id)
    settle(engine)


def damage_first_record(engine: LogEngine) -> None:
    """Damage the head of what a listener accepted first, durably."""
    (path,) = [path for path in engine.segments() if not is_senders(path)]
    engine.flip(path, HEADER_BYTES + GROUP_BYTES + HEAD_BYTES // 2)
    settle(engine)


def settle(engine: LogEngine) -> None:
    engine.disk.sync_directory(engine.layout.log)
    for path in [*engine.segments(), *(f"{engine.layout.long}/{name}" for name in engine.names("long"))]:
        model_of(engine).poke(path, engine.content_of(path))


def set_aside(engine: LogEngine) -> set[bytes]:
    return {engine.content_of(f"{engine.layout.corrupt}/{name}") for name in engine.names("corrupt")}


def copied_forward(engine: LogEngine, spool: Spool, queue_ids: list[QueueId], *held: QueueId) -> QueueId:
    """End three messages of four until one of the others is in the sender's stream alone; return that.

    Of those that are `held` something is said again and again.
    """
    kept = queue_ids[::4]
    for queue_id in queue_ids:
        if queue_id in kept:
            continue
        for change in (spool.release, spool.hold):
            change(*held)
        end(spool, queue_id)
        for each in kept:
            if all(is_senders(path) for path, _, _ in engine.places(each)):
                return each
    raise AssertionError("nothing was copied")


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_what_corrupt_has_no_room_for_leaves_no_part_there(kind: str) -> None:
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.close()
    drop_summaries(engine)
    damage(engine, queue_id)
    for _ in range(3):
        view = model_of(engine).another()
        view.fail(Fault(1, errno.ENOSPC, True, is_short=True, kinds=frozenset({kind}), path="/corrupt/"))
        spool = LogSpool(engine.root, view, engine.clock)
        recover(spool)
        assert view.has_failed
        spool.close()
        assert engine.names("corrupt") == []
    recover(engine.start())
    assert engine.names("corrupt") == [queue_id]
