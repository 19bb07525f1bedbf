"""What a start removes is what we wrote, as far as a crash lets anybody tell; all else is set aside."""

from collections.abc import Callable

import pytest

from relay.mail.envelope import QueueId
from relay.spool.maildir.layout import Layout
from relay.spool.maildir.ledger_file import LedgerFile
from relay.spool.maildir.notes_file import append
from relay.spool.message.message_file import HEADER_BYTES
from relay.spool.root.headroom import RESERVE_BYTES
from tests.fakes.disk import ModelDisk
from tests.unit.spool.engine import CONTENT, ENVELOPE, accept, again, note, recovered, taken
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_model

SECTOR_BYTES = 512
SOME_ID, OTHER_ID = QueueId("0123456789abcdef"), QueueId("fedcba9876543210")


@pytest.fixture
def engine() -> MaildirEngine:
    made = on_the_model()
    recovered(made).close()
    return made


def put(engine: MaildirEngine, path: str, content: bytes) -> None:
    """Let a file hold this, whether or not there is one."""
    assert isinstance(engine.disk, ModelDisk)
    if engine.disk.inode(path) is None:
        engine.plant(path, content)
    else:
        engine.disk.poke(path, content)


def a_draft() -> bytes:
    """Return the file of a long message under `SOME_ID`, from a spool of its own."""
    other = on_the_model()
    intake = other.intake()
    draft = intake.draft()
    draft.queue_id = SOME_ID
    draft.append(CONTENT * 41)
    assert intake.accept([(draft, ENVELOPE)]) == [None]
    whole = other.content_of(other.layout.accepted(SOME_ID))
    assert len(whole) > 3 * SECTOR_BYTES
    return whole


def notes_of(number: int) -> bytes:
    """Return what so many notes about a message look like."""
    disk, layout = ModelDisk(), Layout("/s")
    disk.make_directory(layout.folder("bounce"))
    for index in range(number):
        append(disk, layout, {SOME_ID: [note(index)]})
    return disk.peek(layout.notes(SOME_ID))


def without(content: bytes, start: int, end: int) -> bytes:
    """Return content of which some octets never reached the disk."""
    return content[:start] + bytes(len(content[start:end])) + content[end:]


# The reserve.

NOT_OUR_RESERVE = {
    "a text": b"my reserve of recipes\n",
    "a text of its length": b"recipe\n".ljust(RESERVE_BYTES, b"."),
    "more than it": b"\0" * (RESERVE_BYTES + 1),
}


@pytest.mark.parametrize("what", NOT_OUR_RESERVE)
def test_no_file_of_others_goes_for_the_reserve(engine: MaildirEngine, what: str) -> None:
    content = NOT_OUR_RESERVE[what]
    put(engine, engine.layout.file("reserve"), content)

    spool = recovered(engine)
    assert engine.content_of(f"{engine.root}/corrupt/reserve") == content
    assert [name for name, _ in engine.told] == ["reserve"]
    assert spool.corrupt_count() == 1
    assert taken(spool) == []
    assert engine.disk.length(engine.layout.file("reserve")) == RESERVE_BYTES


@pytest.mark.parametrize("kind", ["folder", "fifo", "symlink"])
def test_what_is_no_file_keeps_no_reserve_from_being_made(engine: MaildirEngine, kind: str) -> None:
    engine.disk.unlink(engine.layout.file("reserve"))
    engine.plant(engine.layout.file("reserve"), kind=kind)

    spool = recovered(engine)
    assert engine.names("corrupt") == ["reserve"]
    assert spool.corrupt_count() == len(engine.told) == 1
    assert taken(spool) == []
    assert engine.disk.length(engine.layout.file("reserve")) == RESERVE_BYTES


@pytest.mark.parametrize(
    "torn",
    [
        lambda _whole: b"",
        lambda whole: whole[:1],
        lambda whole: whole[:-1],
        lambda whole: bytes(len(whole)),
        lambda whole: without(whole, SECTOR_BYTES, 9 * SECTOR_BYTES)[:-700],
        lambda whole: without(whole, 0, 4096),
    ],
)
def test_what_a_crash_leaves_of_the_reserve_is_ours(
    engine: MaildirEngine, torn: Callable[[bytes], bytes]
) -> None:
    path = engine.layout.file("reserve")
    whole = engine.content_of(path)
    put(engine, path, torn(whole))

    recovered(engine)
    assert (engine.names("corrupt"), engine.told) == ([], [])
    assert engine.disk.length(path) == RESERVE_BYTES


