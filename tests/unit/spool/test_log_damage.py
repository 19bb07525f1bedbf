"""Bad sectors, damaged summaries and files of others in a log: they cost what they hit, and are told of."""

import errno
import zlib
from dataclasses import replace

import pytest

from relay.mail.envelope import QueueId
from relay.spool.identity import warning_id
from relay.spool.interface import INLINE_BYTES, Absent, Corrupt, Spool, Status, Unreadable
from relay.spool.log import facts, segments, summary
from relay.spool.log.layout import segment_of
from relay.spool.log.record import New, encode_group, mark_of
from tests.fakes.disk import ModelDisk
from tests.fakes.platter import SECTOR_BYTES, disk_error
from tests.unit.spool.engine import CONTENT, ENVELOPE, RELAYED, accept, note, recovered, taken
from tests.unit.spool.log_engine import LogEngine, log_on_the_model
from tests.unit.spool.recovering import Recovered, recover

CONTENTS = [b"Subject: %d\r\n\r\n" % number + bytes([65 + number]) * 700 for number in range(6)]


class Scratched(ModelDisk):
    """A disk that does not give one sector of one file, or of each whose path begins alike."""

    def __init__(self, of: ModelDisk, path: str, at: int) -> None:
        super().__init__(of.platter)
        self._path, self._at = path, at

    def another(self) -> "Scratched":
        return self

    def scratch(self, path: str) -> None:
        self._path = path

    def heal_sector(self) -> None:
        self._path = ""

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        path = self._entry(fd)[1]
        is_scratched = self._path and path.startswith(self._path) and not path.endswith(".sum")
        if is_scratched and offset < self._at + SECTOR_BYTES and self._at < offset + size:
            raise disk_error(errno.EIO, self._path)
        return super().pread(fd, size, offset)


def small_spool() -> tuple[LogEngine, list[QueueId]]:
    """Return a spool of six messages: of the first two one ended and one is done in part; one is held."""
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    queue_ids = [accept(intake, content=content) for content in CONTENTS]
    taken(spool)
    spool.mark({queue_ids[0]: dict.fromkeys(range(3), RELAYED)})
    spool.finish([queue_ids[0]])
    spool.commit()
    spool.mark({queue_ids[1]: {0: RELAYED}})
    spool.hold(queue_ids[2])
    spool.commit()
    spool.keep_replies(queue_ids[3], [replace(note(0, "450 later"), reason="deferred")])
    spool.commit()
    spool.close()
    drop_summaries(engine)
    return engine, queue_ids


def drop_summaries(engine: LogEngine) -> None:
    for name in engine.names("log"):
        if name.endswith(".sum"):
            engine.disk.unlink(f"{engine.layout.log}/{name}")


def model_of(engine: LogEngine) -> ModelDisk:
    assert isinstance(engine.disk, ModelDisk)
    return engine.disk


def sectors(engine: LogEngine) -> list[tuple[str, int]]:
    return [
        (path, at)
        for path in engine.segments()
        for at in range(0, len(engine.content_of(path)), SECTOR_BYTES)
    ]


def is_senders(path: str) -> bool:
    return "/sender." in path


def whole(spool: Spool, recovery: Recovered) -> set[QueueId]:
    """Return the messages that can be read."""
    found = set()
    for entry in recovery.entries:
        try:
            message = spool.load(entry.queue_id)
        except (Corrupt, Unreadable):
            continue
        assert message.content in CONTENTS
        assert message.envelope == ENVELOPE
        found.add(entry.queue_id)
    return found


def test_a_damaged_sector_costs_its_messages_and_is_set_aside() -> None:
    base, queue_ids = small_spool()
    for path, at in sectors(base):
        engine = LogEngine(base.root, model_of(base).after_kill())
        raw = model_of(engine).peek(path)
        model_of(engine).poke(
            path, raw[:at] + bytes(SECTOR_BYTES)[: len(raw) - at] + raw[at + SECTOR_BYTES :]
        )
        met = {q for q in queue_ids if any(p == path and a < at + SECTOR_BYTES and at < a + s
                                           for p, a, s in base.places(q))}  # fmt: skip
        is_tail = at + SECTOR_BYTES >= len(raw)

        for _ in range(2):
            spool = engine.start()
            recovery = recover(spool)
            found = whole(spool, recovery)
            # What ended may come again, rather than never, where the damage met its end.
            assert set(queue_ids[1:]) - met <= found <= set(queue_ids)
            assert len(met) <= 2
            if met - {queue_ids[0]} and not is_tail:
                assert recovery.corrupt > 0
                assert engine.told
            spool.commit()
            spool.close()
            drop_summaries(engine)


