"""Room ahead of the sender's groups: its segments do not grow with each, and zeros are no damage."""

import shutil
from pathlib import Path

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import ROOM_BYTES
from relay.spool.interface import Spool
from relay.spool.log import recovery
from relay.spool.log.index import LogIndex
from relay.spool.log.inspection import LogInspector
from relay.spool.log.layout import SegmentName, segment_of
from relay.spool.log.record import HEADER_BYTES, mark_of
from relay.spool.log.segments import Segments
from relay.spool.log.stream_reader import Damage, groups
from tests.unit.spool.engine import accept, recovered, taken
from tests.unit.spool.log_engine import LogEngine, log_on_the_kernel, log_on_the_model, window_on
from tests.unit.spool.recovering import recover
from tests.unit.spool.test_log_damage import drop_summaries, model_of


def of_sender(engine: LogEngine) -> list[str]:
    return [path for path in engine.segments() if "sender." in path]


def held(engine: LogEngine, count: int) -> tuple[Spool, list[QueueId]]:
    """Return a sender that made so many groups of its own."""
    spool, intake = recovered(engine), engine.intake()
    queue_ids = [accept(intake) for _ in range(count)]
    taken(spool)
    for queue_id in queue_ids:
        spool.hold(queue_id)
        spool.commit()
    return spool, queue_ids


def test_zeros_between_groups_are_no_room() -> None:
    engine = log_on_the_model()
    spool, (first, second, third) = held(engine, 3)
    spool.close()
    drop_summaries(engine)
    (path,) = of_sender(engine)
    name = segment_of(path.rpartition("/")[2])
    assert name is not None
    raw = engine.content_of(path)
    (lost,) = (
        group
        for group in groups(window_on(raw), mark_of(name), HEADER_BYTES)
        if any(each.queue_id == second for each in group.records)
    )
    zeroed = raw[: lost.at] + bytes(lost.end - lost.at) + raw[lost.end :]
    model_of(engine).plant(path, zeroed)
    found = recover(engine.start())
    assert {entry.queue_id: entry.is_held for entry in found.entries} == {
        first: True,
        second: False,
        third: True,
    }


def test_a_segment_of_the_sender_does_not_grow_with_each_group() -> None:
    engine = log_on_the_model()
    spool, (first, second) = held(engine, 2)
    (path,) = of_sender(engine)
    content = engine.content_of(path)
    spool.release(first)
    spool.commit()
    assert len(engine.content_of(path)) == len(content) > ROOM_BYTES
    assert engine.content_of(path) != content
    # Whoever is killed here leaves the room behind.
    engine = LogEngine(engine.root, model_of(engine).after_kill())
    spool = engine.start()
    found = recover(spool)
    assert {entry.queue_id: entry.is_held for entry in found.entries} == {first: False, second: True}
    assert found.damaged_lines == 0


def test_fsck_finds_nothing_about_room(tmp_path: Path) -> None:
    engine = log_on_the_kernel(tmp_path)
    held(engine, 1)
    killed = tmp_path / "killed"
    shutil.copytree(engine.root, killed, ignore=shutil.ignore_patterns("trigger"))
    assert LogInspector(str(killed), engine.disk).inspect().findings == []


def test_what_stands_in_the_room_was_never_a_group() -> None:
    engine = log_on_the_model()
    spool, (queue_id,) = held(engine, 1)
    (path,) = of_sender(engine)
    content = engine.content_of(path)
    spool.release(queue_id)
    spool.commit()
    # A crash kept the end of the group, and not its beginning.
    end = len(engine.content_of(path).rstrip(b"\0"))
    torn = content[: end - 9] + engine.content_of(path)[end - 9 :]
    model_of(engine).poke(path, torn)
    found = recover(LogEngine(engine.root, model_of(engine).after_kill()).start())
    assert [entry.is_held for entry in found.entries] == [True]
    assert found.damaged_lines == 0


def test_room_is_not_counted_as_a_part_of_a_segment() -> None:
    engine = log_on_the_model()
    held(engine, 1)
    there = Segments(model_of(engine).after_kill(), engine.layout)
    damages: list[Damage] = []
    end = recovery.replay(
        there,
        LogIndex(there),
        [1],
        on_damage=lambda _, damage: damages.append(damage),
        on_step=lambda: None,
    )
    handle = there.handle(SegmentName("sender", 1))
    # Else it could not be copied whole, and would stay.
    assert there[handle].end == end.end <= there.size(handle) - ROOM_BYTES
    assert damages == []


def test_a_segment_that_ended_gives_its_room_back() -> None:
    engine = log_on_the_model()
    spool, _ = held(engine, 1)
    spool.close()
    (path,) = of_sender(engine)
    assert not engine.content_of(path).endswith(b"\0")