@pytest.mark.parametrize("what", NOT_OUR_RESERVE)
def test_a_full_disk_takes_no_file_of_others_for_the_reserve(engine: MaildirEngine, what: str) -> None:
    spool = recovered(engine)
    path, content = engine.layout.file("reserve"), NOT_OUR_RESERVE[what]
    put(engine, path, content)

    assert not spool.make_room()
    assert taken(spool) == []
    assert engine.content_of(path) == content
    again(engine, spool)
    assert engine.content_of(f"{engine.root}/corrupt/reserve") == content


# The draft of the ledger.


@pytest.mark.parametrize("content", [b"my accounts\n", b"\0" * 16 + b"mine", b"totalitarian"])
def test_no_file_of_others_goes_for_the_draft_of_a_ledger(engine: MaildirEngine, content: bytes) -> None:
    engine.plant(f"{engine.root}/ledger.new", content)

    spool = recovered(engine)
    assert engine.content_of(f"{engine.root}/corrupt/ledger.new") == content
    assert [name for name, _ in engine.told] == ["ledger.new"]
    assert spool.corrupt_count() == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"tot", b"total 1 0 0 0 0 0000", bytes(700), bytes(512) + b"0 0 1\nin", b"total" + bytes(507)],
)
def test_what_a_crash_leaves_of_a_draft_of_the_ledger_is_removed(
    engine: MaildirEngine, content: bytes
) -> None:
    engine.plant(f"{engine.root}/ledger.new", content)

    recovered(engine)
    assert (engine.names("corrupt"), engine.told) == ([], [])
    assert engine.disk.inode(f"{engine.root}/ledger.new") is None


def test_a_rewrite_of_the_ledger_sets_aside_what_is_in_its_way(engine: MaildirEngine) -> None:
    disk = engine.disk
    assert isinstance(disk, ModelDisk)
    ledger = LedgerFile(engine.layout, disk)
    ledger.read()
    for kind in ("file", "folder", "fifo", "symlink"):
        engine.plant(f"{engine.root}/ledger.new", b"mine", kind=kind)
        ledger.rewrite()

    assert engine.content_of(f"{engine.root}/corrupt/ledger.new") == b"mine"
    assert engine.names("corrupt") == ["ledger.new", "ledger.new.1", "ledger.new.2", "ledger.new.3"]


# Drafts.

TORN_DRAFTS: dict[str, Callable[[bytes], bytes]] = {
    "nothing but its header": lambda whole: whole[:HEADER_BYTES],
    "half of a header": lambda whole: whole[:40],
    "its end cut": lambda whole: whole[:-1],
    "no header yet": lambda whole: without(whole, 0, HEADER_BYTES),
    "its first sector lost": lambda whole: without(whole, 0, SECTOR_BYTES),
    "content lost behind its header": lambda whole: without(whole, HEADER_BYTES, SECTOR_BYTES),
    "a sector of its content lost": lambda whole: without(whole, SECTOR_BYTES, 2 * SECTOR_BYTES),
    "its last sector lost": lambda whole: without(whole, len(whole) - 40, len(whole)),
    "the end of a sector lost": lambda whole: without(whole, 2 * SECTOR_BYTES - 20, 2 * SECTOR_BYTES),
    "its last octets lost": lambda whole: without(whole, len(whole) - 3, len(whole)),
    "all of it": lambda whole: whole,
}


@pytest.mark.parametrize("what", TORN_DRAFTS)
def test_what_a_crash_leaves_of_a_draft_is_removed(engine: MaildirEngine, what: str) -> None:
    engine.plant(engine.layout.draft(SOME_ID), TORN_DRAFTS[what](a_draft()))

    recovered(engine)
    assert (engine.names("tmp"), engine.names("corrupt"), engine.told) == ([], [], [])