def test_a_sector_that_is_not_given_keeps_its_place_and_no_other_mail() -> None:
    base, queue_ids = small_spool()
    for path, at in sectors(base):
        disk = model_of(base).after_kill()
        engine = LogEngine(base.root, Scratched(disk, path, at))
        if is_senders(path):
            # What became of mail is not known: nothing may be sent.
            with pytest.raises(OSError, match="Input/output"):
                recovered(engine)
            continue
        spool = recovered(engine)
        assert len(whole(spool, recover(spool))) >= 3
        spool.commit()
        spool.close()
        drop_summaries(engine)
        for fd in list(engine.disk._fds):  # type: ignore[attr-defined]  # as if it had died
            engine.disk.close(fd)

        # The disk gives it again: everything is there.
        healed = LogEngine(base.root, disk)
        spool = healed.start()
        assert whole(spool, recover(spool)) == set(queue_ids[1:])


def test_a_message_that_cannot_be_read_is_told_of_and_left() -> None:
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    ((path, at, _),) = engine.places(queue_id)
    spool.close()
    scratched = LogEngine(engine.root, Scratched(model_of(engine), path, at))
    spool = scratched.start()
    # By its summary it is known.
    assert [entry.queue_id for entry in recover(spool).entries] == [queue_id]
    for _ in range(2):
        with pytest.raises(Unreadable):
            spool.load(queue_id)
    assert [why[:28] for _, why in scratched.told] == ["cannot be read, and is left:"]
    assert spool.sort([queue_id], None) == {}  # type: ignore[arg-type]  # it is not asked


def summary_path(engine: LogEngine) -> str:
    (name,) = [name for name in engine.names("log") if name.endswith(".sum")]
    return f"{engine.layout.log}/{name}"


def test_a_start_by_summaries_is_the_same_as_one_without() -> None:
    base, _ = small_spool()
    spool = base.start()
    wanted, totals = recover(spool), spool.totals()
    spool.close()
    raw = model_of(base).peek(summary_path(base))
    damaged = [raw[:cut] for cut in range(0, len(raw), 37)]
    damaged += [raw[:at] + bytes([raw[at] ^ 64]) + raw[at + 1 :] for at in range(0, len(raw), 11)]
    stale = raw.replace(b"relay-log-summary 1", b"relay-log-summary 2")
    for content in (raw, *damaged, stale, b""):
        engine = LogEngine(base.root, model_of(base).after_kill())
        model_of(engine).poke(summary_path(engine), content)
        spool = engine.start()
        assert recover(spool) == wanted
        assert spool.totals() == totals
        assert engine.told == []


def test_a_summary_tells_of_long_mail_and_what_ended_since_does_not_come() -> None:
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    queue_ids = [accept(intake, content=content) for content in (*CONTENTS, b"y" * (INLINE_BYTES + 1))]
    taken(spool)
    spool.close()
    spool = engine.start()
    recover(spool)
    for queue_id in queue_ids[1:3]:
        spool.mark({queue_id: dict.fromkeys(range(3), RELAYED)})
        spool.finish([queue_id])
    spool.commit()
    spool.close()
    assert summary_path(engine)

    spool = engine.start()
    assert [entry.queue_id for entry in recover(spool).entries] == [queue_ids[0], *queue_ids[3:]]
    assert spool.totals().relayed == 6


def test_mail_behind_a_summary_is_read_from_the_log() -> None:
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    first = accept(intake)
    taken(spool)
    spool.close()
    assert summary_path(engine)
    second = accept(intake)
    spool = engine.start()

    assert [entry.queue_id for entry in recover(spool).entries] == [first, second]
    assert spool.accepted_count() == 0
    third = accept(intake)
    assert spool.accepted_count() == 1
    assert taken(spool) == [third]


