"""The status byte: verified before it is written, and as cheap for 10,000 recipients as for ten."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import RealDisk
from relay.spool.interface import Absent, Corrupt, Totals
from tests.engines.spool.engine import (
    BOUNCED,
    CONTENT,
    DELETED,
    ENVELOPE,
    RELAYED,
    accept,
    again,
    recovered,
    taken,
)
from tests.engines.spool.maildir_engine import MaildirEngine, on_the_model


class CountingDisk(RealDisk):
    """The kernel's disk, and how much was read and written: offsets left out, lengths by the call."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[int] = []

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        read = super().pread(fd, size, offset)
        self.moved.append(len(read))
        return read

    def write_at(self, fd: int, content: bytes, offset: int) -> None:
        self.moved.append(len(content))
        super().write_at(fd, content, offset)


def _cost(folder: Path, recipients: int) -> list[list[int]]:
    """Return what each of three transactions in the middle of a message reads and writes: load and mark."""
    disk = CountingDisk()
    engine = MaildirEngine(str(folder / f"{recipients}"), disk)
    spool, addresses = recovered(engine), tuple(f"r{n:05}@list.test" for n in range(recipients))
    queue_id = accept(engine.intake(), replace(ENVELOPE, recipients=addresses))
    assert taken(spool) == [queue_id]
    costs = []
    for first in range(0, 8, 2):
        disk.moved.clear()
        left = spool.load(queue_id).left
        assert left[0] == first
        spool.mark({queue_id: dict.fromkeys(left[:2], RELAYED)})
        costs.append(list(disk.moved))
    spool.close()
    return costs[1:]


def test_a_mark_costs_the_same_whatever_the_number_of_recipients(tmp_path: Path) -> None:
    few, many = (_cost(tmp_path, recipients) for recipients in (10, 10_000))

    assert few == many
    assert all(few)


@pytest.fixture
def engine() -> MaildirEngine:
    return on_the_model()


def _replace(engine: MaildirEngine, queue_id: QueueId, change: Callable[[bytes], bytes]) -> bytes:
    """Put a changed file in the place of a message's."""
    path = engine.layout.queued(queue_id)
    changed = change(engine.content_of(path))
    engine.disk.unlink(path)
    engine.plant(path, changed)
    return changed


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "an octet of an address": (lambda whole: whole.replace(b"bob@", b"bOb@"), "changed"),
    "shorter": (lambda whole: whole[:-1], "length"),
    "longer": (lambda whole: whole + b"!", "length"),
    "another fate": (lambda whole: whole.replace(b"\nTbob@", b"\n%cbob@" % DELETED.value), "changed"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_mark_is_written_only_over_its_recipient_and_damage_costs_no_mark_of_another_message(
    engine: MaildirEngine, damage: str
) -> None:
    spool, intake = recovered(engine), engine.intake()
    batch = [accept(intake) for _ in range(3)]
    taken(spool)
    for queue_id in batch:
        spool.load(queue_id)
    damaged, (change, why) = batch[0], DAMAGES[damage]
    whole = _replace(engine, damaged, change)

    with pytest.raises(Corrupt, match=why):
        spool.mark({queue_id: dict.fromkeys(range(3), RELAYED) for queue_id in batch})

    with pytest.raises(Absent):
        spool.mark({damaged: {0: RELAYED}})
    assert engine.content_of(f"{engine.root}/corrupt/{damaged}") == whole
    totals = spool.totals()
    spool = again(engine, spool)
    assert [spool.load(queue_id).left for queue_id in batch[1:]] == [(), ()]
    assert spool.totals() == totals == Totals(accepted=9, relayed=6, queued=3)


def test_what_is_loaded_again_is_checked_again(engine: MaildirEngine) -> None:
    """What is remembered of a message is who its recipients are, never that its file is good."""
    spool, intake = recovered(engine), engine.intake()
    # Long enough for its middle, where `damage` strikes, to be content.
    damaged, cut, replaced, other = (accept(intake, content=CONTENT * 50) for _ in range(4))
    postponed, warned = accept(intake), accept(intake)
    taken(spool)
    for queue_id in (damaged, cut, replaced):
        spool.load(queue_id)
        spool.mark({queue_id: {0: RELAYED}})
        assert spool.load(queue_id).left == (1, 2)
    for queue_id in (postponed, warned):
        spool.load(queue_id)
        spool.postpone(queue_id, ENVELOPE.arrival_at_ns + 10**12)
        _replace(engine, queue_id, lambda whole: whole.replace(b"bob@", b"BOB@"))
    engine.damage(damaged)
    _replace(engine, cut, lambda whole: whole[:-1])
    _replace(engine, replaced, lambda _whole: engine.content_of(engine.layout.queued(other)))

    for queue_id in (damaged, cut, replaced, postponed):
        with pytest.raises(Corrupt):
            spool.load(queue_id)
    with pytest.raises(Corrupt):
        spool.mark_warned(warned)
    assert [name for name, _ in engine.told] == [damaged, cut, replaced, postponed, warned]
    assert spool.corrupt_count() == 5


@pytest.mark.parametrize("recipient", [1, 2])
def test_a_line_that_changed_is_not_marked_as_reported(engine: MaildirEngine, recipient: int) -> None:
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.mark({queue_id: {1: BOUNCED, 2: BOUNCED}})
    line = b"F" + ENVELOPE.recipients[recipient].encode() + b"\n"
    _replace(engine, queue_id, lambda whole: whole.replace(line, line.replace(b"@", b"#")))

    with pytest.raises(Corrupt, match="changed while its sender was told"):
        spool.mark_reported(queue_id, (1, 2))
    # The report goes by the first one, which is marked last.
    first = b"f" + ENVELOPE.recipients[1].encode()
    assert first not in engine.content_of(f"{engine.root}/corrupt/{queue_id}")


def test_a_warning_is_remembered_of_no_other_message(engine: MaildirEngine) -> None:
    spool, intake = recovered(engine), engine.intake()
    queue_id, other = accept(intake), accept(intake)
    taken(spool)
    spool.load(queue_id)
    _replace(engine, queue_id, lambda _whole: engine.content_of(engine.layout.queued(other)))

    with pytest.raises(Corrupt, match="another message"):
        spool.mark_warned(queue_id)


def test_a_mark_hits_its_recipient_among_more_messages_than_are_remembered(engine: MaildirEngine) -> None:
    spool, intake = recovered(engine), engine.intake()
    queue_ids = [accept(intake) for _ in range(300)]
    taken(spool, 300)
    spool.mark({queue_id: {0: RELAYED} for queue_id in queue_ids})
    spool = again(engine, spool)
    for queue_id in (queue_ids[0], queue_ids[-1]):
        spool.mark({queue_id: {2: BOUNCED}})

    spool = again(engine, spool)
    assert [spool.load(q).left for q in (queue_ids[0], queue_ids[1], queue_ids[-1])] == [(1,), (1, 2), (1,)]
    assert (spool.totals().relayed, spool.totals().bounced) == (300, 2)
