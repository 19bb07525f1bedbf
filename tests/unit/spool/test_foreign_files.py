"""Torn, foreign and misplaced files: set aside and counted, never sent, never deleted, never fatal."""

import errno
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import opened
from relay.spool.interface import Absent, Corrupt, Status, Totals
from relay.spool.message.message_file import HEADER_BYTES, encode_envelope, encode_header, shape_of
from tests.fakes.disk import Fault, ModelDisk
from tests.unit.spool.engine import CONTENT, ENVELOPE, accept, again, note, recovered, taken
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_kernel, on_the_model
from tests.unit.spool.recovering import recover

FOREIGN_ID = QueueId("foreign000000000")
RELAYED = Status.RELAYED


@pytest.fixture(params=["kernel", "model"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> MaildirEngine:
    return on_the_kernel(tmp_path) if request.param == "kernel" else on_the_model()


def one_message() -> bytes:
    """Return the bytes of a message file of another spool."""
    other = on_the_model()
    queue_id = accept(other.intake())
    return other.content_of(other.layout.accepted(queue_id))


def calling_itself(name: str) -> bytes:
    """Return the bytes of a message file that is whole and right, of an id that we do not give."""
    tail, shape = encode_envelope(QueueId(name), ENVELOPE), shape_of(ENVELOPE, 0, eight_bit=False)
    return encode_header(0, tail, len(ENVELOPE.recipients), shape, 0) + tail


def elsewhere(engine: MaildirEngine, queue_id: QueueId) -> str:
    """Return a part of the queue that a message does not belong to."""
    folders = engine.layout.queued_folders()
    return next(folder for folder in folders if folder != engine.layout.queued_folder(queue_id))


# What may lie about in a folder of messages: its name, what it is, and what is in it.
FOREIGN: dict[str, tuple[str, str, Callable[[bytes], bytes]]] = {
    "an empty file": (FOREIGN_ID, "file", lambda _whole: b""),
    "a truncated file": (FOREIGN_ID, "file", lambda whole: whole[:-1]),
    "a header without the rest": (FOREIGN_ID, "file", lambda whole: whole[:HEADER_BYTES]),
    "a file with something behind it": (FOREIGN_ID, "file", lambda whole: whole + b"\n"),
    "zeros": (FOREIGN_ID, "file", lambda whole: bytes(len(whole))),
    "a plain message": (FOREIGN_ID, "file", lambda _whole: b"Subject: hello\r\n\r\nWorld\r\n"),
    "the file of another message": (FOREIGN_ID, "file", lambda whole: whole),
    "a name that is no id": ("README.txt", "file", lambda whole: whole),
    "a message of a name that is no id": ("README.txt", "file", lambda _whole: calling_itself("README.txt")),
    "an id in capitals": (FOREIGN_ID.upper(), "file", lambda whole: whole),
    "a name that is too long": ("a" * 250, "file", lambda _whole: b"x"),
    "a name that is no text": ("\udcff\n\x1b[31m", "file", lambda _whole: b"x"),
    "a hidden file": (".nfs0000001", "file", lambda _whole: b"x"),
    "a folder": (FOREIGN_ID, "folder", lambda _whole: b""),
    "a FIFO": (FOREIGN_ID, "fifo", lambda _whole: b""),
    "a symlink": (FOREIGN_ID, "symlink", lambda _whole: b""),
}


@pytest.mark.parametrize("where", ["new", "cur", "hold"])
@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_no_message_is_set_aside_and_the_rest_goes_on(
    engine: MaildirEngine, what: str, where: str
) -> None:
    name, kind, content = FOREIGN[what]
    spool, intake = recovered(engine), engine.intake()
    queue_id = accept(intake)
    taken(spool)
    accept(intake)
    spool.close()
    folder = "cur/00" if where == "cur" else where
    engine.plant(f"{engine.root}/{folder}/{name}", content(one_message()), kind=kind)

    spool = engine.start()
    recovery = recover(spool)
    assert recovery.corrupt == spool.corrupt_count() == 1
    assert len(recovery.entries) == 2
    assert recovery.missing_recipients == 0
    assert engine.names("corrupt") == [name]
    ((told, _),) = engine.told
    assert told.isprintable()
    assert told.isascii()
    spool.mark({queue_id: {0: RELAYED}})
    again(engine, spool).close()
    assert engine.names("corrupt") == [name]
    assert len(engine.told) == 1


@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_no_message_is_set_aside_while_mail_is_taken(engine: MaildirEngine, what: str) -> None:
    name, kind, content = FOREIGN[what]
    spool = recovered(engine)
    engine.plant(f"{engine.root}/new/{name}", content(one_message()), kind=kind)
    queue_id = accept(engine.intake())

    assert taken(spool) == [queue_id]
    assert engine.names("corrupt") == [name]
    assert spool.corrupt_count() == len(engine.told) == 1


def test_what_is_set_aside_replaces_nothing_in_corrupt(engine: MaildirEngine) -> None:
    for number in range(3):
        spool = recovered(engine)
        engine.plant(f"{engine.root}/new/{FOREIGN_ID}", b"%d" % number)
        assert taken(spool) == []
        spool.close()
    names = [FOREIGN_ID, f"{FOREIGN_ID}.1", f"{FOREIGN_ID}.2"]

    assert engine.names("corrupt") == names
    assert [engine.content_of(f"{engine.root}/corrupt/{name}") for name in names] == [b"0", b"1", b"2"]


def test_what_is_no_draft_and_no_note_is_set_aside(engine: MaildirEngine) -> None:
    recovered(engine).close()
    planted = [("notes.txt", "file"), ("foreign000000000", "folder"), ("foreign000000001", "symlink")]
    planted += [("foreign000000002", "fifo"), ("foreign000000003", "file")]
    for name, kind in planted:
        engine.plant(f"{engine.root}/tmp/{name}", b"mine", kind=kind)
        engine.plant(f"{engine.root}/bounce/{name}", b"mine", kind=kind)

    recovered(engine).close()
    assert (engine.names("tmp"), engine.names("bounce")) == ([], [])
    assert engine.names("corrupt") == sorted(
        f"{folder}-{name}" for folder in ("tmp", "bounce") for name, _ in planted
    )


@pytest.mark.parametrize("where", ["new", "cur", "hold"])
def test_a_copy_of_a_queued_message_is_set_aside(engine: MaildirEngine, where: str) -> None:
    """As when somebody restores a backup into a spool that is in use."""
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.mark({queue_id: {0: RELAYED}})
    copied = engine.content_of(engine.layout.queued(queue_id))
    spool.close()
    folder = elsewhere(engine, queue_id) if where == "cur" else f"{engine.root}/{where}"
    engine.plant(f"{folder}/{queue_id}", copied.replace(b"Dalice", b"Talice"))

    spool = engine.start()
    recovery = recover(spool)
    assert recovery.corrupt == 1
    assert [entry.queue_id for entry in recovery.entries] == [queue_id]
    # A copy in hold/ is found first and believed: what an operator put there is not sent.
    assert spool.load(queue_id).left == ((0, 1, 2) if where == "hold" else (1, 2))


def test_a_copy_in_new_is_set_aside_while_its_message_is_queued(engine: MaildirEngine) -> None:
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    engine.plant(engine.layout.accepted(queue_id), engine.content_of(engine.layout.queued(queue_id)))
    assert taken(spool) == []
    spool.hold(queue_id)
    engine.plant(engine.layout.accepted(queue_id), engine.content_of(engine.layout.held(queue_id)))
    assert taken(spool) == []

    assert spool.corrupt_count() == 2
    assert spool.load(queue_id).left == (0, 1, 2)


def test_a_message_in_another_part_of_the_queue_is_brought_home(engine: MaildirEngine) -> None:
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.close()
    engine.disk.rename(engine.layout.queued(queue_id), f"{elsewhere(engine, queue_id)}/{queue_id}")

    assert recovered(engine).load(queue_id).content == CONTENT


def test_an_operator_may_bring_a_message_back_through_new(engine: MaildirEngine) -> None:
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool = again(engine, spool)
    engine.damage(queue_id)
    with pytest.raises(Corrupt):
        spool.load(queue_id)
    path = f"{engine.root}/corrupt/{queue_id}"
    with opened(engine.disk, engine.disk.open_update(path)) as fd:
        middle = HEADER_BYTES + (engine.disk.size(fd) - HEADER_BYTES) // 2
        engine.disk.write_at(fd, bytes([engine.disk.pread(fd, 1, middle)[0] ^ 1]), middle)
    spool.close()
    engine.disk.rename(path, engine.layout.accepted(queue_id))

    spool = recovered(engine)
    assert spool.load(queue_id).content == CONTENT
    assert spool.totals() == Totals(accepted=3, queued=3)


def test_a_message_of_another_spool_may_be_moved_to_new(
    engine: MaildirEngine,
) -> None:
    spool = recovered(engine)
    other = on_the_model()
    moved, from_there = recovered(other), accept(other.intake())
    taken(moved)
    moved.mark({from_there: {1: RELAYED}})
    engine.plant(engine.layout.accepted(from_there), other.content_of(other.layout.queued(from_there)))

    (entry,) = spool.take(10)
    assert entry.recipients_left == 2
    assert spool.totals() == Totals(accepted=3, relayed=1, queued=2)
    spool.mark({from_there: {0: RELAYED, 2: RELAYED}})
    spool.finish([from_there])
    assert again(engine, spool).totals() == Totals(accepted=3, relayed=3)


def test_the_notes_of_a_corrupt_message_stay_with_it(engine: MaildirEngine) -> None:
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool = again(engine, spool)
    spool.note({queue_id: [note(0)]})
    engine.damage(queue_id)
    engine.plant(f"{engine.root}/corrupt/{queue_id}", b"of an earlier day")
    with pytest.raises(Corrupt):
        spool.load(queue_id)
    engine.disk.unlink(f"{engine.root}/corrupt/{queue_id}")
    assert engine.names("corrupt") == [f"{queue_id}.1"]

    spool = again(engine, spool)
    assert spool.notes(queue_id) == [note(0)]
    assert spool.totals() == Totals(accepted=3, queued=3)


def test_a_mark_never_hits_a_recipient_of_another_file(engine: MaildirEngine) -> None:
    spool, intake = recovered(engine), engine.intake()
    one, two, other = (accept(intake) for _ in range(3))
    longer = accept(intake, content=CONTENT + b"!")
    taken(spool)
    for queue_id, replacement, fault in ((one, longer, "length"), (two, other, "changed")):
        spool.load(queue_id)
        path = engine.layout.queued(queue_id)
        whole = engine.content_of(engine.layout.queued(replacement))
        if replacement == other:
            whole = whole.replace(b"alice@example.com", b"ALICE@example.com")
        engine.disk.unlink(path)
        engine.plant(path, whole)
        with pytest.raises(Corrupt, match=fault):
            spool.mark({queue_id: {0: RELAYED}})
        assert engine.content_of(f"{engine.root}/corrupt/{queue_id}") == whole


def test_a_message_that_somebody_removed_is_absent_and_missed(engine: MaildirEngine) -> None:
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.close()
    engine.disk.unlink(engine.layout.queued(queue_id))

    spool = engine.start()
    recovery = recover(spool)
    assert recovery.missing_recipients == 3
    with pytest.raises(Absent):
        spool.load(queue_id)


def test_no_queue_content_stops_a_start(engine: MaildirEngine) -> None:
    """Everything at once, everywhere."""
    recovered(engine).close()
    folders = ["tmp", "new", "hold", "bounce", "corrupt", "cur/00", "cur/63"]
    for (_, kind, content), folder in itertools.product(FOREIGN.values(), folders):
        number = len(engine.names(folder))
        path = f"{engine.root}/{folder}/foreign{number:09d}"
        engine.plant(path, content(one_message()), kind=kind)
    queue_id = accept(engine.intake())

    spool = engine.start()
    recovery = recover(spool)
    assert [entry.queue_id for entry in recovery.entries] == [queue_id]
    # What is empty or zero in tmp/ and bounce/ is what a crash leaves there of ours, and goes;
    # so does what has less behind its header than that says.
    of_ours = ["an empty file", "zeros"] * 2 + ["a truncated file", "a header without the rest"]
    assert recovery.corrupt == len(FOREIGN) * len(folders) - len(of_ours)
    assert spool.corrupt_count() == len(engine.names("corrupt"))


# On the model only: what root may do on the kernel, and what no root can.


def test_a_message_that_may_not_be_read_is_set_aside() -> None:
    engine = on_the_model()
    assert isinstance(engine.disk, ModelDisk)
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.close()
    view = engine.disk.another()
    view.unreadable.add(engine.layout.queued(queue_id))
    engine.disk.another = lambda: view  # type: ignore[method-assign]  # the one that may not read it

    spool = engine.start()
    assert recover(spool).corrupt == 1
    assert spool.corrupt_count() == 1


@pytest.mark.parametrize("is_running", [False, True])
def test_what_cannot_be_set_aside_is_told_and_left(*, is_running: bool) -> None:
    engine = on_the_model()
    assert isinstance(engine.disk, ModelDisk)
    view = engine.disk.another()
    engine.disk.another = lambda: view  # type: ignore[method-assign]  # the one whose calls fail
    spool = recovered(engine)
    engine.plant(f"{engine.root}/new/{FOREIGN_ID}", b"immutable")
    queue_id = accept(engine.intake())
    view.fail(Fault(1, errno.EPERM, kinds=frozenset({"rename"}), path=FOREIGN_ID, forever=True))

    assert (taken(spool) if is_running else [e.queue_id for e in recover(spool).entries]) == [queue_id]
    assert [name for name, _ in engine.told] == [FOREIGN_ID, FOREIGN_ID]
    assert "cannot be set aside" in engine.told[1][1]
    assert engine.names("new") == [FOREIGN_ID]


def test_a_lack_of_descriptors_is_not_a_fault_of_the_messages() -> None:
    engine = on_the_model()
    assert isinstance(engine.disk, ModelDisk)
    view = engine.disk.another()
    spool = recovered(engine)
    intake = engine.intake()
    queue_ids = [accept(intake) for _ in range(3)]
    spool.close()
    engine.disk.another = lambda: view  # type: ignore[method-assign]  # the one that lacks descriptors
    spool = recovered(engine)
    more = [accept(intake, ENVELOPE) for _ in range(3)]
    view.fail(Fault(2, errno.EMFILE, kinds=frozenset({"open"}), path="/new/", forever=True))
    assert taken(spool) == more[:1]
    view.fail(Fault(1, errno.EMFILE, kinds=frozenset({"open"}), path="/cur/", forever=True))
    with pytest.raises(OSError, match="Too many open files"):
        spool.load(queue_ids[0])
    view.heal()

    assert taken(spool) == more[1:]
    assert spool.load(queue_ids[0]).content == CONTENT
    assert spool.corrupt_count() == 0