def test_segments_whose_mail_waits_get_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1)
    monkeypatch.setattr(summary, "LET_BE", 1)
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    queue_ids = []
    for _ in range(5):
        queue_ids.append(accept(intake))
        taken(spool)
    assert len([name for name in engine.names("log") if name.endswith(".sum")]) == 3

    spool.mark({queue_ids[0]: dict.fromkeys(range(3), RELAYED)})
    spool.finish([queue_ids[0]])
    spool.commit()
    # It goes with its segment.
    assert len([name for name in engine.names("log") if name.endswith(".sum")]) == 2


def test_what_was_set_aside_is_counted_until_it_is_removed() -> None:
    base, queue_ids = small_spool()
    base.damage(queue_ids[1])
    spool = base.start()
    recovery = recover(spool)
    assert (recovery.corrupt, recovery.corrupt_recipients, recovery.set_aside) == (1, 2, 1)
    assert base.names("corrupt") == [queue_ids[1]]
    (listed,) = spool.set_aside_files(5)
    assert (listed.name, listed.reverse_path) == (queue_ids[1], "")
    assert spool.totals().queued == 4 * 3 + 2
    spool.commit()
    spool.close()

    base.disk.unlink(f"{base.layout.corrupt}/{queue_ids[1]}")
    spool = base.start()
    assert recover(spool).removed_recipients == 2
    assert (spool.totals().deleted, spool.totals().queued) == (2, 12)
    assert spool.totals().imbalance == 0


def test_long_content_that_is_damaged_or_gone_is_met_when_it_is_read() -> None:
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    long = b"Message-ID: <1@x>\r\n\r\n" + b"y" * INLINE_BYTES
    damaged, gone = accept(intake, content=long), accept(intake, content=long)
    taken(spool)
    engine.damage(damaged)
    with pytest.raises(Corrupt):
        list(spool.content(damaged))
    engine.disk.unlink(engine.layout.content(gone))
    with pytest.raises(Absent):
        spool.load(gone)
    assert engine.names("corrupt") == [damaged]
    assert spool.load is not None


@pytest.mark.parametrize("folder", ["log", "long"])
def test_files_of_others_go_to_corrupt(folder: str) -> None:
    engine = log_on_the_model()
    spool = recovered(engine)
    spool.close()
    model_of(engine).plant(f"{engine.root}/{folder}/notes.txt", b"mine")
    model_of(engine).plant(f"{engine.root}/long/0123456789abcdef.part", b"somebody else's")

    spool = engine.start()
    recovery = recover(spool)
    assert recovery.set_aside == 2
    assert recovery.entries == ()
    assert f"{folder}-notes.txt" in engine.names("corrupt")
    assert spool.clean_up() == 0


def test_a_held_message_pins_no_more_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 8192)
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    held: list[QueueId] = []
    for number in range(120):
        queue_id = accept(intake, content=b"x" * 800)
        taken(spool)
        if number % 20 == 0:
            spool.hold(queue_id)
            held.append(queue_id)
        else:
            spool.note({queue_id: [note(0)]})
            spool.mark({queue_id: dict.fromkeys(range(3), RELAYED)})
            spool.finish([queue_id])
        spool.commit()
        size = sum(len(engine.content_of(path)) for path in engine.segments())
        live = 1400 * len(held)
        # Two segments are being added to.
        assert size <= 2 * live + 2 * 8192 + 2 * (8192 + 2000)

    spool.close()
    spool = engine.start()
    assert [entry.queue_id for entry in recover(spool).entries] == held
    assert all(spool.load(queue_id).content == b"x" * 800 for queue_id in held)
    assert all(spool.load(queue_id).is_held for queue_id in held)
    assert spool.totals().relayed == 3 * (120 - len(held))
    assert all(segment_of(path.rpartition("/")[2]) for path in engine.segments())


def test_much_said_of_one_message_is_written_anew_as_one() -> None:
    engine = log_on_the_model()
    everybody = tuple(f"r{number}@example.com" for number in range(60))
    spool, queue_id = recovered(engine), accept(engine.intake(), replace(ENVELOPE, recipients=everybody))
    taken(spool)
    for number in range(50):
        spool.note({queue_id: [note(number)]})
        spool.mark({queue_id: {number: Status.BOUNCED}})
        spool.commit()
    for _ in range(2):
        assert len(spool.notes(queue_id)) == 50
        assert spool.load(queue_id).left == tuple(range(50, 60))
        spool.close()
        spool = engine.start()
        recover(spool)
    assert spool.load(queue_id).content == CONTENT


