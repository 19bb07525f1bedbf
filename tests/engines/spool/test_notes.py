"""Notes: durable when they are written, and as many as a crash left when they are read."""

import errno
import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.mail.envelope import QueueId
from relay.spool.interface import Note
from relay.spool.maildir import notes_file
from relay.spool.maildir.layout import Layout
from relay.spool.message import notes
from tests.fakes.disk import Fault, ModelDisk

LAYOUT = Layout("/spool")
QUEUE_ID, OTHER = QueueId("0123456789abcdef"), QueueId("0123456789abcdeg")
PATH = LAYOUT.notes(QUEUE_ID)


def bare() -> ModelDisk:
    disk = ModelDisk()
    disk.make_directory(LAYOUT.folder("bounce"))
    return disk


def note(index: int, diagnostic: str | None = "550 no") -> Note:
    return Note(index, "5.1.1", "bounced", diagnostic, "smtp.example.net", 1_760_000_000_000_000_000)


written = st.builds(
    Note,
    index=st.integers(0, 5),
    status=st.text(max_size=9),
    reason=st.sampled_from(["bounced", "expired", "operator"]),
    diagnostic=st.none() | st.text(max_size=60),
    remote=st.none() | st.text(max_size=20),
    at_ns=st.integers(0, 2**63),
)


@given(st.lists(st.lists(written, min_size=1, max_size=4), max_size=4))
def test_the_last_word_on_each_recipient_is_read_back(batches: list[list[Note]]) -> None:
    disk, expected = bare(), dict[int, Note]()
    for batch in batches:
        notes_file.append(disk, LAYOUT, {QUEUE_ID: batch, OTHER: [note(9)]})
        expected.update({one.index: one for one in batch})

    assert notes_file.read(disk, LAYOUT, QUEUE_ID) == [expected[index] for index in sorted(expected)]


def told(index: int, text: str = "450 later", at_ns: int = 7) -> Note:
    return Note(index, "4.2.0", "deferred", text, "smtp.example.net", at_ns)


def test_the_last_reply_of_each_deferred_recipient_is_kept_and_counted() -> None:
    disk = bare()
    for attempt in range(3):
        notes_file.keep(disk, LAYOUT, QUEUE_ID, [told(0, f"450 {attempt}"), told(1, "452 Mailbox full")], 3)
    notes_file.append(disk, LAYOUT, {QUEUE_ID: [note(0), Note(2, "5.7.1", "operator", "away", None, 9)]})

    found = notes_file.read(disk, LAYOUT, QUEUE_ID)
    assert [(one.index, one.reason, one.diagnostic, one.attempts) for one in found] == [
        (0, "bounced", "550 no", 4),
        (1, "deferred", "452 Mailbox full", 3),
        (2, "operator", "away", 0),
    ]


def test_replies_are_bounded_and_reasons_stay() -> None:
    disk, most = bare(), notes_file.MOST_BYTES + 2 * notes_file.MOST_BYTES_EACH
    notes_file.append(disk, LAYOUT, {QUEUE_ID: [note(1)]})
    for attempt in range(400):
        notes_file.keep(disk, LAYOUT, QUEUE_ID, [told(0, "450 " + "x" * 5000, attempt)], 2)
        assert len(disk.peek(PATH)) <= most
    failed = Note(0, "5.4.7", "expired", "450 x", None, 9)
    notes_file.append(disk, LAYOUT, {QUEUE_ID: [failed]})

    assert notes_file.read(disk, LAYOUT, QUEUE_ID) == [failed, note(1)]
    assert notes_file.read(disk, LAYOUT, QUEUE_ID)[0].attempts == 401
    assert max(map(len, disk.peek(PATH).split(b"\n"))) < 2 * notes.LONGEST_REPLY


def test_no_crash_of_a_shortening_loses_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes_file, "MOST_BYTES", 0)
    disk = bare()
    notes_file.append(disk, LAYOUT, {QUEUE_ID: [note(1)]})
    seen: list[ModelDisk] = []
    disk.before = lambda _step: seen.append(ModelDisk(disk.platter.copy()))
    notes_file.keep(disk, LAYOUT, QUEUE_ID, [told(0)], 0)
    disk.before = None

    images = [image for instant in seen for image in (*instant.prefixes(), instant.after_kill())]
    assert len(images) > 10
    assert all(note(1) in notes_file.read(image, LAYOUT, QUEUE_ID) for image in images)
    for image in images:
        # What it left of its draft is in nobody's way.
        notes_file.keep(image, LAYOUT, QUEUE_ID, [told(0)], 0)
        assert notes_file.read(image, LAYOUT, QUEUE_ID) == [told(0), note(1)]


def test_notes_are_durable_where_only_the_name_was_not() -> None:
    disk = bare()
    disk.fail(Fault(1, errno.EIO, kinds=frozenset({"sync_directory"})))
    with pytest.raises(OSError, match="Input/output"):
        notes_file.append(disk, LAYOUT, {QUEUE_ID: [note(0)]})
    # Killed here: the next sender sees the file, and no disk has its name.
    after = disk.after_kill()
    notes_file.append(after, LAYOUT, {QUEUE_ID: [note(1)]})

    for image in after.prefixes():
        assert notes_file.read(image, LAYOUT, QUEUE_ID) == [note(0), note(1)]


def test_every_torn_end_loses_only_what_was_not_durable() -> None:
    disk = bare()
    notes_file.append(disk, LAYOUT, {QUEUE_ID: [note(0), note(1, "x" * 600)]})
    whole = disk.peek(PATH)
    notes_file.append(disk, LAYOUT, {QUEUE_ID: [note(2)]})
    longer = disk.peek(PATH)
    for length, filler in itertools.product(range(len(whole), len(longer)), (b"", b"\0" * 40)):
        disk.poke(PATH, longer[:length] + filler)
        found = notes_file.read(disk, LAYOUT, QUEUE_ID)
        assert found[:2] == [note(0), note(1, "x" * 600)]
        notes_file.append(disk, LAYOUT, {QUEUE_ID: [note(3)]})
        assert note(3) in notes_file.read(disk, LAYOUT, QUEUE_ID)


@given(st.binary(max_size=200))
@example(b'{"index":"0"}')
@example(b"[" * 100_000)
def test_damage_costs_notes_and_nothing_else(junk: bytes) -> None:
    disk = bare()
    notes_file.append(disk, LAYOUT, {QUEUE_ID: [note(0)]})
    disk.poke(PATH, junk + b"\n" + disk.peek(PATH))

    assert notes_file.read(disk, LAYOUT, QUEUE_ID)[-1] == note(0)


def test_unreadable_notes_hold_up_no_report_our_own_lack_does() -> None:
    disk = bare()
    notes_file.append(disk, LAYOUT, {QUEUE_ID: [note(0)]})
    assert notes_file.read(disk, LAYOUT, OTHER) == []
    disk.fail(Fault(1, errno.EIO, kinds=frozenset({"read"}), forever=True))
    assert notes_file.read(disk, LAYOUT, QUEUE_ID) == []
    disk.fail(Fault(1, errno.EMFILE, kinds=frozenset({"open"})))
    with pytest.raises(OSError, match="Too many open files"):
        notes_file.read(disk, LAYOUT, QUEUE_ID)
