"""The maildir engine: held to the suite that every engine is held to, and what is its own."""

import errno
import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from relay.mail.envelope import QueueId
from relay.spool.identity import report_id
from relay.spool.interface import Corrupt, SpoolBusy, Totals
from relay.spool.maildir import ledger_file, recovery
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.layout import FORMAT, prepare
from tests.fakes.disk import Fault, ModelDisk
from tests.unit.spool.conformance import Conformance
from tests.unit.spool.engine import (
    BOUNCED,
    CONTENT,
    ENVELOPE,
    RELAYED,
    accept,
    again,
    is_balanced,
    note,
    recovered,
    taken,
)
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_kernel, on_the_model
from tests.unit.spool.recovering import read_on, recover


class TestOnTheModel(Conformance):
    @pytest.fixture
    def engine(self) -> MaildirEngine:
        return on_the_model()


class TestOnTheKernel(Conformance):
    @pytest.fixture
    def engine(self, tmp_path: Path) -> MaildirEngine:
        return on_the_kernel(tmp_path)


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


def test_a_message_without_a_hint_is_due_at_once() -> None:
    engine = on_the_model()
    assert isinstance(engine.disk, ModelDisk)
    spool, queue_id = recovered(engine), accept(engine.intake())
    (entry,) = spool.take(1)
    assert entry.next_attempt_at_ns is None
    spool.postpone(queue_id, ENVELOPE.arrival_at_ns + 10**12)
    cut = MaildirEngine(engine.root, ModelDisk(engine.disk.platter.after_cut(engine.disk.platter.pending)))

    (entry,) = recover(cut.start()).entries
    assert entry.next_attempt_at_ns is None


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
    assert isinstance(engine.disk, ModelDisk)
    recovered(engine).close()
    view = engine.disk.another()
    engine.disk.another = lambda: view  # type: ignore[method-assign]  # the one whose disk is full
    view.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"write"}), path="/lock", forever=True))

    recover(engine.start())
    view.heal()
    with pytest.raises(SpoolBusy, match="unknown"):
        engine.start()


def test_many_finished_messages_do_not_make_the_ledger_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "LINES_BEFORE_REWRITE", 20)
    engine = on_the_model()
    spool, intake = recovered(engine), engine.intake()
    for number in range(50):
        queue_id = accept(intake)
        spool.take(1)
        spool.mark({queue_id: dict.fromkeys(range(3), RELAYED)})
        spool.finish([queue_id])
        assert engine.content_of(engine.layout.file("ledger")).count(b"\n") < 25
        assert spool.totals() == Totals(accepted=3 * number + 3, relayed=3 * number + 3)
    assert again(engine, spool).totals() == Totals(accepted=150, relayed=150)


def test_a_report_of_a_message_is_not_its_own_subject() -> None:
    engine = on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    assert taken(spool) == [queue_id]
    assert spool.publish_report(report_id(queue_id), replace(ENVELOPE, reverse_path=""), b"")
    assert taken(spool) == [report_id(queue_id)]
    spool.mark({report_id(queue_id): dict.fromkeys(range(3), BOUNCED)})
    spool.finish([report_id(queue_id)])

    assert spool.load(queue_id).left == (0, 1, 2)


def test_an_abandoned_report_is_not_in_the_way_of_the_next_try() -> None:
    engine = on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    spool.take(1)
    engine.plant(engine.layout.draft(report_id(queue_id)), b"half a report, its writer was killed")

    assert spool.publish_report(report_id(queue_id), replace(ENVELOPE, reverse_path=""), b"whole")
    (own,) = taken(spool)
    assert spool.load(own).content == b"whole"


def test_listeners_in_two_processes_fill_one_spool(tmp_path: Path) -> None:
    program = (
        "import sys; from relay.clock import SystemClock; from relay.mail.envelope import Envelope;"
        "from relay.spool.disk.durable import RealDisk;"
        "from relay.spool.maildir.intake import MaildirIntake;"
        "from relay.spool.maildir.layout import prepare;"
        "disk = RealDisk(); prepare(sys.argv[1], disk);"
        "intake = MaildirIntake(sys.argv[1], disk, SystemClock())\n"
        "for number in range(40):\n"
        "    draft = intake.draft(); draft.append(b'%d' % number)\n"
        "    assert intake.accept([(draft, Envelope('', ('r@example.com',), 1, '', '', ''))]) == [None]\n"
        "    print(draft.queue_id, flush=True)\n"
    )
    engine = on_the_kernel(tmp_path)
    command = [sys.executable, "-c", program, engine.root]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as second,
    ):
        spool = engine.start()
        found = [entry.queue_id for entry in recover(spool).entries]
        while first.poll() is None or second.poll() is None:
            found += taken(spool, 3)
        found += taken(spool)
        said = [*first.stdout, *second.stdout] if first.stdout and second.stdout else []

    assert len(said) == 80
    assert sorted(found) == sorted(line.strip() for line in said)
    assert spool.corrupt_count() == 0


