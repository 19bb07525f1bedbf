"""Records of a log that are damaged, stand twice, or say what no version writes: each costs no other."""

import errno
import random

import pytest

from relay.mail.envelope import QueueId
from relay.spool.identity import report_id, warning_id
from relay.spool.interface import Absent, Adopted, Corrupt, SpoolFull, Status
from relay.spool.log import cleaning, facts, segments
from relay.spool.log.engine import LogSpool
from relay.spool.log.layout import segment_of
from relay.spool.log.record import HEADER_BYTES, MOVED, New, Record, encode_group, mark_of
from relay.spool.log.stream_reader import pieces
from tests.fakes.disk import Fault
from tests.unit.spool.engine import CONTENT, ENVELOPE, RELAYED, accept, again, note, recovered, taken
from tests.unit.spool.log_engine import LogEngine, log_on_the_model, window_on
from tests.unit.spool.recovering import recover
from tests.unit.spool.test_log_attacked import end
from tests.unit.spool.test_log_comes_back import unheard
from tests.unit.spool.test_log_damage import drop_summaries, is_senders, model_of, small_spool
from tests.unit.spool.test_log_refusals import sender

EVERYBODY = dict.fromkeys(range(3), RELAYED)


def path_of(engine: LogEngine, *, sender: bool) -> str:
    (path,) = [path for path in engine.segments() if is_senders(path) == sender]
    return path


def records_of(engine: LogEngine, path: str) -> list[Record]:
    name = segment_of(path.rpartition("/")[2])
    assert name is not None
    raw = model_of(engine).peek(path)
    return [each for each in pieces(window_on(raw), mark_of(name), HEADER_BYTES) if isinstance(each, Record)]


def append(engine: LogEngine, path: str, *made: New, flip: int | None = None) -> None:
    """Add a group to a segment, as its writer would; of its bytes one may be damaged."""
    name = segment_of(path.rpartition("/")[2])
    assert name is not None
    raw = model_of(engine).peek(path)
    group = bytearray(b"".join(encode_group(mark_of(name), made, len(raw))[0]))
    if flip is not None:
        group[flip] ^= 1
    model_of(engine).poke(path, raw + group)


def again_as(each: Record) -> New:
    return New(each.kind, each.queue_id, each.payload, each.number)


