"""Files that cannot be moved, and a disk that fails under a start: one is told and left, one stops it."""

import errno

import pytest

from relay.spool.identity import report_id
from relay.spool.interface import Spool, SpoolFault, Status
from tests.fakes.disk import Fault, ModelDisk
from tests.unit.spool.engine import ENVELOPE, accept, recovered, taken
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_model
from tests.unit.spool.recovering import recover

RELAYED = Status.RELAYED


def failing(engine: MaildirEngine) -> ModelDisk:
    """Return the view of the disk that every process of the engine has from now on."""
    assert isinstance(engine.disk, ModelDisk)
    view = engine.disk.another()
    engine.disk.another = lambda: view  # type: ignore[method-assign]  # the one whose calls fail
    return view


@pytest.mark.parametrize("is_running", [False, True])
def test_a_message_that_may_not_be_moved_is_told_and_left(*, is_running: bool) -> None:
    engine = on_the_model()
    spool, intake = recovered(engine), engine.intake()
    stuck, other = accept(intake), accept(intake)
    spool.close()
    view = failing(engine)
    spool = recovered(engine) if is_running else engine.start()
    if is_running:
        stuck, other = accept(intake), accept(intake)
    view.fail(Fault(1, errno.EPERM, kinds=frozenset({"rename"}), path=stuck, forever=True))

    if is_running:
        assert taken(spool) == [other]
    else:
        recovery = recover(spool)
        assert [entry.queue_id for entry in recovery.entries] == [other]
        assert recovery.corrupt == 1
    assert (stuck, "cannot be taken: Operation not permitted") in engine.told
    assert engine.names("new") == [stuck]
    view.heal()
    spool.close()
    assert recovered(engine).load(stuck).left == (0, 1, 2)


@pytest.mark.parametrize("where", ["new", "corrupt"])
def test_a_start_on_a_failing_disk_stops_and_loses_nothing(where: str) -> None:
    engine = on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    spool.close()
    engine.plant(f"{engine.root}/new/foreign000000000", b"no message")
    view = failing(engine)
    spool = engine.start()
    path = queue_id if where == "new" else "/corrupt/"
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"rename"}), path=path))

    with pytest.raises(OSError, match="Input/output"):
        recover(spool)
    assert view.has_failed
    spool.close()
    spool = recovered(engine)
    assert spool.load(queue_id).left == (0, 1, 2)
    assert engine.names("corrupt") == ["foreign000000000"]


def test_a_start_that_raises_gives_the_lock_back() -> None:
    engine = on_the_model()
    view = failing(engine)
    view.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"make_fifo"})))

    with pytest.raises(OSError, match="space"):
        engine.start()

    engine.start().close()


def test_taking_on_a_failing_disk_says_so_and_loses_nothing() -> None:
    """Only what is about one file lets the others go on."""
    engine = on_the_model()
    recovered(engine).close()
    view = failing(engine)
    spool = recovered(engine)
    queue_id = accept(engine.intake())
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"rename"}), path=queue_id))

    with pytest.raises(SpoolFault):
        spool.take(1)
    assert engine.told == []
    view.heal()
    spool.close()
    assert recovered(engine).load(queue_id).left == (0, 1, 2)


def test_a_report_that_the_disk_did_not_take_is_not_queued() -> None:
    engine = on_the_model()
    recovered(engine).close()
    view = failing(engine)
    spool = recovered(engine)
    own = report_id(accept(engine.intake()))
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"link"}), path=own))

    with pytest.raises(SpoolFault):
        spool.publish_report(own, ENVELOPE, b"Subject: not relayed\r\n\r\n")
    view.heal()
    assert spool.publish_report(own, ENVELOPE, b"Subject: not relayed\r\n\r\n")


@pytest.mark.parametrize("nth", [1, 2])
def test_a_start_that_cannot_write_its_account_stops(nth: int) -> None:
    """A lack of room is another matter: see test_room."""
    engine = on_the_model()
    recovered(engine).close()
    queue_id = accept(engine.intake())
    view = failing(engine)
    spool = engine.start()
    view.fail(Fault(nth, errno.EIO, kinds=frozenset({"write"}), path="ledger"))

    with pytest.raises(OSError, match="Input/output"):
        recover(spool)
    assert view.has_failed
    view.heal()
    spool.close()
    assert recovered(engine).load(queue_id).left == (0, 1, 2)


def with_marks(count: int) -> tuple[MaildirEngine, Spool]:
    """Return a spool of so many messages, each relayed to its first recipient."""
    engine = on_the_model()
    spool, intake = recovered(engine), engine.intake()
    for _ in range(count):
        accept(intake)
    queue_ids = taken(spool, count)
    assert len(queue_ids) == count
    spool.mark({queue_id: {0: RELAYED} for queue_id in queue_ids})
    return engine, spool


@pytest.mark.parametrize("nth", [1, 2])
def test_a_start_that_cannot_make_marks_durable_stops(nth: int) -> None:
    """Else a cut could take back a mark that the sender has acted on; more marks than one batch holds."""
    engine, spool = with_marks(70)
    spool.close()
    view = failing(engine)
    spool = engine.start()
    view.fail(Fault(70 * (nth - 1) + 1, errno.EIO, kinds=frozenset({"sync_content"}), path="/cur/"))

    if nth == 1:
        with pytest.raises(OSError, match="Input/output"):
            recover(spool)
        spool.close()
        spool = engine.start()
    entries = recover(spool).entries
    assert [entry.recipients_left for entry in entries] == [2] * 70


def test_many_marked_messages_need_no_more_descriptors() -> None:
    engine, spool = with_marks(150)
    spool.close()
    view, most = failing(engine), 0
    spool = engine.start()

    def count() -> None:
        nonlocal most
        most = max(most, len(view._fds))

    view.after = count
    assert len(recover(spool).entries) == 150
    assert most < 80


def test_a_mark_hits_its_recipient_among_many_messages() -> None:
    """More than are remembered: the first is read anew, as it stands on disk."""
    engine, spool = with_marks(300)
    first, *_, last = recover(spool).entries
    for entry in (first, last):
        spool.mark({entry.queue_id: {2: Status.BOUNCED}})

    spool.close()
    spool = recovered(engine)
    for entry in (first, last):
        assert spool.load(entry.queue_id).statuses == (RELAYED, Status.TODO, Status.BOUNCED)
    assert spool.totals().relayed == 300
    assert spool.totals().bounced == 2
