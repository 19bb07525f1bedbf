"""Every bit flipped, every length cut, splices and zero pages: nothing damaged is sent, deleted or fatal.

Many messages, each damaged in its own way, lie in one spool, so that one start meets them
all.  What a flipped bit can do unseen is named in `test_the_one_damage_that_nothing_tells`.
"""

from collections.abc import Callable, Iterator

import pytest

from relay.mail.envelope import QueueId
from relay.sender.reports import Reporter
from relay.spool.identity import report_id
from relay.spool.interface import Corrupt, OwedReport, Status, Totals
from relay.spool.maildir import notes_file
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.message import files, message_file
from tests.fakes.disk import ModelDisk
from tests.unit.spool.engine import BOUNCED, CONTENT, ENVELOPE, accept, again, note, recovered, taken
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_model
from tests.unit.spool.recovering import Recovered, recover

PLACES = ("new", "cur", "hold")


def whole_file() -> tuple[QueueId, bytes]:
    """Return a message file that a sender has marked a little."""
    engine = on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.mark({queue_id: {1: Status.RELAYED}})
    return queue_id, engine.content_of(engine.layout.queued(queue_id))


def status_offsets(whole: bytes) -> list[int]:
    """Return where the bytes are that may change: statuses, and whether the sender was warned."""
    lines = [whole.index(address.encode()) - 1 for address in ENVELOPE.recipients]
    return [*lines, message_file.WARNED_OFFSET]


def why_corrupt(queue_id: QueueId, content: bytes) -> str | None:
    """Return what reading all of a file says of it."""
    disk = ModelDisk()
    disk.plant("/file", content)
    try:
        assert b"".join(files.stream(disk, "/file", queue_id)) == CONTENT
        opened_file = files.read(disk, "/file", queue_id, with_content=True)
    except Corrupt as fault:
        return str(fault)
    assert opened_file.content == CONTENT
    assert opened_file.envelope == ENVELOPE
    return None


