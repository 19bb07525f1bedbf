"""Segments of a log: what lives in a mostly dead one moves on, dead ones go, and their room is bounded."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import ROOM_BYTES
from relay.spool.identity import warning_id
from relay.spool.interface import Corrupt, Spool
from relay.spool.log import segments
from tests.engines.spool.engine import ENVELOPE, accept, again, note, recovered, taken
from tests.engines.spool.log_engine import (
    LogEngine,
    drop_summaries,
    end,
    log_on_the_kernel,
    log_on_the_model,
    model_of,
)
from tests.engines.spool.recovering import recover
from tests.engines.spool.test_log_fsck import fsck


def test_a_held_message_pins_no_more_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 8192)
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    held: list[QueueId] = []
    for number in range(120):
        queue_id = accept(intake, content=b"x" * 800)
        taken(spool)
        spool.note({queue_id: [note(0)]})
        if number % 20 == 0:
            spool.hold(queue_id)
            spool.commit()
            held.append(queue_id)
        else:
            end(spool, queue_id)
        size = sum(len(engine.content_of(path)) for path in engine.segments())
        # Two segments are being added to.
        assert size <= 2 * 1400 * len(held) + 2 * 8192 + 2 * (8192 + 2000)

    spool = again(engine, spool)
    for queue_id in held:
        message = spool.load(queue_id)
        assert (message.content, message.is_held, spool.notes(queue_id)) == (b"x" * 800, True, [note(0)])
    assert [entry.queue_id for entry in recover(spool).entries] == held


def test_a_report_that_ended_is_not_published_again_once_its_end_is_cleaned_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 2000)
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    waiting = accept(intake)
    taken(spool)
    own = warning_id(waiting)
    report = replace(ENVELOPE, reverse_path="", recipients=("list-owner@example.org",))
    assert spool.publish_report(own, report, b"Subject: late\r\n\r\n")
    assert taken(spool) == [own]
    end(spool, own)
    for number in range(60):
        queue_id = accept(intake, content=b"x" * 300)
        taken(spool)
        if number % 12:
            end(spool, queue_id)
    assert "sender.0000000001" not in engine.names("log")
    for _ in range(3):
        assert not spool.publish_report(own, report, b"Subject: again\r\n\r\n")
        spool = again(engine, spool)


@pytest.mark.parametrize("at_a_start", [True, False])
def test_cleaning_passes_over_damage_and_keeps_what_lives(
    monkeypatch: pytest.MonkeyPatch, *, at_a_start: bool
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 4000)
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    held, queue_ids = list[QueueId](), list[QueueId]()
    for number in range(60):
        queue_ids.append(accept(intake, content=b"x" * 300))
        taken(spool)
        if number % 16 == 1:
            held.append(queue_ids[-1])
            spool.hold(held[-1])
            spool.commit()
    damaged = queue_ids[2]
    if at_a_start:
        spool.close()
        drop_summaries(engine)
        spool = engine.start()
        engine.damage(damaged)
        recover(spool)
    else:
        spool = again(engine, spool)
        engine.damage(damaged)
    for queue_id in queue_ids:
        if queue_id not in (*held, damaged):
            end(spool, queue_id)
    # The damaged one stays until it is known, and is no reason to copy others.
    assert len(engine.segments()) < 12
    if not at_a_start:
        with pytest.raises(Corrupt):
            spool.load(damaged)
    for _ in range(2):
        assert all(spool.load(queue_id).is_held for queue_id in held)
        assert engine.names("corrupt") == [damaged]
        spool = again(engine, spool)
    assert [entry.queue_id for entry in recover(spool).entries] == held


def of_sender(engine: LogEngine) -> str:
    (path,) = [path for path in engine.segments() if "/sender." in path]
    return path


def held_and_released(engine: LogEngine) -> tuple[Spool, bytes, bytes]:
    """Return a sender, and its segment before and behind a group."""
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.hold(queue_id)
    spool.commit()
    before = engine.content_of(of_sender(engine))
    spool.release(queue_id)
    spool.commit()
    return spool, before, engine.content_of(of_sender(engine))


def test_a_segment_of_the_sender_does_not_grow_with_each_group(tmp_path: Path) -> None:
    engine = log_on_the_kernel(tmp_path)
    spool, before, after = held_and_released(engine)
    assert len(before) == len(after) > ROOM_BYTES
    assert before != after
    # Whoever is killed here leaves the room behind, and it is no damage.
    killed = tmp_path / "killed"
    shutil.copytree(engine.root, killed, ignore=shutil.ignore_patterns("trigger"))
    killed_engine = LogEngine(str(killed), engine.disk)
    assert fsck(killed_engine).findings == []
    assert [entry.is_held for entry in recover(killed_engine.start()).entries] == [False]
    assert killed_engine.told == []
    # One that ends gives it back.
    spool.close()
    assert not engine.content_of(of_sender(engine)).endswith(b"\0")


def test_a_group_of_which_a_crash_kept_only_the_end_was_never_there() -> None:
    engine = log_on_the_model()
    _, before, after = held_and_released(engine)
    ends_at = len(after.rstrip(b"\0"))
    model_of(engine).poke(of_sender(engine), before[: ends_at - 9] + after[ends_at - 9 :])
    engine = LogEngine(engine.root, model_of(engine).after_kill())
    assert [entry.is_held for entry in recover(engine.start()).entries] == [True]
    assert engine.told == []