def test_nobody_finds_the_spool_taken_before_he_can_read_by_whom() -> None:
    """Who starts at the same instant has to wait; on the model, which cannot wait, that is an error."""
    engine = on_the_model()
    assert isinstance(engine.disk, ModelDisk)
    recovered(engine).close()
    view, other = engine.disk.another(), engine.disk.another()
    met = []

    def meanwhile(step: str) -> None:
        if step.endswith("/lock"):
            view.before = None
            with pytest.raises(OSError, match="deadlock") as error:
                MaildirEngine(engine.root, other).start()
            met.append(error.value.errno)

    view.before = meanwhile
    engine.disk.another = lambda: view  # type: ignore[method-assign]  # the one that is watched
    engine.start()
    assert met == [errno.EDEADLK]


def test_no_call_leaves_a_descriptor_open() -> None:
    """But the lock and the ledger, for as long as the spool is held."""
    engine = on_the_model()
    assert isinstance(engine.disk, ModelDisk)
    view = engine.disk.another()
    engine.disk.another = lambda: view  # type: ignore[method-assign]  # every process uses this one
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


def test_a_report_made_anew_is_not_taken_for_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the account forgot the first one, its id may come back, with another file."""
    monkeypatch.setattr(ledger_file, "LINES_BEFORE_REWRITE", 0)
    engine = on_the_model()
    spool = recovered(engine)
    about = accept(engine.intake())
    own = report_id(about)
    taken(spool, 1)
    # As long as its message is here, its report is remembered.
    spool.mark({about: dict.fromkeys(range(3), RELAYED)})
    spool.finish([about])
    for content in (CONTENT, CONTENT + CONTENT):
        assert spool.publish_report(own, ENVELOPE, content)
        assert taken(spool) == [own]
        spool.mark({own: {0: RELAYED}})
        assert spool.load(own).content == content
        spool.mark({own: dict.fromkeys((1, 2), RELAYED)})
        spool.finish([own])


def test_a_draft_of_another_engine_is_refused() -> None:
    class Another:
        queue_id = QueueId("0" * 16)
        buffered_bytes = 0

        def append(self, chunk: bytes) -> None:
            """Keep nothing."""

    intake = on_the_model().intake()
    for call in (intake.spill, intake.discard, intake.is_on_disk):
        with pytest.raises(TypeError, match="another spool"):
            call(Another())


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOMEM])
def test_a_start_goes_on_once_descriptors_are_there(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    monkeypatch.setattr(recovery, "BATCH", 2)
    engine = on_the_model()
    spool = recovered(engine)
    queue_ids = [accept(engine.intake()) for _ in range(6)]
    taken(spool)
    spool.close()
    spool = engine.start()
    assert isinstance(spool, MaildirSpool)
    sender = spool._disk
    assert isinstance(sender, ModelDisk)
    walk = spool.recover()
    met = next(walk)
    sender.fail(Fault(1, error, kinds=frozenset({"open", "open_update"}), forever=True))
    assert next(walk) == next(walk) == []
    sender.heal()
    for batch in walk:
        met += batch
    assert [entry.queue_id for entry in met] == sorted(queue_ids)


def test_a_start_whose_disk_fails_at_its_end_says_so() -> None:
    engine = on_the_model()
    spool = recovered(engine)
    accept(engine.intake())
    taken(spool)
    spool.close()
    spool = engine.start()
    assert isinstance(spool, MaildirSpool)
    sender = spool._disk
    assert isinstance(sender, ModelDisk)
    walk = spool.recover()
    next(walk)
    sender.fail(Fault(1, errno.EIO, kinds=frozenset({"names"}), forever=True))
    with pytest.raises(OSError, match="Input/output"):
        next(walk)


@pytest.mark.parametrize("kind", ["names", "sync_directory"])
def test_a_start_ends_once_descriptors_are_there(kind: str) -> None:
    engine = on_the_model()
    spool = recovered(engine)
    ended, aside, queue_id = [accept(engine.intake()) for _ in range(3)]
    taken(spool)
    spool.mark({ended: dict.fromkeys(range(3), RELAYED)})
    spool.finish([ended])
    engine.damage(aside)
    with pytest.raises(Corrupt):
        spool.load(aside)
    spool.close()
    engine.disk.unlink(f"{engine.layout.folder('corrupt')}/{aside}")

    spool = engine.start()
    assert isinstance(spool, MaildirSpool)
    sender = spool._disk
    assert isinstance(sender, ModelDisk)
    walk = spool.recover()
    assert [entry.queue_id for entry in next(walk)] == [queue_id]
    sender.fail(Fault(1, errno.EMFILE, kinds=frozenset({kind}), forever=True))
    if kind == "names":
        assert next(walk) == next(walk) == []
        sender.heal()
    recovery = read_on(walk)
    assert (recovery.entries, recovery.removed_recipients, recovery.missing_recipients) == ((), 3, 0)
    assert is_balanced(spool.totals())
