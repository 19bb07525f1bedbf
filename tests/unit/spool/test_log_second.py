"""Two messages of one id in a log: the second is set aside and told of, and what comes again is not."""

import errno
import itertools
import random
from collections.abc import Callable

import pytest

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.spool.interface import Adopted
from relay.spool.log.damaged import SECOND
from relay.spool.log.engine import LogSpool
from relay.spool.log.intake import LogIntake
from relay.spool.log.record import MOVED, MOVED_LONG, New
from tests.fakes.disk import Fault
from tests.unit.spool.engine import accept, again, recovered, taken
from tests.unit.spool.log_engine import LogEngine, log_on_the_model
from tests.unit.spool.recovering import recover
from tests.unit.spool.test_log_attacked import end
from tests.unit.spool.test_log_comes_back import unheard
from tests.unit.spool.test_log_damage import drop_summaries, model_of
from tests.unit.spool.test_log_refusals import LONG, sender
from tests.unit.spool.test_log_said import append, path_of, records_of

SAME = random.Random("ids").randbytes(256)


def listeners(engine: LogEngine) -> tuple[LogIntake, LogIntake]:
    """Return two listeners that draw the same ids at the same instant, for streams of different names."""
    recovered(engine).close()

    def chance(number: int) -> Callable[[int], bytes]:
        drawn = itertools.chain([SAME], map(random.Random(number).randbytes, itertools.repeat(256)))
        return lambda _size: next(drawn)

    views = [model_of(engine).another() for _ in range(2)]
    first, second = (LogIntake(engine.root, view, engine.clock, chance(n)) for n, view in enumerate(views))
    return first, second


def accepted_by_both(engine: LogEngine, first: bytes, second: bytes) -> QueueId:
    one, other = listeners(engine)
    queue_id = accept(one, content=first)
    assert accept(other, content=second) == queue_id
    for intake in (one, other):
        # What else is in a segment keeps it.
        engine.clock.advance(SECOND_NS)
        accept(intake)
        intake.close()
    return queue_id


def set_aside(engine: LogEngine) -> list[bytes]:
    return [engine.content_of(f"{engine.layout.corrupt}/{name}") for name in engine.names("corrupt")]


@pytest.mark.parametrize("contents", [(b"first", b"second"), (b"first", LONG), (LONG, b"second")])
def test_a_second_message_of_an_id_is_set_aside_and_told(contents: tuple[bytes, bytes]) -> None:
    engine = log_on_the_model()
    one, other = listeners(engine)
    spool = recovered(engine)
    queue_id = accept(one, content=contents[0])
    assert taken(spool) == [queue_id]
    assert accept(other, content=contents[1]) == queue_id
    assert taken(spool) == []
    assert b"".join(spool.content(queue_id)) == contents[0]
    assert engine.told == [(queue_id, SECOND)]
    assert [contents[1] in kept for kept in set_aside(engine)] == [True]
    assert (spool.totals().queued, spool.corrupt_count()) == (3, 1)
    end(spool, queue_id)
    # Also when no segment has it any more.
    for image in model_of(engine).subsets(random.Random(1), 16):
        there = LogEngine(engine.root, image, first_intake=50)
        recover(there.start())
        assert any(contents[1] in kept for kept in set_aside(there))


@pytest.mark.parametrize("is_summed", [True, False])
def test_a_start_drops_neither_of_two_messages_of_an_id(*, is_summed: bool) -> None:
    engine = log_on_the_model()
    queue_id = accepted_by_both(engine, b"first", b"second")
    spool = recovered(engine)
    spool.close()
    if not is_summed:
        drop_summaries(engine)
    (name,) = engine.names("corrupt")
    engine.disk.unlink(f"{engine.layout.corrupt}/{name}")
    engine.told.clear()

    spool = recovered(engine)
    (kept,) = set_aside(engine)
    # Which of them it is follows from which stream is read first.
    assert {b"".join(spool.content(queue_id)), b"first" if b"first" in kept else b"second"} == {
        b"first",
        b"second",
    }
    assert engine.told == [(queue_id, SECOND)]


def test_a_second_message_that_cannot_be_set_aside_waits() -> None:
    engine = log_on_the_model()
    spool, view = sender(engine)
    spool.close()
    queue_id = accepted_by_both(engine, b"first", b"second")
    spool = LogSpool(engine.root, view, engine.clock, engine.tell)
    view.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"open_new"}), path="/corrupt/"))
    assert queue_id in [entry.queue_id for entry in recover(spool).entries]
    why = f"{SECOND}, and it cannot be set aside: No space left on device"
    assert engine.told[-1] == (queue_id, why)
    # Both keep their segments.
    end(spool, queue_id)
    assert spool.corrupt_count() == 2
    spool.close()
    recover(engine.start())
    assert len(set_aside(engine)) == 1


@pytest.mark.parametrize(("content", "kind"), [(b"short", MOVED), (LONG, MOVED_LONG)])
def test_a_message_whose_copy_was_heard_before_it_is_no_second(content: bytes, kind: bytes) -> None:
    engine = log_on_the_model()
    before, queue_id = recovered(engine), accept(engine.intake(), content=content)
    taken(before)
    before.hold(queue_id)
    before.commit()
    before.close()
    (whole,) = [r for r in records_of(engine, path_of(engine, sender=False)) if r.queue_id == queue_id]
    append(engine, path_of(engine, sender=True), New(kind, queue_id, whole.payload, 3))

    spool, view, entries = unheard(engine)
    assert entries == (queue_id,)
    view.heal()
    assert taken(spool) == []
    assert (engine.names("corrupt"), spool.corrupt_count()) == ([], 0)
    assert b"".join(spool.content(queue_id)) == content


def test_what_cannot_be_compared_is_set_aside() -> None:
    engine, other = log_on_the_model(), log_on_the_model()
    one, _ = listeners(other)
    source, queue_id = recovered(other), accept(one, content=b"first")
    taken(source)
    one, _ = listeners(engine)
    spool = recovered(engine)
    # It is not written yet.
    spool.adopt([Adopted(source.load(queue_id), (), source.content(queue_id))])
    assert accept(one, content=b"second") == queue_id
    assert taken(spool) == []
    assert engine.told == [(queue_id, SECOND)]
    assert b"".join(again(engine, spool).content(queue_id)) == b"first"


def test_a_second_message_whose_first_cannot_be_read_is_kept() -> None:
    engine = log_on_the_model()
    one, other = listeners(engine)
    spool, view = sender(engine)
    queue_id = accept(one, content=b"first")
    assert taken(spool) == [queue_id]
    ((path, _, _),) = engine.places(queue_id)
    accept(other, content=b"second")
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"read"}), path=path, forever=True))
    assert taken(spool) == []
    assert [b"second" in kept for kept in set_aside(engine)] == [True]
