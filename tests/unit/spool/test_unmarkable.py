"""What can be read and not marked is never sent: else it would be sent again at each start, for ever."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.spool.disk.durable import RealDisk
from relay.spool.interface import Corrupt, SpoolFault
from tests.fakes.disk import Fault, ModelDisk
from tests.unit.spool.engine import CONTENT, RELAYED, accept, again, recovered, taken
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_model
from tests.unit.spool.recovering import recover

NOBODY = 65534


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MaildirEngine]:
    """Return a spool of a user whom modes bind; its path is relative."""
    monkeypatch.chdir(tmp_path)
    engine = MaildirEngine("spool", RealDisk())
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(tmp_path, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    yield engine
    if is_root:
        os.seteuid(0)


def test_a_strangers_copy_in_new_is_set_aside_before_it_is_sent(engine: MaildirEngine) -> None:
    spool = recovered(engine)
    intake = engine.intake()
    copied, other = accept(intake), accept(intake)
    Path(engine.layout.accepted(copied)).chmod(0o444)

    assert taken(spool) == [other]
    assert engine.names("corrupt") == [copied]
    assert engine.told == [(copied, "cannot be read and marked: Permission denied")]


def test_a_message_that_may_not_be_marked_is_set_aside_unsent(
    engine: MaildirEngine,
) -> None:
    spool = recovered(engine)
    intake = engine.intake()
    first, second = accept(intake), accept(intake)
    assert taken(spool) == [first, second]
    # One is known to the memory of the sender, the other is not.
    assert spool.load(first).content == CONTENT
    spool.postpone(second, 0)
    for queue_id in (first, second):
        Path(engine.layout.queued(queue_id)).chmod(0o444)
        with pytest.raises(Corrupt, match="Permission denied"):
            spool.load(queue_id)
    assert engine.names("corrupt") == [first, second]


def test_a_message_that_may_not_be_marked_again_stops_no_start(engine: MaildirEngine) -> None:
    spool = recovered(engine)
    intake = engine.intake()
    marked, other = accept(intake), accept(intake)
    assert taken(spool) == [marked, other]
    spool.mark({marked: {0: RELAYED}})
    Path(engine.layout.queued(marked)).chmod(0o444)

    spool.close()
    recovery = recover(engine.start())

    assert [entry.queue_id for entry in recovery.entries] == [other]
    assert (recovery.missing_recipients, recovery.corrupt_recipients) == (0, 3)
    assert engine.names("corrupt") == [marked]


def test_on_a_read_only_disk_nothing_is_sent_and_none_corrupt() -> None:
    engine = on_the_model()
    assert isinstance(engine.disk, ModelDisk)
    view = engine.disk.another()
    engine.disk.another = lambda: view  # type: ignore[method-assign]  # the one whose calls fail
    spool = recovered(engine)
    queued = accept(engine.intake())
    assert taken(spool) == [queued]
    spool.postpone(queued, 0)
    new = accept(engine.intake())
    for place in ("/cur/", "/new/"):
        view.fail(Fault(1, errno.EROFS, kinds=frozenset({"open"}), path=place, forever=True))
        if place == "/cur/":
            with pytest.raises(OSError, match="Read-only"):
                spool.load(queued)
        else:
            with pytest.raises(SpoolFault, match="Read-only"):
                spool.take(1)
    view.heal()

    assert engine.told == []
    assert taken(spool) == [new]
    assert again(engine, spool).load(queued).content == CONTENT