NO_DRAFTS: dict[str, tuple[QueueId, Callable[[bytes], bytes]]] = {
    "a whole message under another id": (OTHER_ID, lambda whole: whole),
    "a damaged message": (SOME_ID, lambda whole: whole.replace(CONTENT[:4], CONTENT[:4].swapcase(), 1)),
    "a damaged message under another id": (
        OTHER_ID,
        lambda whole: whole.replace(CONTENT[:4], CONTENT[:4].swapcase(), 1),
    ),
    "a damaged envelope": (SOME_ID, lambda whole: whole[:-2] + b"?\n"),
    "a damaged header": (SOME_ID, lambda whole: whole[:20] + b"?" + whole[21:]),
    "a message with something behind it": (SOME_ID, lambda whole: whole + b"\0"),
    "zeros and a text": (SOME_ID, lambda _whole: bytes(16) + b"mine"),
    "many zeros and a text": (SOME_ID, lambda _whole: bytes(HEADER_BYTES - 1) + b"mine"),
    "our first word and a text": (SOME_ID, lambda _whole: b"relay-message 1 is how it begins"),
}


@pytest.mark.parametrize("what", NO_DRAFTS)
def test_what_is_no_draft_that_a_crash_cut_off_is_set_aside(engine: MaildirEngine, what: str) -> None:
    queue_id, change = NO_DRAFTS[what]
    content = change(a_draft())
    engine.plant(engine.layout.draft(queue_id), content)

    spool = recovered(engine)
    assert engine.content_of(f"{engine.root}/corrupt/tmp-{queue_id}") == content
    assert [name for name, _ in engine.told] == [queue_id]
    assert spool.corrupt_count() == 1


# Notes about a message that is gone.

TORN_NOTES: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _whole: b"",
    "all of them": lambda whole: whole,
    "half of the first": lambda whole: whole[:5],
    "the last cut": lambda whole: whole[:-9],
    "one cut, and others behind it": lambda whole: whole[:30] + b"\n" + whole,
    "the first append lost": lambda whole: without(whole, 0, whole.index(b"\n") + 1),
    "the first sector lost": lambda whole: without(whole, 0, SECTOR_BYTES),
    "a sector lost": lambda whole: without(whole, SECTOR_BYTES, 2 * SECTOR_BYTES),
    "the end lost": lambda whole: without(whole, SECTOR_BYTES, len(whole)),
    "all lost": lambda whole: bytes(len(whole)),
}


@pytest.mark.parametrize("what", TORN_NOTES)
def test_what_a_crash_leaves_of_notes_goes_after_their_message(engine: MaildirEngine, what: str) -> None:
    whole = notes_of(20)
    assert len(whole) > 3 * SECTOR_BYTES
    engine.plant(engine.layout.notes(SOME_ID), TORN_NOTES[what](whole))

    recovered(engine)
    assert (engine.names("bounce"), engine.names("corrupt"), engine.told) == ([], [], [])


NO_NOTES: dict[str, Callable[[bytes], bytes]] = {
    "zeros and a text": lambda _whole: bytes(64) + b"mine\n",
    "more zeros and a text": lambda _whole: bytes(500) + b"mine\n",
    "a sector of zeros and a text": lambda _whole: bytes(SECTOR_BYTES) + b"mine,\nall mine\n",
    "a line that is none": lambda whole: whole + b"buy milk\n",
    "a line that is none, before others": lambda whole: b"buy milk\n" + whole,
    "newlines and a text": lambda _whole: b"\n" * 100 + b"buy milk\n",
}


@pytest.mark.parametrize("what", NO_NOTES)
def test_what_holds_a_line_that_is_no_note_is_never_removed(engine: MaildirEngine, what: str) -> None:
    content = NO_NOTES[what](notes_of(20))
    engine.plant(engine.layout.notes(SOME_ID), content)

    spool = recovered(engine)
    assert engine.names("bounce") == []
    assert engine.content_of(f"{engine.root}/corrupt/bounce-{SOME_ID}") == content
    assert [name for name, _ in engine.told] == [SOME_ID]
    assert spool.corrupt_count() == 1


def test_a_damaged_note_costs_none_of_the_other_reasons(engine: MaildirEngine) -> None:
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.note({queue_id: [note(0)]})
    spool.note({queue_id: [note(1)]})
    path = engine.layout.notes(queue_id)
    put(engine, path, engine.content_of(path) + b"buy milk\n")

    spool = again(engine, spool)
    assert spool.notes(queue_id) == [note(0), note(1)]
    assert engine.names("corrupt") == []