def test_a_damaged_byte_of_what_became_of_mail_sends_it_again_or_not() -> None:
    base, queue_ids = small_spool()
    path = path_of(base, sender=True)
    raw = model_of(base).peek(path)
    came_again = 0
    for at in range(HEADER_BYTES, len(raw), 5):
        engine = LogEngine(base.root, model_of(base).after_kill())
        model_of(engine).poke(path, raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        spool = engine.start()
        found = {entry.queue_id for entry in recover(spool).entries}
        # What ended may come again, rather than never.
        assert set(queue_ids[1:]) <= found <= set(queue_ids)
        came_again += len(found) == len(queue_ids)
        spool.commit()
        spool.close()
        assert {entry.queue_id for entry in recover(engine.start()).entries} == found
    assert came_again


@pytest.mark.parametrize("is_senders", [True, False])
def test_a_message_that_stands_twice_is_there_once(*, is_senders: bool) -> None:
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    own = warning_id(queue_id)
    assert spool.publish_report(own, ENVELOPE, b"Subject: late\r\n\r\n")
    spool.commit()
    spool.close()
    drop_summaries(engine)
    path = path_of(engine, sender=is_senders)
    wanted = own if is_senders else queue_id
    (twice,) = [each for each in records_of(engine, path) if each.queue_id == wanted]
    append(engine, path, again_as(twice))
    # Its listener is dead: all of its stream is read.
    engine = LogEngine(engine.root, model_of(engine).after_kill())
    spool = engine.start()
    assert sorted(entry.queue_id for entry in recover(spool).entries) == sorted([queue_id, own])
    assert spool.totals().queued == 6


def test_a_listener_says_nothing_of_what_becomes_of_mail() -> None:
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    spool.close()
    path = path_of(engine, sender=False)
    append(engine, path, New(facts.HELD, queue_id), New(facts.GONE, queue_id, b"", 3))
    engine = LogEngine(engine.root, model_of(engine).after_kill())
    drop_summaries(engine)
    (entry,) = recover(engine.start()).entries
    assert (entry.queue_id, entry.is_held) == (queue_id, False)


@pytest.mark.parametrize("is_summed", [True, False])
def test_a_mark_of_a_recipient_that_is_not_there_costs_its_message(*, is_summed: bool) -> None:
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    bad, good = accept(intake), accept(intake)
    taken(spool)
    spool.hold(good)
    spool.commit()
    spool.close()
    if not is_summed:
        drop_summaries(engine)
    append(engine, path_of(engine, sender=True), New(facts.MARKS, bad, facts.encode_marks({99: RELAYED})))
    spool = engine.start()
    assert [entry.queue_id for entry in recover(spool).entries] == [good]
    assert engine.names("corrupt") == [bad]
    assert again(engine, spool).totals().imbalance == 0


def test_an_end_beside_a_damaged_report_does_not_count() -> None:
    engine = log_on_the_model()
    spool, ended = recovered(engine), accept(engine.intake())
    other = accept(engine.intake())
    taken(spool)
    own = report_id(ended)
    spool.mark({ended: dict.fromkeys(range(3), Status.BOUNCED)})
    spool.commit()
    assert spool.publish_report(own, ENVELOPE, CONTENT)
    spool.finish([ended])
    spool.commit()
    # The last group of a sender would count as torn.
    spool.hold(other)
    spool.commit()
    spool.close()
    engine.damage(own)
    spool = engine.start()
    # Its sender was not told: it is there, to be told of again.
    found = {entry.queue_id: entry.owes_report for entry in recover(spool).entries}
    assert found == {ended: True, other: False}


def test_a_copy_behind_its_end_does_not_bring_a_message_back() -> None:
    engine = log_on_the_model()
    before, intake = recovered(engine), engine.intake()
    ended = accept(intake)
    taken(before)
    end(before, ended)
    before.close()
    (whole,) = [each for each in records_of(engine, path_of(engine, sender=False)) if each.queue_id == ended]
    append(engine, path_of(engine, sender=True), New(MOVED, ended, whole.payload, 3))

    # What came before the copy is not known while its listener cannot be heard.
    spool, view, entries = unheard(engine)
    assert entries == ()
    view.heal()
    assert spool.take(10) == []
    with pytest.raises(Absent):
        spool.load(ended)


def test_a_damaged_copy_of_a_message_costs_nothing() -> None:
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.hold(queue_id)
    spool.commit()
    spool.close()
    (whole,) = [
        each for each in records_of(engine, path_of(engine, sender=False)) if each.queue_id == queue_id
    ]
    path = path_of(engine, sender=True)
    append(engine, path, New(MOVED, queue_id, whole.payload, 3), flip=400)
    append(engine, path, New(facts.WARNED, queue_id))
    spool = engine.start()
    assert [entry.queue_id for entry in recover(spool).entries] == [queue_id]
    loaded = spool.load(queue_id)
    assert (loaded.content, loaded.is_held, loaded.is_warned) == (CONTENT, True, True)


def test_another_record_in_the_place_of_a_message_is_not_it() -> None:
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool = again(engine, spool)
    path = path_of(engine, sender=False)
    group, each = records_of(engine, path)
    name = segment_of(path.rpartition("/")[2])
    assert name is not None
    other = New(facts.NOTES, queue_id, b"x" * len(each.payload), 3)
    made = b"".join(encode_group(mark_of(name), [other], group.at)[0])
    model_of(engine).poke(path, model_of(engine).peek(path)[: group.at] + made)
    with pytest.raises(Corrupt, match="another record"):
        spool.load(queue_id)
    assert engine.names("corrupt") == [queue_id]


def test_notes_that_are_damaged_are_left_out_and_nothing_else() -> None:
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.note({queue_id: [note(0)]})
    spool = again(engine, spool)
    path = path_of(engine, sender=True)
    raw = model_of(engine).peek(path)
    model_of(engine).poke(path, raw.replace(b"no such user", b"no such uszr"))
    assert spool.notes(queue_id) == []
    assert spool.load(queue_id).left == (0, 1, 2)


def test_a_damaged_header_of_a_segment_costs_no_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1)
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    spool.close()
    queue_ids = [accept(intake) for _ in range(3)]
    for path in engine.segments():
        model_of(engine).poke(path, b"?" + model_of(engine).peek(path)[1:])
    engine = LogEngine(engine.root, model_of(engine).after_kill())
    assert [entry.queue_id for entry in recover(engine.start()).entries] == queue_ids