def test_what_the_disk_did_not_give_is_asked_for_again_each_hour() -> None:
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    long = accept(intake, content=b"y" * (INLINE_BYTES + 1))
    spool.close()
    path = engine.layout.content(long)
    scratched = Scratched(model_of(engine), path, 0)
    spool = LogEngine(engine.root, scratched).start()
    assert recover(spool).entries == ()

    assert taken(spool) == []
    spool.clean_up()
    assert taken(spool) == []
    scratched.heal_sector()
    assert taken(spool) == []
    spool.clean_up()
    assert taken(spool) == [long]
    assert spool.totals().queued == 3


def test_new_mail_that_the_disk_does_not_give_now_is_taken_later() -> None:
    engine = log_on_the_model()
    recovered(engine).close()
    intake = engine.intake()
    long = accept(intake, content=b"y" * (INLINE_BYTES + 1))
    scratched = Scratched(model_of(engine), engine.layout.content(long), 0)
    other = LogEngine(engine.root, scratched)
    spool = other.start()
    recover(spool)
    second = accept(intake, content=b"z" * (INLINE_BYTES + 1))
    scratched.scratch(engine.layout.content(second))
    assert taken(spool) == []
    scratched.heal_sector()
    spool.clean_up()
    assert taken(spool) == [long, second]


def test_new_mail_that_is_damaged_is_set_aside_by_the_take() -> None:
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    short, long = accept(intake), accept(intake, content=b"y" * (INLINE_BYTES + 1))
    gone = accept(intake, content=b"y" * (INLINE_BYTES + 1))
    path = engine.layout.content(long)
    model_of(engine).poke(path, b"?" + model_of(engine).peek(path)[1:])
    engine.damage(short)
    engine.disk.unlink(engine.layout.content(gone))

    assert taken(spool) == []
    assert engine.names("corrupt") == sorted([short, long])
    assert (spool.corrupt_count(), spool.accepted_count()) == (2, 0)
    with pytest.raises(Absent):
        spool.load(short)
    assert spool.totals().queued == 9


def test_a_record_that_no_version_writes_is_set_aside_and_the_rest_counts() -> None:
    base, queue_ids = small_spool()
    (path, *_) = [path for path in base.segments() if is_senders(path)]
    name = segment_of(path.rpartition("/")[2])
    assert name is not None
    raw = model_of(base).peek(path).rstrip(b"\0")
    made = [
        New(facts.MARKS, queue_ids[4], b"\0"),
        New(facts.MARKS, queue_ids[4], b"\0\0\0\0?"),
        New(facts.ACCOUNT, "", b"[]"),
        New(facts.SNAPSHOT, queue_ids[4], b"{"),
        New(facts.HELD, queue_ids[5]),
        New(facts.WARNED, QueueId("0" * 16)),
    ]
    group, _ = encode_group(mark_of(name), made, len(raw))
    model_of(base).poke(path, raw + b"".join(group))

    spool = base.start()
    recovery = recover(spool)
    assert [e.queue_id for e in recovery.entries if e.is_held] == [queue_ids[2], queue_ids[5]]
    assert spool.load(queue_ids[4]).left == (0, 1, 2)
    assert recovery.set_aside == 4


