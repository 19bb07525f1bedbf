"""The status byte: what is verified before it is written, and what it costs for 10,000 recipients."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import RealDisk
from relay.spool.interface import Absent, Corrupt, SpoolFault, Totals
from tests.fakes.disk import ModelDisk
from tests.unit.spool.engine import (
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
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_model
from tests.unit.spool.recovering import recover


class CountingDisk(RealDisk):
    """The kernel's disk, and how often it was asked for what."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.octets = 0
        """Read and written."""

    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        if name.startswith("_") or name in ("calls", "octets"):
            return attribute
        self.calls[name] += 1
        return attribute

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        read = super().pread(fd, size, offset)
        self.octets += len(read)
        return read

    def write_all(self, fd: int, content: bytes) -> None:
        self.octets += len(content)
        super().write_all(fd, content)

    def write_at(self, fd: int, content: bytes, offset: int) -> None:
        self.octets += len(content)
        super().write_at(fd, content, offset)


def _cost(folder: Path, recipients: int, *, at_once: int) -> list[tuple[Counter[str], int]]:
    """Return calls and octets of each of three transactions in the middle of a message: load and mark."""
    disk = CountingDisk()
    engine = MaildirEngine(str(folder / f"{recipients}"), disk)
    spool = recovered(engine)
    queue_id = accept(
        engine.intake(), replace(ENVELOPE, recipients=tuple(f"r{n:05}@list.test" for n in range(recipients)))
    )
    assert taken(spool) == [queue_id]
    costs = []
    for first in range(0, 4 * at_once, at_once):
        disk.calls.clear()
        disk.octets = 0
        message = spool.load(queue_id)
        assert message.left[0] == first
        spool.mark({queue_id: dict.fromkeys(message.left[:at_once], RELAYED)})
        costs.append((disk.calls.copy(), disk.octets))
    spool.close()
    return costs[1:]


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_mark_costs_the_same_whatever_the_number_of_recipients(tmp_path: Path, at_once: int) -> None:
    few, some, many = (_cost(tmp_path, recipients, at_once=at_once) for recipients in (10, 100, 10_000))

    assert few == some == many
    assert len({octets for _, octets in many}) == 1


@pytest.fixture
def engine() -> MaildirEngine:
    return on_the_model()


def _replace(engine: MaildirEngine, queue_id: QueueId, whole: bytes) -> str:
    path = engine.layout.queued(queue_id)
    engine.disk.unlink(path)
    engine.plant(path, whole)
    return path


def _whole(engine: MaildirEngine, queue_id: QueueId) -> bytes:
    return engine.content_of(engine.layout.queued(queue_id))


def test_a_mark_is_written_only_over_a_recipient_who_is_to_do(engine: MaildirEngine) -> None:
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.load(queue_id)
    changed = _whole(engine, queue_id).replace(b"\nTbob@", b"\n%cbob@" % DELETED.value)
    path = _replace(engine, queue_id, changed)

    with pytest.raises(Corrupt, match="recipient 1 changed"):
        spool.mark({queue_id: {0: RELAYED, 1: RELAYED}})
    assert engine.content_of(f"{engine.root}/corrupt/{queue_id}") == changed
    assert not engine.disk.inode(path)


class Damage(NamedTuple):
    """What happens to one message of a batch while all of it is being sent."""

    of: Callable[[bytes], bytes]
    why: str