def test_a_senders_segment_that_came_to_nothing_is_passed_over() -> None:
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.hold(queue_id)
    spool.commit()
    spool.close()
    # As a crash leaves the first write of the next one.
    model_of(engine).plant(f"{engine.layout.log}/sender.0000000002", b"relay-log 1 sender")
    for _ in range(3):
        spool = engine.start()
        (entry,) = recover(spool).entries
        assert entry.is_held
        spool.note({queue_id: [note(0)]})
        spool.commit()
        assert spool.notes(queue_id) == [note(0)]
        spool.close()
    assert "sender.0000000002" not in engine.names("log")
    # And so it is where its removal was not durable, and the next one says that it does not count.
    model_of(engine).plant(f"{engine.layout.log}/sender.0000000002", b"relay-log 1 sender")
    spool = engine.start()
    (entry,) = recover(spool).entries
    assert (entry.is_held, spool.notes(queue_id)) == (True, [note(0)])


def test_what_was_removed_from_corrupt_is_counted_once() -> None:
    base, queue_ids = small_spool()
    base.damage(queue_ids[1])
    spool = base.start()
    recover(spool)
    spool.commit()
    spool.close()
    base.disk.unlink(f"{base.layout.corrupt}/{queue_ids[1]}")
    for expected in (2, 0, 0):
        spool = base.start()
        assert recover(spool).removed_recipients == expected
        assert (spool.totals().deleted, spool.totals().imbalance) == (2, 0)
        spool.commit()
        spool.close()


@pytest.mark.parametrize("at_once", [1, 1 << 20])
def test_cleaning_passes_over_damage_and_keeps_what_lives(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 4000)
    monkeypatch.setattr(cleaning, "_COPIED_AT_ONCE", at_once)
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    held, queue_ids = list[QueueId](), list[QueueId]()
    for number in range(120):
        queue_ids.append(accept(intake, content=b"x" * 300))
        taken(spool)
        if number % 16 == 1:
            held.append(queue_ids[-1])
            spool.hold(held[-1])
            spool.commit()
    spool.close()
    drop_summaries(engine)
    engine.damage(queue_ids[2])
    spool = engine.start()
    recover(spool)
    assert engine.names("corrupt") == [queue_ids[2]]
    for queue_id in queue_ids:
        if queue_id not in (*held, queue_ids[2]):
            spool.mark({queue_id: EVERYBODY})
            spool.finish([queue_id])
            spool.commit()
    # The damaged one stays, and is no reason to copy others.
    assert len(engine.segments()) < 12
    for _ in range(2):
        assert all(spool.load(queue_id).is_held for queue_id in held)
        spool = again(engine, spool)
    assert spool.totals().relayed == 3 * (120 - len(held) - 1)
    assert spool.totals().imbalance == 0


def test_of_mail_of_which_nothing_was_said_nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 4000)
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    waiting = list[QueueId]()
    for number in range(120):
        queue_id = accept(intake, content=b"x" * 300)
        taken(spool)
        if number % 16 == 1:
            waiting.append(queue_id)
            continue
        spool.mark({queue_id: EVERYBODY})
        spool.finish([queue_id])
        spool.commit()
    copied = [each for path in engine.segments() for each in records_of(engine, path)]
    moved = {each.queue_id for each in copied if each.kind == MOVED}
    assert moved
    assert moved <= set(waiting)
    assert not [each for each in copied if each.kind == facts.SNAPSHOT]
    # Nor of what comes from another spool.
    for queue_id in waiting:
        message = spool.load(queue_id)
        assert facts.adopted_facts(Adopted(message, (), ())) is None


def test_an_ended_report_is_remembered_when_its_end_is_cleaned_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 2000)
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    waiting = accept(intake)
    taken(spool)
    own = report_id(waiting, 0)
    assert spool.publish_report(own, ENVELOPE, b"Subject: late\r\n\r\n")
    assert taken(spool) == [own]
    spool.mark({own: EVERYBODY})
    spool.finish([own])
    spool.commit()
    rng = random.Random(1)
    for number in range(120):
        queue_id = accept(intake, content=rng.randbytes(300))
        taken(spool)
        if number % 12 == 0:
            continue
        spool.mark({queue_id: dict.fromkeys(range(3), Status.DELETED)})
        spool.finish([queue_id])
        spool.commit()
    assert "sender.0000000001" not in engine.names("log")
    for _ in range(3):
        assert not spool.publish_report(own, ENVELOPE, b"Subject: again\r\n\r\n")
        spool = again(engine, spool)


