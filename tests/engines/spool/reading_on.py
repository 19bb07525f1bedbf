"""The third part of the suite of the engines: what may be done while a start still reads the queue."""

from dataclasses import replace

from relay.mail.envelope import QueueId
from relay.spool.identity import report_id
from relay.spool.interface import Intake, Spool, Totals
from tests.engines.spool.engine import (
    BOUNCED,
    CONTENT,
    ENVELOPE,
    RELAYED,
    Engine,
    accept,
    again,
    is_balanced,
    note,
    recovered,
    taken,
)
from tests.engines.spool.recovering import read_on, recover

MANY = 600
"""Messages of more than one batch, whatever the engine."""
TO_ONE = replace(ENVELOPE, recipients=("alice@example.com",))


class ReadingOn:
    def test_a_start_yields_every_message_once_oldest_first(self, engine: Engine) -> None:
        spool, queue_ids = _restarted(engine)
        assert spool.unread_count() == 0
        found: list[list[QueueId]] = []
        unread = []
        for batch in spool.recover():
            found.append([entry.queue_id for entry in batch])
            unread.append(spool.unread_count())
        assert [queue_id for batch in found for queue_id in batch] == queue_ids
        assert len(found) > 1
        assert unread == sorted(unread, reverse=True)
        assert unread[0] > 0
        assert spool.unread_count() == 0

    def test_what_ends_while_a_start_reads_stays_ended(self, engine: Engine) -> None:
        spool, queue_ids = _restarted(engine)
        walk = spool.recover()
        first, held, bounced, *_ = [entry.queue_id for entry in next(walk)]
        spool.mark({first: {0: RELAYED}})
        spool.finish([first])
        spool.hold(held)
        spool.note({bounced: [note(0)]})
        spool.mark({bounced: {0: BOUNCED}})
        spool.publish_report(report_id(bounced), replace(ENVELOPE, reverse_path=""), CONTENT)
        spool.finish([bounced])
        assert spool.totals().imbalance == 0

        recovery = read_on(walk)

        assert not {first, held, bounced}.intersection(entry.queue_id for entry in recovery.entries)
        assert (recovery.missing_recipients, recovery.corrupt, recovery.held) == (0, 0, 0)
        assert taken(spool) == [report_id(bounced)]
        assert taken(spool) == []
        # The report has three recipients.
        expected = Totals(accepted=MANY + 3, relayed=1, bounced=1, queued=MANY - 2 + 3)
        assert spool.totals() == expected
        spool.commit()
        spool = again(engine, spool)
        assert spool.totals() == expected
        after = {entry.queue_id: entry.is_held for entry in recover(spool).entries}
        assert after.keys() == {*queue_ids, report_id(bounced)} - {first, bounced}
        assert [queue_id for queue_id, is_held in after.items() if is_held] == [held]

    def test_new_mail_is_taken_once_while_a_start_reads(self, engine: Engine) -> None:
        spool, queue_ids = _restarted(engine)
        intake = engine.intake()
        early = accept(intake, TO_ONE)
        walk = spool.recover()
        yielded = [entry.queue_id for entry in next(walk)]
        late = accept(intake, TO_ONE)
        came = taken(spool, MANY)
        spool.mark({late: {0: RELAYED}})
        spool.finish([late])

        recovery = read_on(walk)

        met = yielded + came + [entry.queue_id for entry in recovery.entries]
        assert sorted(met) == sorted([*queue_ids, early, late])
        assert recovery.missing_recipients == 0
        assert spool.totals() == Totals(accepted=MANY + 2, relayed=1, queued=MANY + 1)

    def test_a_start_that_is_given_up_changes_nothing(self, engine: Engine) -> None:
        spool, queue_ids = _restarted(engine)
        walk = spool.recover()
        first, *_ = next(walk)
        spool.mark({first.queue_id: {0: RELAYED}})
        spool.finish([first.queue_id])
        spool.commit()
        walk.close()
        assert is_balanced(spool.totals())
        spool.close()

        spool = engine.start()
        recovery = recover(spool)
        assert [entry.queue_id for entry in recovery.entries] == queue_ids[1:]
        assert recovery.missing_recipients == 0
        assert spool.totals() == Totals(accepted=MANY, relayed=1, queued=MANY - 1)


def _restarted(engine: Engine) -> tuple[Spool, list[QueueId]]:
    """Return a spool that has many messages and has not recovered, and their ids, the oldest first."""
    spool = recovered(engine)
    queue_ids = _accept_many(engine.intake())
    while taken(spool, MANY):
        pass
    spool.close()
    return engine.start(), queue_ids


def _accept_many(intake: Intake) -> list[QueueId]:
    drafts = [intake.draft() for _ in range(MANY)]
    for draft in drafts:
        draft.append(CONTENT)
    assert not any(intake.accept([(draft, TO_ONE) for draft in drafts]))
    return [draft.queue_id for draft in drafts]