@pytest.mark.parametrize(
    "change",
    ["count", "index", "chunk", "a row less", "no chunk", "words for a chunk", "a message less told"],
)
def test_a_summary_with_right_checksums_and_wrong_words_is_none(change: str) -> None:
    base, _ = small_spool()
    spool = base.start()
    wanted = recover(spool)
    spool.close()
    path = summary_path(base)
    head, _, rest = model_of(base).peek(path).partition(b"\n")
    words = head.split(b" ")[:-1]
    match change:
        case "count":
            words[5] = b"%010d" % 9
        case "index":
            rest = b"x" + rest[1:]
        case "a row less":
            rows = zlib.decompress(rest[: int(words[6])])
            index = zlib.compress(rows[: -len(rows) // 6])
            rest = index + rest[int(words[6]) :]
            words[6] = b"%012d" % len(index)
        case "no chunk":
            rest = rest[: int(words[6])]
        case "words for a chunk":
            rest = rest[: int(words[6])] + len(b"words").to_bytes(4, "little") + b"words"
        case "a message less told":
            told = list(summary._unpacked(zlib.decompress(rest[int(words[6]) + 4 :])))
            chunk = zlib.compress(b"".join(map(summary._packed, told[:-1])))
            rest = rest[: int(words[6])] + len(chunk).to_bytes(4, "little") + chunk
        case _:
            rest += b"\xff\xff"
    text = b" ".join(words)
    model_of(base).poke(path, b"%s %08x\n%s" % (text, zlib.crc32(rest, zlib.crc32(text)), rest))

    assert recover(base.start()) == wanted


def test_a_report_that_ended_first_is_not_published_again_after_cleaning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1)
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    own = warning_id(queue_id)
    report = replace(ENVELOPE, reverse_path="", recipients=("list-owner@example.org",))
    assert spool.publish_report(own, report, b"Subject: late\r\n\r\n")
    assert taken(spool) == [own]
    spool.mark({own: {0: RELAYED}})
    spool.finish([own])
    spool.commit()
    for number in range(6):
        spool.postpone(queue_id, number)
        spool.commit()

    for _ in range(2):
        assert not spool.publish_report(own, report, b"Subject: again\r\n\r\n")
        spool.close()
        spool = engine.start()
        recover(spool)
    assert not spool.publish_report(own, report, b"Subject: again\r\n\r\n")


@pytest.mark.parametrize("inside", [0, 400])
def test_cleaning_leaves_a_segment_that_was_damaged_meanwhile(
    monkeypatch: pytest.MonkeyPatch, inside: int
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 8192)
    engine = log_on_the_model()
    spool, intake = engine.start(), engine.intake()
    recover(spool)
    queue_ids = [accept(intake, content=b"x" * 800) for _ in range(40)]
    taken(spool)
    path, at, _ = engine.places(queue_ids[1])[0]
    assert engine.places(queue_ids[2])[0][0] == path
    engine.flip(path, at + inside)
    for queue_id in queue_ids[3:]:
        spool.mark({queue_id: dict.fromkeys(range(3), RELAYED)})
        spool.finish([queue_id])
        spool.commit()
    spool._cleaner.clean()

    assert path in engine.segments()
    assert len(engine.places(queue_ids[0])) == 2
    assert spool.load(queue_ids[0]).left == spool.load(queue_ids[2]).left == (0, 1, 2)
    with pytest.raises(Corrupt):
        spool.load(queue_ids[1])


def test_what_is_copied_forward_keeps_all_that_was_said_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1)
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    queue_ids = [accept(intake) for _ in range(3)]
    taken(spool)
    spool.hold(queue_ids[1])
    spool.note({queue_ids[1]: [note(2)]})
    for queue_id in (queue_ids[0], queue_ids[2]):
        spool.mark({queue_id: dict.fromkeys(range(3), RELAYED)})
        spool.finish([queue_id])
        spool.commit()
    spool.close()
    spool = engine.start()
    assert [entry.queue_id for entry in recover(spool).entries] == [queue_ids[1]]
    assert spool.load(queue_ids[1]).is_held
    assert spool.notes(queue_ids[1]) == [note(2)]
    assert spool.totals().relayed == 6


def test_segments_that_cannot_be_read_make_no_others_be_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 4096)
    base = log_on_the_model()
    spool, intake = recovered(base), base.intake()
    queue_ids = [accept(intake, content=b"x" * 800) for _ in range(40)]
    spool.close()
    drop_summaries(base)
    scratched = Scratched(model_of(base), base.segments()[0].rpartition(".")[0], 1024)
    spool = LogEngine(base.root, scratched).start()
    entries = [entry.queue_id for entry in recover(spool).entries]
    for queue_id in entries[1:]:
        spool.mark({queue_id: dict.fromkeys(range(3), RELAYED)})
        spool.finish([queue_id])
        spool.commit()
    pinned = [path for path in base.segments() if not is_senders(path)]
    assert 4 < len(entries) < len(queue_ids)
    assert len(pinned) > 8
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1)
    scratched.steps.clear()
    for number in range(5):
        spool.postpone(entries[0], number)
        spool.commit()

    # One for each commit, and none for copies.
    assert len([step for step in scratched.steps if step.startswith("open_new")]) == 5