def test_ends_are_not_copied_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 4000)
    engine = log_on_the_model()
    spool, view = sender(engine)
    intake, writes, write_at = engine.intake(), list[int](), view.write_at

    def counted(fd: int, content: bytes, offset: int) -> None:
        writes.append(len(content.rstrip(b"\0")))
        write_at(fd, content, offset)

    monkeypatch.setattr(view, "write_at", counted)
    for number in range(300):
        queue_id = accept(intake, content=b"x" * 300)
        taken(spool)
        if number % 100 != 1:
            spool.mark({queue_id: EVERYBODY})
            spool.finish([queue_id])
            spool.commit()
    # What a message waits in needs the ends of those that it came with, and of no other.
    assert sum(writes) < 300 * 300


def test_notes_that_cannot_be_read_for_lack_of_memory_are_asked_for_again() -> None:
    engine = log_on_the_model()
    (spool, view), queue_id = sender(engine), accept(engine.intake())
    taken(spool)
    spool.note({queue_id: [note(0)]})
    spool.commit()
    view.fail(Fault(1, errno.ENOMEM, kinds=frozenset({"read"}), path="/sender.", forever=True))
    with pytest.raises(SpoolFull):
        spool.notes(queue_id)
    view.heal()
    assert spool.notes(queue_id) == [note(0)]


def test_a_report_that_a_crash_left_unmarked_is_known_without_a_summary() -> None:
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.mark({queue_id: {1: Status.BOUNCED}})
    assert spool.publish_report(report_id(queue_id, 1), ENVELOPE, b"Subject: sorry\r\n")
    spool.commit()
    spool.close()
    drop_summaries(engine)
    owed = {entry.queue_id: entry.owes_report for entry in recover(engine.start()).entries}
    assert owed[queue_id] is False


def waiting_in_few(engine: LogEngine, spool: LogSpool) -> list[QueueId]:
    """Return messages that wait, one in many that ended, but for the commit of the last ends."""
    intake, waiting = engine.intake(), list[QueueId]()
    for number in range(64):
        queue_id = accept(intake, content=b"x" * 300)
        taken(spool)
        if number % 8 == 1:
            waiting.append(queue_id)
            continue
        spool.mark({queue_id: EVERYBODY})
        spool.finish([queue_id])
    return waiting


def listeners_segments(engine: LogEngine) -> list[str]:
    return [path for path in engine.segments() if not is_senders(path)]


def test_cleaning_that_lacks_memory_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 2000)
    engine = log_on_the_model()
    spool, view = sender(engine)
    waiting = waiting_in_few(engine, spool)
    stream, *_ = listeners_segments(engine)[0].split(".")
    view.fail(Fault(1, errno.ENOMEM, kinds=frozenset({"read"}), path=stream, forever=True))
    spool.commit()
    assert view.has_failed
    view.heal()
    before = listeners_segments(engine)
    for queue_id in waiting:
        spool.hold(queue_id)
        spool.commit()
    assert len(listeners_segments(engine)) < len(before)
    assert spool.corrupt_count() == 0


def test_cleaning_leaves_a_segment_with_mail_that_was_damaged_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 2000)
    engine = log_on_the_model()
    spool, _ = sender(engine)
    *damaged, whole = waiting_in_few(engine, spool)
    spool.commit()
    there = {path for queue_id in damaged for path, _, _ in engine.places(queue_id)}
    for queue_id in damaged[::2]:
        engine.damage(queue_id)
    for queue_id in damaged[1::2]:
        ((path, at, _),) = engine.places(queue_id)
        raw = model_of(engine).peek(path)
        model_of(engine).poke(path, raw[:at] + b"?" + raw[at + 1 :])
    for _ in range(12):
        spool.hold(whole)
        spool.commit()
        spool.release(whole)
        spool.commit()
    assert there <= set(engine.segments())
    for queue_id in damaged:
        with pytest.raises(Corrupt):
            spool.load(queue_id)
    assert sorted(damaged) == engine.names("corrupt")
