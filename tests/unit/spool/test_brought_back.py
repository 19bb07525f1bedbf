"""What somebody brought back from a backup after its end is to be relayed, and is marked as any other."""

import errno
from collections.abc import Callable

import pytest

from relay.mail.envelope import QueueId
from relay.spool.identity import report_id, warning_id
from relay.spool.interface import Spool
from tests.fakes.disk import Fault, ModelDisk
from tests.unit.spool.engine import (
    BOUNCED,
    ENVELOPE,
    RELAYED,
    accept,
    again,
    is_balanced,
    note,
    recovered,
    taken,
)
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_model
from tests.unit.spool.recovering import recover


def ended(engine: MaildirEngine, spool: Spool, queue_id: QueueId) -> bytes:
    """Relay and end a message in new/; return its file as it was."""
    assert isinstance(engine.disk, ModelDisk)
    backup = engine.content_of(engine.layout.accepted(queue_id))
    assert taken(spool) == [queue_id]
    spool.mark({queue_id: dict.fromkeys(spool.load(queue_id).left, RELAYED)})
    spool.finish([queue_id])
    return backup


def relays_it_once(engine: MaildirEngine, spool: Spool, queue_id: QueueId) -> None:
    """Mark what is left of a message; end it after a start that finds each mark."""
    spool.load(queue_id)
    spool.note({queue_id: [note(0)]})
    spool.mark({queue_id: {0: BOUNCED}})
    assert spool.notes(queue_id) == [note(0)]
    spool = again(engine, spool)
    assert spool.load(queue_id).statuses[0] is BOUNCED
    spool.mark({queue_id: dict.fromkeys(spool.load(queue_id).left, RELAYED)})
    spool.finish([queue_id])
    assert is_balanced(spool.totals())
    spool = again(engine, spool)
    assert is_balanced(spool.totals())
    assert recover(spool).entries == ()


def while_it_runs(_engine: MaildirEngine, spool: Spool, bring: Callable[[], None]) -> Spool:
    bring()
    spool.take(9)
    return spool


def before_a_start(engine: MaildirEngine, spool: Spool, bring: Callable[[], None]) -> Spool:
    spool.close()
    bring()
    return recovered(engine)


def before_a_start_on_a_full_disk(engine: MaildirEngine, spool: Spool, bring: Callable[[], None]) -> Spool:
    assert isinstance(engine.disk, ModelDisk)
    spool.close()
    bring()
    view = engine.disk.another()
    another, engine.disk.another = engine.disk.another, lambda: view  # type: ignore[method-assign]  # the one that is full
    view.fail(Fault(1, errno.ENOSPC, path="/ledger.new", forever=True))
    spool = recovered(engine)
    view.heal()
    engine.disk.another = another  # type: ignore[method-assign]  # the one that is full
    return spool


@pytest.mark.parametrize("when", [while_it_runs, before_a_start, before_a_start_on_a_full_disk])
def test_a_message_brought_back_after_its_end_is_marked(
    when: Callable[[MaildirEngine, Spool, Callable[[], None]], Spool],
) -> None:
    engine = on_the_model()
    spool = recovered(engine)
    queue_id = accept(engine.intake())
    backup = ended(engine, spool, queue_id)

    spool = when(engine, spool, lambda: engine.plant(engine.layout.accepted(queue_id), backup))

    relays_it_once(engine, spool, queue_id)


@pytest.mark.parametrize("when", [while_it_runs, before_a_start, before_a_start_on_a_full_disk])
def test_a_warning_brought_back_beside_its_message_is_marked(
    when: Callable[[MaildirEngine, Spool, Callable[[], None]], Spool],
) -> None:
    engine = on_the_model()
    spool = recovered(engine)
    queue_id = accept(engine.intake())
    assert taken(spool) == [queue_id]
    spool.publish_report(warning_id(queue_id), ENVELOPE, b"Subject: late\r\n\r\n")
    backup = ended(engine, spool, warning_id(queue_id))

    spool = when(engine, spool, lambda: engine.plant(engine.layout.accepted(warning_id(queue_id)), backup))

    spool.mark({queue_id: dict.fromkeys(spool.load(queue_id).left, RELAYED)})
    spool.finish([queue_id])
    relays_it_once(engine, spool, warning_id(queue_id))


@pytest.mark.parametrize("when", [while_it_runs, before_a_start, before_a_start_on_a_full_disk])
def test_a_message_back_after_its_report_is_reported_again(
    when: Callable[[MaildirEngine, Spool, Callable[[], None]], Spool],
) -> None:
    engine = on_the_model()
    spool = recovered(engine)
    queue_id = accept(engine.intake())
    backup = ended(engine, spool, queue_id)
    assert spool.publish_report(report_id(queue_id), ENVELOPE, b"Subject: not relayed\r\n\r\n")
    ended(engine, spool, report_id(queue_id))

    spool = when(engine, spool, lambda: engine.plant(engine.layout.accepted(queue_id), backup))

    assert spool.publish_report(report_id(queue_id), ENVELOPE, b"Subject: not relayed\r\n\r\n")
