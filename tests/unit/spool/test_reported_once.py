"""A sender is told once, also where a restart comes between a report and the end of its message."""

import contextlib
import errno

import pytest

from relay.mail.envelope import Envelope, QueueId
from relay.spool.identity import report_id, warning_id
from relay.spool.interface import Spool, SpoolFault, SpoolFull, Status
from relay.spool.maildir import ledger_file
from tests.fakes.disk import Fault, ModelDisk
from tests.unit.spool.engine import BOUNCED, ENVELOPE, RELAYED, accept, again, note, recovered, taken
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_model
from tests.unit.spool.recovering import recover

REPORT = Envelope("", (ENVELOPE.reverse_path,), ENVELOPE.arrival_at_ns, "local", "", "local")
TEXT = b"Subject: not relayed\r\n\r\n"


def seen(engine: MaildirEngine) -> ModelDisk:
    """Return the view of the disk that every process of the engine has from now on."""
    assert isinstance(engine.disk, ModelDisk)
    view = engine.disk.another()
    engine.disk.another = lambda: view  # type: ignore[method-assign]  # the one whose calls fail
    return view


def relay(spool: Spool, queue_id: QueueId) -> None:
    """Relay a message of the queue and end it."""
    left = spool.load(queue_id).left
    spool.mark({queue_id: dict.fromkeys(left, RELAYED)})
    spool.finish([queue_id])


def bounced_and_reported(
    engine: MaildirEngine, view: ModelDisk, *, is_counted_in: bool = True
) -> tuple[Spool, QueueId]:
    """Return a spool with a message that has no room for its end, whose report was relayed meanwhile."""
    spool = recovered(engine)
    queue_id = accept(engine.intake())
    if not is_counted_in:
        view.fail(Fault(1, errno.ENOSPC, path="/ledger", forever=True))
    assert taken(spool) == [queue_id]
    spool.note({queue_id: [note(0), note(1), note(2)]})
    spool.mark({queue_id: dict.fromkeys(range(3), BOUNCED)})
    assert spool.publish_report(report_id(queue_id), REPORT, TEXT)
    view.fail(Fault(1, errno.ENOSPC, path="/ledger", forever=True))
    with pytest.raises(SpoolFull):
        spool.finish([queue_id])
    # Its report is the first to find room again.
    view.heal()
    assert taken(spool) == [report_id(queue_id)]
    relay(spool, report_id(queue_id))
    return spool, queue_id


@pytest.mark.parametrize("is_counted_in", [True, False])
def test_a_relayed_report_is_not_sent_again_after_a_restart(*, is_counted_in: bool) -> None:
    engine = on_the_model()
    spool, queue_id = bounced_and_reported(engine, seen(engine), is_counted_in=is_counted_in)

    for _ in range(2):
        spool = again(engine, spool)
        assert spool.load(queue_id).left == ()
        assert not spool.publish_report(report_id(queue_id), REPORT, TEXT)

    spool.finish([queue_id])
    assert taken(again(engine, spool)) == []


def test_a_relayed_report_is_not_sent_again_after_a_rewrite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = on_the_model()
    spool, queue_id = bounced_and_reported(engine, seen(engine))
    monkeypatch.setattr(ledger_file, "LINES_BEFORE_REWRITE", 0)
    other = accept(engine.intake())
    assert taken(spool) == [other]
    relay(spool, other)

    assert not spool.publish_report(report_id(queue_id), REPORT, TEXT)


def test_a_relayed_warning_is_not_sent_again_after_a_kill() -> None:
    engine = on_the_model()
    spool = recovered(engine)
    queue_id = accept(engine.intake())
    assert taken(spool) == [queue_id]
    assert spool.publish_report(warning_id(queue_id), REPORT, TEXT)
    # Killed here, ahead of `mark_warned`.
    spool = again(engine, spool)
    relay(spool, warning_id(queue_id))

    for _ in range(2):
        spool = again(engine, spool)
        assert not spool.publish_report(warning_id(queue_id), REPORT, TEXT)