def flips(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each copy with one bit changed, and where."""
    for offset in range(len(content)):
        for bit in range(8):
            changed = bytes([content[offset] ^ 1 << bit])
            yield offset, content[:offset] + changed + content[offset + 1 :]


def test_each_flipped_bit_of_a_message_is_seen_but_in_a_status() -> None:
    queue_id, whole = whole_file()
    assert why_corrupt(queue_id, whole) is None
    unseen = {offset for offset, content in flips(whole) if why_corrupt(queue_id, content) is None}

    assert unseen <= set(status_offsets(whole))


def test_the_one_damage_that_nothing_tells() -> None:
    """A status byte has no checksum, since it is written in place: one bit makes a letter of another."""
    queue_id, whole = whole_file()
    letters = {status.value[0] for status in Status}
    for offset in status_offsets(whole)[:-1]:
        for bit in range(8):
            changed = whole[offset] ^ 1 << bit
            content = whole[:offset] + bytes([changed]) + whole[offset + 1 :]
            assert (why_corrupt(queue_id, content) is None) == (changed in letters)


def test_each_truncation_and_extension_of_a_message_is_seen() -> None:
    queue_id, whole = whole_file()
    for length in range(len(whole)):
        assert why_corrupt(queue_id, whole[:length]) is not None
        assert why_corrupt(queue_id, whole[:length] + bytes(len(whole) - length)) is not None
    assert why_corrupt(queue_id, whole + b"\n") is not None
    assert why_corrupt(queue_id, whole + whole) is not None


def test_each_splice_of_two_message_files_is_seen() -> None:
    queue_id, whole = whole_file()
    engine = on_the_model()
    accept(engine.intake(), content=CONTENT)
    other_id = accept(engine.intake(), content=CONTENT.swapcase())
    other = engine.content_of(engine.layout.accepted(other_id))
    assert len(other) == len(whole)
    for cut in range(1, len(whole)):
        for spliced in (whole[:cut] + other[cut:], other[:cut] + whole[cut:]):
            # Where the files are equal but for the statuses, a splice is one of the two.
            assert (
                spliced in (whole, other) or why_corrupt(queue_id, spliced) is not None or _is(spliced, whole)
            )


def _is(content: bytes, whole: bytes) -> bool:
    """Return whether two files are equal but for their statuses."""
    places = status_offsets(whole)
    return all(a == b for i, (a, b) in enumerate(zip(content, whole, strict=True)) if i not in places)


DAMAGE: dict[str, Callable[[bytes, int], bytes]] = {
    "a flipped bit": lambda whole, n: whole[:n] + bytes([whole[n] ^ 0x80]) + whole[n + 1 :],
    "a truncation": lambda whole, n: whole[:n],
    "a zero page": lambda whole, n: whole[: n & ~63] + bytes(64) + whole[(n & ~63) + 64 :],
    "a page of another": lambda whole, n: whole[:n] + whole[n:][::-1],
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_start_keeps_every_file_damaged_at_any_byte(what: str) -> None:
    engine = on_the_model()
    spool, intake = recovered(engine), engine.intake()
    length = len(whole_file()[1])
    queue_ids = [accept(intake) for _ in range(length)]
    taken(spool, length)
    spool.close()
    damaged: dict[QueueId, bytes] = {}
    for n, queue_id in enumerate(queue_ids):
        home = engine.layout.queued(queue_id)
        whole = engine.content_of(home)
        if (content := DAMAGE[what](whole, n)) == whole:
            continue
        damaged[queue_id] = content
        engine.disk.unlink(home)
        place = PLACES[n % 3]
        engine.plant(home if place == "cur" else f"{engine.root}/{place}/{queue_id}", content)

    spool = engine.start()
    recovery = recover(spool)
    queued = {entry.queue_id for entry in recovery.entries}
    loaded = {queue_id for queue_id in queued if _can_be_loaded(spool, queue_id)}
    assert loaded == set(queue_ids) - set(damaged)
    _all_is_kept(engine, damaged)
    _adds_up(again(engine, spool).totals())
    assert recovery.missing_recipients == 0


def _can_be_loaded(spool: MaildirSpool, queue_id: QueueId) -> bool:
    try:
        message = spool.load(queue_id)
    except Corrupt:
        return False
    assert message.envelope == ENVELOPE
    assert message.content == CONTENT
    return True


def _all_is_kept(engine: MaildirEngine, damaged: dict[QueueId, bytes]) -> None:
    assert engine.names("corrupt") == sorted(damaged)
    for queue_id, content in damaged.items():
        assert engine.content_of(f"{engine.root}/corrupt/{queue_id}") == content


def _adds_up(totals: Totals) -> None:
    ended = totals.relayed + totals.bounced + totals.expired + totals.deleted
    assert totals.accepted == ended + totals.queued


def _with_two_messages() -> tuple[MaildirEngine, list[QueueId]]:
    engine = on_the_model()
    spool, intake = recovered(engine), engine.intake()
    queue_ids = [accept(intake), accept(intake)]
    taken(spool)
    spool.mark({queue_ids[0]: {0: BOUNCED}})
    spool.note({queue_ids[0]: [note(0)]})
    spool.close()
    return engine, queue_ids


def _start(engine: MaildirEngine) -> tuple[MaildirSpool, Recovered]:
    spool = engine.start()
    return spool, recover(spool)


def test_a_ledger_damaged_at_any_byte_costs_no_message() -> None:
    engine, queue_ids = _with_two_messages()
    path = engine.layout.file("ledger")
    whole = engine.content_of(path)
    for n in range(len(whole)):
        for content in (whole[:n], whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :], bytes(n), whole[n:]):
            engine.disk.unlink(path)
            engine.plant(path, content)
            spool, recovery = _start(engine)
            assert [entry.queue_id for entry in recovery.entries] == sorted(queue_ids)
            assert [entry.recipients_left for entry in recovery.entries] == [2, 3]
            spool.close()


def test_notes_damaged_at_any_bit_keep_no_report_back() -> None:
    engine, queue_ids = _with_two_messages()
    path = engine.layout.notes(queue_ids[0])
    whole = engine.content_of(path)
    spool, _ = _start(engine)
    message = spool.load(queue_ids[0])
    own = report_id(queue_ids[0])
    nested = b"[" * 100_000
    cuts = [whole[:n] for n in range(len(whole))]
    for content in [
        *(changed for _, changed in flips(whole)),
        *cuts,
        bytes(4096),
        nested,
        b'{"index":' * 9999,
    ]:
        engine.disk.unlink(path)
        engine.plant(path, content)
        known = {one.index: one for one in notes_file.read(engine.disk, engine.layout, queue_ids[0])}
        owed = OwedReport(own, (0,), (Status.BOUNCED,))
        _, report = Reporter("relay.test").endings(message, b"", owed, known, is_whole=False)
        assert b"Final-Recipient: rfc822; alice@example.com\r\n" in report
        assert b"\n\n" not in report.replace(b"\r\n", b"")


def test_a_message_that_is_all_sparse_costs_no_memory() -> None:
    start = message_file.encode_header(0, b"x", 1, message_file.shape_of(ENVELOPE, 0, eight_bit=False), 0)
    fields = start.split(b" ")
    fields[3] = b"9999999999"
    text = b" ".join(fields[:8]) + b" "
    huge = text + b"%08x -\n" % message_file.checksum(text)

    with pytest.raises(Corrupt, match="longer than any"):
        message_file.decode_header(huge)


def test_what_leaves_corrupt_is_deleted_and_may_come_back() -> None:
    engine, queue_ids = _with_two_messages()
    spool, _ = _start(engine)
    engine.damage(queue_ids[1])
    with pytest.raises(Corrupt):
        spool.load(queue_ids[1])
    path = f"{engine.root}/corrupt/{queue_ids[1]}"
    content = engine.content_of(path)
    engine.disk.unlink(path)
    spool.close()

    spool, recovery = _start(engine)
    assert (recovery.removed_recipients, recovery.missing_recipients) == (3, 0)
    assert spool.totals() == Totals(accepted=6, bounced=1, deleted=3, queued=2)
    spool.close()
    spool, _ = _start(engine)
    assert spool.totals() == Totals(accepted=6, bounced=1, deleted=3, queued=2)
    spool.close()
    middle = message_file.HEADER_BYTES + (len(content) - message_file.HEADER_BYTES) // 2
    mended = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    engine.plant(engine.layout.accepted(queue_ids[1]), mended)
    spool, recovery = _start(engine)
    assert [entry.queue_id for entry in recovery.entries] == sorted(queue_ids)
    assert spool.totals() == Totals(accepted=9, bounced=1, deleted=3, queued=5)


def test_what_is_removed_from_corrupt_between_starts_is_deleted() -> None:
    engine, queue_ids = _with_two_messages()
    whole = engine.content_of(engine.layout.queued(queue_ids[1]))
    engine.disk.unlink(engine.layout.queued(queue_ids[1]))
    engine.plant(engine.layout.queued(queue_ids[1]), whole[:-1])
    spool, recovery = _start(engine)
    assert recovery.corrupt_recipients == 3
    assert spool.totals() == Totals(accepted=6, bounced=1, queued=5)
    spool.close()
    engine.disk.unlink(f"{engine.root}/corrupt/{queue_ids[1]}")

    spool, recovery = _start(engine)
    assert (recovery.removed_recipients, recovery.missing_recipients) == (3, 0)
    assert spool.totals() == Totals(accepted=6, bounced=1, deleted=3, queued=2)


def test_a_message_that_vanished_stays_missing_at_each_start() -> None:
    engine, queue_ids = _with_two_messages()
    engine.disk.unlink(engine.layout.queued(queue_ids[1]))
    for _ in range(3):
        spool, recovery = _start(engine)
        assert (recovery.removed_recipients, recovery.missing_recipients) == (0, 3)
        spool.close()
