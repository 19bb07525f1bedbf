"""The maildir engine: held to the suite that every engine is held to, and what is its own."""

import errno
import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest

from relay.spool.identity import report_id
from relay.spool.interface import SpoolBusy
from relay.spool.maildir import recovery
from relay.spool.maildir.layout import FORMAT, prepare
from tests.engines.spool.conformance import Conformance
from tests.engines.spool.engine import (
    BOUNCED,
    CONTENT,
    ENVELOPE,
    RELAYED,
    accept,
    again,
    note,
    recovered,
    taken,
)
from tests.engines.spool.maildir_engine import MaildirEngine, on_the_kernel, on_the_model
from tests.engines.spool.recovering import recover
from tests.fakes.disk import Fault, ModelDisk


class TestOnTheModel(Conformance):
    @pytest.fixture
    def engine(self) -> MaildirEngine:
        return on_the_model()


@pytest.mark.full
class TestOnTheKernel(Conformance):
    @pytest.fixture
    def engine(self, tmp_path: Path) -> MaildirEngine:
        return on_the_kernel(tmp_path)


def watched(engine: MaildirEngine) -> ModelDisk:
    """Return the view of the disk that every process of the engine has from now on."""
    assert isinstance(engine.disk, ModelDisk)
    view = engine.disk.another()
    engine.view = lambda: view  # type: ignore[method-assign]  # the one whose calls fail
    return view


def test_the_folder_is_the_state() -> None:
    engine = on_the_model()
    spool, intake = recovered(engine), engine.intake()
    draft = intake.draft()
    draft.append(CONTENT)
    intake.spill(draft)
    places = [engine.layout.draft, engine.layout.accepted, engine.layout.queued, engine.layout.held]

    def where() -> list[str]:
        return [place.__name__ for place in places if engine.disk.inode(place(draft.queue_id)) is not None]

    assert where() == ["draft"]
    assert intake.accept([(draft, ENVELOPE)]) == [None]
    assert where() == ["accepted"]
    spool.take(1)
    assert where() == ["queued"]
    spool.hold(draft.queue_id)
    assert where() == ["held"]
    spool.release(draft.queue_id)
    spool.mark({draft.queue_id: dict.fromkeys(range(3), RELAYED)})
    assert where() == ["queued"]
    spool.finish([draft.queue_id])
    assert where() == []


def test_only_the_status_byte_of_a_message_ever_changes() -> None:
    engine = on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    before = engine.content_of(engine.layout.accepted(queue_id))
    spool.take(1)
    spool.mark({queue_id: {1: BOUNCED}})
    spool.hold(queue_id)
    spool.release(queue_id)
    again(engine, spool)
    after = engine.content_of(engine.layout.queued(queue_id))

    assert after == before.replace(b"\nTbob@", b"\nFbob@")


@pytest.mark.parametrize(
    "found", [b"", b"relay spool", b"relay spool 2 maildir\n", b"relay spool 1 log\n", bytes(22)]
)
def test_a_spool_of_another_format_is_left_alone(found: bytes) -> None:
    engine = on_the_model()
    recovered(engine).close()
    engine.disk.unlink(engine.layout.file("format"))
    engine.plant(engine.layout.file("format"), found)

    with pytest.raises(ValueError, match="does not know"):
        engine.start()
    assert engine.content_of(engine.layout.file("format")) == found


def test_several_first_starts_at_once_end_in_one_format(monkeypatch: pytest.MonkeyPatch) -> None:
    for nth in itertools.count(1):
        disk = ModelDisk()
        first, second, calls = disk.another(), disk.another(), itertools.count(1)

        def meanwhile(
            _step: str, nth: int = nth, calls: "itertools.count[int]" = calls, second: ModelDisk = second
        ) -> None:
            if next(calls) == nth:
                with monkeypatch.context() as other:
                    other.setattr(os, "getpid", lambda: -1)
                    prepare("/var/spool", second)

        first.before = meanwhile
        prepare("/var/spool", first)
        assert disk.peek("/var/spool/format") == FORMAT
        prepare("/var/spool", disk.another())
        if next(calls) <= nth:
            break
    assert nth > 100


def test_a_full_disk_does_not_keep_the_sender_from_starting() -> None:
    engine = on_the_model()
    recovered(engine).close()
    view = watched(engine)
    view.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"write"}), path="/lock", forever=True))

    recover(engine.start())
    view.heal()
    with pytest.raises(SpoolBusy, match="unknown"):
        engine.start()


def test_an_abandoned_report_is_not_in_the_way_of_the_next_try() -> None:
    engine = on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    spool.take(1)
    engine.plant(engine.layout.draft(report_id(queue_id)), b"half a report, its writer was killed")

    assert spool.publish_report(report_id(queue_id), replace(ENVELOPE, reverse_path=""), b"whole")
    (own,) = taken(spool)
    assert spool.load(own).content == b"whole"


def test_no_call_leaves_a_descriptor_open() -> None:
    """But the lock and the ledger, for as long as the spool is held."""
    engine = on_the_model()
    view = watched(engine)
    spool, intake = recovered(engine), engine.intake()
    held = len(view._fds)

    for fate in (RELAYED, BOUNCED):
        queue_id = accept(intake)
        taken(spool)
        spool.hold(queue_id)
        spool.release(queue_id)
        spool.mark_warned(queue_id)
        spool.postpone(queue_id, 1)
        spool.load(queue_id)
        spool.note({queue_id: [note(0)]})
        spool.mark({queue_id: dict.fromkeys(range(3), fate)})
        spool.publish_report(report_id(queue_id), ENVELOPE, CONTENT)
        spool.finish([queue_id])
        spool.clean_up()
        assert len(view._fds) == held
    spool.close()
    assert len(view._fds) == 0


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOMEM])
def test_a_start_goes_on_once_descriptors_are_there(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    monkeypatch.setattr(recovery, "BATCH", 2)
    engine = on_the_model()
    spool = recovered(engine)
    queue_ids = [accept(engine.intake()) for _ in range(6)]
    taken(spool)
    spool.close()
    view = watched(engine)
    walk = engine.start().recover()
    met = next(walk)
    view.fail(Fault(1, error, kinds=frozenset({"open", "open_update"}), forever=True))
    assert next(walk) == next(walk) == []
    view.heal()
    for batch in walk:
        met += batch
    assert [entry.queue_id for entry in met] == sorted(queue_ids)


def test_a_start_that_raises_gives_the_lock_back() -> None:
    engine = on_the_model()
    watched(engine).fail(Fault(1, errno.ENOSPC, kinds=frozenset({"make_fifo"})))
    with pytest.raises(OSError, match="space"):
        engine.start()

    engine.start().close()
