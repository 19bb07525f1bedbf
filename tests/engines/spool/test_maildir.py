"""The maildir engine: the common suite, and tests of what only the maildir has."""

import errno
import itertools
import os
from pathlib import Path

import pytest

from relay.spool.base import READ_AGAIN_NS
from relay.spool.identity import report_id
from relay.spool.interface import Settlement, SpoolBusy
from relay.spool.maildir.layout import FORMAT, prepare
from tests.engines.spool.conformance import Conformance, FailingConformance, begun, watched
from tests.engines.spool.engine import (
    BOUNCED,
    CONTENT,
    ENVELOPE,
    EVERY,
    OnDisk,
    accept,
    bounced,
    claimed,
    note,
    on_the_kernel,
    on_the_model,
    read,
    settle,
)
from tests.fakes.disk import Fault, ModelDisk


class TestOnTheModel(FailingConformance):
    @pytest.fixture
    def engine(self) -> OnDisk:
        return on_the_model()


@pytest.mark.full
class TestOnTheKernel(Conformance):
    @pytest.fixture
    def engine(self, tmp_path: Path) -> OnDisk:
        return on_the_kernel(tmp_path)


@pytest.mark.parametrize(
    "found", [b"", b"relay spool", b"relay spool 2 maildir\n", b"relay spool 1 log\n", bytes(22)]
)
def test_a_spool_of_another_format_is_left_alone(found: bytes) -> None:
    engine = on_the_model()
    engine.start().close()
    watched(engine).poke(f"{engine.root}/format", found)
    with pytest.raises(ValueError, match="this engine needs"):
        engine.start()
    assert watched(engine).peek(f"{engine.root}/format") == found


def test_several_first_starts_at_once_end_in_one_format(monkeypatch: pytest.MonkeyPatch) -> None:
    for nth in itertools.count(1):
        disk = ModelDisk()
        first, second = disk.another(), disk.another()

        def meanwhile(second: ModelDisk = second) -> None:
            # The second start runs as another process.
            with monkeypatch.context() as other:
                other.setattr(os, "getpid", lambda: -1)
                prepare("/var/spool", second)

        first.at(nth, meanwhile)
        prepare("/var/spool", first)
        assert disk.peek("/var/spool/format") == FORMAT
        prepare("/var/spool", disk.another())
        if first.before is not None:
            break
    assert nth > 100


def test_a_full_disk_does_not_keep_the_sender_from_starting() -> None:
    engine = on_the_model()
    engine.start().close()
    view = watched(engine)
    view.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"write"}), path="/lock", forever=True))
    assert claimed(engine.start()) == []
    view.heal()
    with pytest.raises(SpoolBusy, match="another process"):
        engine.start()


def test_a_full_disk_that_refuses_a_rename_delays_only_that_message() -> None:
    engine = on_the_model()
    view, intake = watched(engine), engine.intake()
    queue_ids = [accept(intake) for _ in range(3)]
    spool = engine.start()
    view.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"rename"}), path=queue_ids[0], forever=True))
    assert [message.queue_id for message in claimed(spool)] == queue_ids[1:]
    view.heal()
    engine.clock.advance(READ_AGAIN_NS)
    assert [message.queue_id for message in claimed(spool)] == queue_ids[:1]


def test_a_report_that_was_given_up_is_not_owed_after_a_power_cut() -> None:
    engine = on_the_model()
    spool, (queue_id,) = begun(engine, CONTENT)
    settle(spool, Settlement(queue_id, ENVELOPE, EVERY | {1: BOUNCED}, [note(1)]))
    settle(spool, Settlement(queue_id, ENVELOPE, told=(1,), ends=True))
    assert isinstance(engine.disk, ModelDisk)
    # Without the unsynced changes, the removed message exists again.
    engine.disk = ModelDisk(engine.disk.platter.after_cut(()))
    (message,) = claimed(engine.start())
    assert (message.queue_id, message.left, message.owed_report) == (queue_id, (), None)


def test_no_call_leaves_a_descriptor_open() -> None:
    """Except the lock's, while the queue is owned."""
    engine = on_the_model()
    view = watched(engine)
    spool, intake = engine.start(), engine.intake()
    claimed(spool)
    held = len(view.open_paths)
    for _ in range(2):
        queue_id = accept(intake)
        claimed(spool)
        for is_held in (True, False):
            settle(spool, Settlement(queue_id, ENVELOPE, is_held=is_held, next_attempt_at_ns=1))
        read(spool, queue_id)
        settle(spool, bounced(queue_id))
        claimed(spool)
        list(spool.content(report_id(queue_id)))
        assert spool.tidy() == 0
        assert len(view.open_paths) == held
    spool.close()
    intake.close()
    assert view.open_paths == []