def test_a_relayed_report_of_some_is_not_sent_again_after_a_kill() -> None:
    engine = on_the_model()
    spool = recovered(engine)
    queue_id = accept(engine.intake())
    assert taken(spool) == [queue_id]
    spool.note({queue_id: [note(1), note(2)]})
    spool.mark({queue_id: {1: BOUNCED, 2: BOUNCED}})
    assert spool.publish_report(report_id(queue_id, 1), REPORT, TEXT)
    assert taken(spool) == [report_id(queue_id, 1)]
    relay(spool, report_id(queue_id, 1))
    # Killed here, ahead of `mark_reported`.
    for _ in range(2):
        spool = again(engine, spool)
        assert spool.owed_report(queue_id) is None
        assert spool.load(queue_id).reported == frozenset({1, 2})


@pytest.mark.parametrize("nth", range(1, 31))
def test_marks_of_one_report_that_a_cut_may_take_go_together(nth: int) -> None:
    engine = on_the_model()
    view, spool = seen(engine), recovered(engine)
    queue_id = accept(engine.intake())
    assert taken(spool) == [queue_id]
    spool.note({queue_id: [note(0), note(2)]})
    spool.mark({queue_id: {0: BOUNCED, 2: BOUNCED}})
    assert spool.publish_report(report_id(queue_id, 0), REPORT, TEXT)
    # The mark of the second recipient is in memory, where the failed sync left it, and nowhere else.
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"sync_content"}), path=queue_id))
    with pytest.raises(SpoolFault):
        spool.mark_reported(queue_id, (0, 2))
    spool.close()
    # The next start marks the first one, and comes no further.
    spool = engine.start()
    view.fail(Fault(nth, errno.EACCES, forever=True))
    with contextlib.suppress(OSError, SpoolFault):
        recover(spool)
    cut = MaildirEngine(engine.root, ModelDisk(view.platter.after_cut(())))
    spool = recovered(cut)

    owed = spool.owed_report(queue_id)
    assert owed is None or owed.report_id == report_id(queue_id, 0)


def test_a_reported_message_that_was_unreadable_ends_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = on_the_model()
    view = seen(engine)
    spool = recovered(engine)
    queue_id = accept(engine.intake())
    assert taken(spool) == [queue_id]
    spool.note({queue_id: [note(0), note(1), note(2)]})
    spool.mark({queue_id: dict.fromkeys(range(3), BOUNCED)})
    assert spool.publish_report(report_id(queue_id), REPORT, TEXT)
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"unlink"}), path=queue_id))
    with pytest.raises(SpoolFault):
        spool.finish([queue_id])
    view.fail(
        Fault(1, errno.EIO, kinds=frozenset({"read"}), path=engine.layout.queued(queue_id), forever=True)
    )
    spool = again(engine, spool)
    monkeypatch.setattr(ledger_file, "LINES_BEFORE_REWRITE", 0)
    relay(spool, report_id(queue_id))
    view.heal()

    spool = again(engine, spool)

    assert engine.layout.queued(queue_id) not in view.names(engine.layout.queued_folder(queue_id))
    assert (spool.totals().bounced, spool.totals().relayed) == (3, 1)
    assert recover(spool).entries == ()


def test_what_was_told_of_a_message_is_forgotten_with_it() -> None:
    engine = on_the_model()
    spool = recovered(engine)
    queue_id = accept(engine.intake())
    assert taken(spool) == [queue_id]
    assert spool.publish_report(warning_id(queue_id), REPORT, TEXT)
    assert taken(spool) == [warning_id(queue_id)]
    relay(spool, warning_id(queue_id))
    spool.mark({queue_id: dict.fromkeys(range(3), Status.DELETED)})
    spool.finish([queue_id])

    again(engine, spool).close()

    assert warning_id(queue_id).encode() not in engine.content_of(engine.layout.file("ledger"))