DAMAGES = {
    "an octet of an address": Damage(lambda whole: whole.replace(b"bob@", b"bOb@"), "changed"),
    "shorter": Damage(lambda whole: whole[:-1], "length"),
    "longer": Damage(lambda whole: whole + b"!", "length"),
    "another fate": Damage(lambda whole: whole.replace(b"\nTbob@", b"\n%cbob@" % DELETED.value), "changed"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_one_message_costs_no_mark_of_another(engine: MaildirEngine, damage: str) -> None:
    spool, intake = recovered(engine), engine.intake()
    batch = [accept(intake) for _ in range(3)]
    taken(spool)
    for queue_id in batch:
        spool.load(queue_id)
    damaged, of, why = batch[0], *DAMAGES[damage]
    _replace(engine, damaged, of(_whole(engine, damaged)))

    with pytest.raises(Corrupt, match=why):
        spool.mark({queue_id: dict.fromkeys(range(3), RELAYED) for queue_id in batch})

    with pytest.raises(Absent):
        spool.mark({damaged: {0: RELAYED}})
    totals = spool.totals()
    spool = again(engine, spool)
    assert [spool.load(queue_id).left for queue_id in batch[1:]] == [(), ()]
    assert engine.names("corrupt") == [damaged]
    assert spool.totals() == totals == Totals(accepted=9, relayed=6, queued=3)


def test_a_recipient_whose_fate_is_known_keeps_it(engine: MaildirEngine) -> None:
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.mark({queue_id: {1: BOUNCED}})
    before = _whole(engine, queue_id)

    with pytest.raises(SpoolFault, match="1 is BOUNCED already"):
        spool.mark({queue_id: {0: RELAYED, 1: RELAYED}})
    assert _whole(engine, queue_id) == before


@pytest.mark.parametrize("length", ["same", "other"])
def test_a_start_writes_no_mark_into_a_file_it_did_not_read(engine: MaildirEngine, length: str) -> None:
    """What it makes durable are the marks that are there, whoever put the file there meanwhile."""
    assert isinstance(engine.disk, ModelDisk)
    spool, intake = recovered(engine), engine.intake()
    queue_id = accept(intake)
    taken(spool)
    untouched = _whole(engine, queue_id)
    if length == "other":
        untouched = untouched[:-1]
    spool.mark({queue_id: {0: RELAYED}})
    spool.close()
    path, view = engine.layout.queued(queue_id), engine.disk.another()
    open_update = view.open_update

    opened: list[str] = []

    def replaced_just_before(path: str) -> int:
        opened.append(path)
        # The first time is when it is read.
        if path == engine.layout.queued(queue_id) and opened.count(path) == 2:
            _replace(engine, queue_id, untouched)
        return open_update(path)

    view.open_update = replaced_just_before  # type: ignore[method-assign]  # somebody else is at work
    engine.disk.another = lambda: view  # type: ignore[method-assign]  # the one that he watches
    recover(engine.start())

    assert opened.count(path) == 2
    assert engine.content_of(path) == untouched


def test_a_warning_is_remembered_of_no_other_message(engine: MaildirEngine) -> None:
    spool, intake = recovered(engine), engine.intake()
    queue_id, other = accept(intake), accept(intake)
    taken(spool)
    spool.load(queue_id)
    whole = _whole(engine, other)
    path = _replace(engine, queue_id, whole)

    with pytest.raises(Corrupt, match="another message"):
        spool.mark_warned(queue_id)
    assert engine.content_of(f"{engine.root}/corrupt/{queue_id}") == whole
    assert not engine.disk.inode(path)


def test_what_is_loaded_again_is_checked_again(engine: MaildirEngine) -> None:
    """What is remembered of a message is who its recipients are, never that its file is good."""
    spool, intake = recovered(engine), engine.intake()
    # Long enough for its middle, where `damage` strikes, to be content.
    damaged, replaced, other, cut = (accept(intake, content=CONTENT * 50) for _ in range(4))
    taken(spool)
    for queue_id in (damaged, replaced, cut):
        spool.load(queue_id)
        spool.mark({queue_id: {0: RELAYED}})
        assert spool.load(queue_id).left == (1, 2)
    engine.damage(damaged)
    _replace(engine, replaced, _whole(engine, other))
    _replace(engine, cut, _whole(engine, cut)[:-1])

    for queue_id in (damaged, replaced, cut):
        with pytest.raises(Corrupt):
            spool.load(queue_id)
    assert spool.corrupt_count() == 3


def test_a_message_is_read_whole_again_once_it_was_postponed(engine: MaildirEngine) -> None:
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.load(queue_id)
    spool.postpone(queue_id, ENVELOPE.arrival_at_ns + 10**12)
    _replace(engine, queue_id, _whole(engine, queue_id).replace(b"bob@", b"BOB@"))

    with pytest.raises(Corrupt):
        spool.load(queue_id)


def test_marks_survive_between_two_loads(engine: MaildirEngine) -> None:
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    for index in range(3):
        assert spool.load(queue_id).left == tuple(range(index, 3))
        spool.mark({queue_id: {index: RELAYED}})
        spool.mark_warned(queue_id)
        assert spool.load(queue_id).is_warned
    assert again(engine, spool).load(queue_id).left == ()


def test_damage_that_a_warning_meets_is_told_of_once(engine: MaildirEngine) -> None:
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool = again(engine, spool)
    # What a start read first is in memory, where no damage reaches it; what waits for long is not.
    spool.postpone(queue_id, 0)
    _replace(engine, queue_id, _whole(engine, queue_id).replace(b"bob@", b"BOB@"))

    with pytest.raises(Corrupt):
        spool.mark_warned(queue_id)

    assert [name for name, _ in engine.told] == [queue_id]
    assert engine.names("corrupt") == [queue_id]


@pytest.mark.parametrize("recipient", [1, 2])
def test_a_line_that_changed_is_not_marked_as_reported(recipient: int) -> None:
    engine = on_the_model()
    assert isinstance(engine.disk, ModelDisk)
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.mark({queue_id: {1: BOUNCED, 2: BOUNCED}})
    path, line = engine.layout.queued(queue_id), b"F" + ENVELOPE.recipients[recipient].encode() + b"\n"
    before = engine.disk.peek(path)
    engine.disk.poke(path, before.replace(line, line.replace(b"@", b"#")))

    with pytest.raises(Corrupt, match="changed while its sender was told"):
        spool.mark_reported(queue_id, (1, 2))
    assert b"f" + ENVELOPE.recipients[1].encode() not in engine.content_of(
        f"{engine.root}/corrupt/{queue_id}"
    )


def test_what_has_ended_owes_no_report() -> None:
    engine = on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.mark({queue_id: dict.fromkeys(range(3), BOUNCED)})
    spool.finish([queue_id])

    assert spool.owed_report(queue_id) is None
