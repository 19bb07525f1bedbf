"""What every engine of the spool must do.  An engine's tests inherit `Conformance` and say how to make one.

This part: what becomes of a message in the sender's hands.  The others: tests.engines.spool.handing_over,
tests.engines.spool.reading_on.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.mail.header import NO_NAMES, Names
from relay.spool.identity import report_id, warning_id
from relay.spool.interface import (
    DEFERRED,
    Absent,
    OwedReport,
    Spool,
    SpoolFault,
    Status,
    Totals,
)
from tests.engines.spool.engine import (
    BOUNCED,
    CONTENT,
    DELETED,
    ENVELOPE,
    EXPIRED,
    RELAYED,
    Engine,
    accept,
    again,
    content_of,
    is_balanced,
    note,
    recovered,
    taken,
)
from tests.engines.spool.handing_over import HandingOver
from tests.engines.spool.reading_on import ReadingOn
from tests.engines.spool.recovering import recover
from tests.fakes.clock import START_WALL_NS


def settle_all(spool: Spool, queue_id: QueueId) -> bool:
    """Call all that ends a message of three recipients, one of which failed; not committed."""
    spool.note({queue_id: [note(1)]})
    spool.mark({queue_id: {0: RELAYED, 1: BOUNCED, 2: RELAYED}})
    report = replace(ENVELOPE, reverse_path="", recipients=("list-owner@example.org",))
    is_new = spool.publish_report(report_id(queue_id), report, b"Subject: sorry\r\n")
    spool.finish([queue_id])
    return is_new


class Conformance(HandingOver, ReadingOn):
    """The suite."""

    def test_ten_thousand_recipients_go_on_where_they_stopped(self, engine: Engine) -> None:
        everybody = tuple(f"member{number}@example.com" for number in range(10_000))
        spool = recovered(engine)
        queue_id = accept(engine.intake(), replace(ENVELOPE, recipients=everybody))
        taken(spool)
        done = set(range(0, 10_000, 3))
        spool.mark({queue_id: dict.fromkeys(done, RELAYED)})
        spool.mark({queue_id: {9_998: BOUNCED}})

        message = again(engine, spool).load(queue_id)
        assert message.envelope.recipients == everybody
        assert message.left == tuple(i for i in range(10_000) if i not in done and i != 9_998)
        assert message.entry.recipients_left == len(message.left)

    @pytest.mark.parametrize("size_bytes", [0, 300_000])
    def test_the_names_of_each_message_are_known(self, engine: Engine, size_bytes: int) -> None:
        content = (
            b"Received: by us id 1x\r\nReceived: by them (Postfix) id 4XYZ; today\r\n"
            b"message-id:\r\n <1@x>\r\nSubject: =?utf-8?q?Z=C3=BCrich?= list\r\n\r\n"
        ) + b"y" * size_bytes
        names = Names("<1@x>", "Zürich list", "4XYZ")
        spool = recovered(engine)
        queue_id = accept(engine.intake(), content=content)
        without = accept(engine.intake(), content=b"\r\nMessage-ID: <2@x>\r\n")

        entries = {entry.queue_id: entry.names for entry in spool.take(2)}
        assert entries == {queue_id: names, without: NO_NAMES}
        assert spool.load(queue_id).names == names
        spool.hold(queue_id)
        spool = again(engine, spool)
        assert spool.load(queue_id).names == names
        assert spool.load(without).names == NO_NAMES
        entries = {entry.queue_id: entry.names for entry in recover(spool).entries}
        assert entries == {queue_id: names, without: NO_NAMES}

    def test_every_status_survives_a_start_and_is_counted(self, engine: Engine) -> None:
        everybody = tuple(f"r{number}@example.com" for number in range(5))
        spool = recovered(engine)
        queue_id = accept(engine.intake(), replace(ENVELOPE, recipients=everybody))
        taken(spool)
        spool.mark({queue_id: {0: RELAYED, 1: BOUNCED, 2: EXPIRED, 3: DELETED}})
        expected = Totals(accepted=5, relayed=1, bounced=1, expired=1, deleted=1, queued=1)
        assert spool.totals() == expected
        spool = again(engine, spool)
        assert spool.totals() == expected
        assert spool.load(queue_id).statuses == (RELAYED, BOUNCED, EXPIRED, DELETED, Status.TODO)

        spool.mark({queue_id: {4: RELAYED}})
        spool.finish([queue_id])
        expected = Totals(accepted=5, relayed=2, bounced=1, expired=1, deleted=1, queued=0)
        assert spool.totals() == expected
        for _ in range(3):
            spool = again(engine, spool)
            assert spool.totals() == expected

    def test_recovering_twice_is_recovering_once(self, engine: Engine) -> None:
        spool = engine.start()
        first = [accept(engine.intake()) for _ in range(3)]
        before = recover(spool)
        taken(spool)
        spool.mark({first[0]: {1: RELAYED}})
        spool.hold(first[1])
        spool.commit()
        once = recover(spool)
        twice = recover(spool)

        assert {entry.queue_id for entry in before.entries} <= set(first)
        assert [entry.queue_id for entry in once.entries] == sorted(first)
        assert once == twice
        assert spool.totals() == Totals(accepted=9, relayed=1, queued=8)
        assert again(engine, spool).totals() == Totals(accepted=9, relayed=1, queued=8)

    def test_what_is_finished_is_gone_for_ever(self, engine: Engine) -> None:
        spool, queue_id = recovered(engine), accept(engine.intake())
        taken(spool)
        spool.note({queue_id: [note(1)]})
        spool.mark({queue_id: {0: RELAYED, 1: BOUNCED, 2: RELAYED}})
        spool.finish([queue_id])

        for _ in range(2):
            assert spool.notes(queue_id) == []
            for call in (spool.load, spool.hold, spool.release, content_of(spool)):
                with pytest.raises(Absent):
                    call(queue_id)
            spool = again(engine, spool)
        assert spool.take(10) == []

    def test_a_message_with_recipients_to_do_cannot_be_finished(self, engine: Engine) -> None:
        spool, queue_id = recovered(engine), accept(engine.intake())
        taken(spool)
        spool.mark({queue_id: {0: RELAYED, 1: RELAYED}})
        with pytest.raises(AssertionError):
            spool.finish([queue_id])

        assert again(engine, spool).load(queue_id).left == (2,)

    def test_notes_tell_the_last_word_on_each_recipient(self, engine: Engine) -> None:
        spool, queue_id, other = recovered(engine), accept(engine.intake()), accept(engine.intake())
        taken(spool)
        assert spool.notes(queue_id) == []
        spool.note({queue_id: [note(2, None), note(0)], other: [note(1, "554 other")]})
        spool.note({queue_id: [note(2, "451 later", "expired")]})
        spool.note({})

        spool = again(engine, spool)
        assert spool.notes(queue_id) == [note(0), note(2, "451 later", "expired")]
        assert spool.notes(other) == [note(1, "554 other")]

    def test_the_last_reply_of_a_deferred_recipient_is_kept(self, engine: Engine) -> None:
        spool, queue_id = recovered(engine), accept(engine.intake())
        taken(spool)
        spool.note({queue_id: [note(1)]})
        for text in ("450 later", "452 Mailbox full"):
            spool.keep_replies(queue_id, [note(0, text, DEFERRED)])
        spool.keep_replies(QueueId("0" * 16), [note(0, "450 later", DEFERRED)])
        for _ in range(2):
            assert spool.notes(queue_id) == [note(0, "452 Mailbox full", DEFERRED), note(1)]
            assert [one.attempts for one in spool.notes(queue_id)] == [2, 1]
            spool = again(engine, spool)
        spool.mark({queue_id: dict.fromkeys(range(3), RELAYED)})
        spool.finish([queue_id])
        assert spool.notes(queue_id) == []

    @pytest.mark.parametrize("id_of", [report_id, warning_id])
    def test_a_report_is_queued_once(self, engine: Engine, id_of: Callable[[QueueId], QueueId]) -> None:
        spool, queue_id = recovered(engine), accept(engine.intake())
        taken(spool)
        own, envelope = (
            id_of(queue_id),
            replace(ENVELOPE, reverse_path="", recipients=("list-owner@example.org",)),
        )
        assert spool.publish_report(own, envelope, b"Subject: sorry\r\n")
        assert not spool.publish_report(own, envelope, b"Subject: again\r\n")
        assert taken(spool) == [own]
        assert not spool.publish_report(own, envelope, b"Subject: again\r\n")
        spool.hold(own)
        spool = again(engine, spool)
        assert not spool.publish_report(own, envelope, b"Subject: again\r\n")

        report = spool.load(own)
        assert (report.envelope, report.content) == (envelope, b"Subject: sorry\r\n")
        assert spool.load(queue_id).left == (0, 1, 2)

    @pytest.mark.parametrize("id_of", [report_id, warning_id])
    def test_a_relayed_report_is_not_queued_again_while_its_message_is_here(
        self, engine: Engine, id_of: Callable[[QueueId], QueueId]
    ) -> None:
        """As where a kill, or a full disk, comes between a report and the end of its message."""
        spool, queue_id = recovered(engine), accept(engine.intake())
        taken(spool)
        spool.note({queue_id: [note(0), note(1), note(2)]})
        if id_of is report_id:
            spool.mark({queue_id: dict.fromkeys(range(3), BOUNCED)})
        own, envelope = id_of(queue_id), replace(ENVELOPE, reverse_path="", recipients=("x@example.com",))
        assert spool.publish_report(own, envelope, b"Subject: sorry\r\n")
        spool = again(engine, spool)
        taken(spool)
        spool.mark({own: {0: RELAYED}})
        spool.finish([own])
        for _ in range(2):
            spool = again(engine, spool)
            assert not spool.publish_report(own, envelope, b"Subject: sorry\r\n")
        if left := spool.load(queue_id).left:
            spool.mark({queue_id: dict.fromkeys(left, RELAYED)})
        spool.finish([queue_id])
        spool = again(engine, spool)
        assert (taken(spool), recover(spool).entries) == ([], ())

    def test_a_reported_failure_is_owed_no_report_any_more(self, engine: Engine) -> None:
        spool, queue_id = recovered(engine), accept(engine.intake())
        taken(spool)
        assert spool.owed_report(queue_id) is None
        spool.mark({queue_id: {1: BOUNCED, 2: EXPIRED}})
        owed = OwedReport(report_id(queue_id, 1), (1, 2), (BOUNCED, EXPIRED))
        assert spool.owed_report(queue_id) == owed
        spool = again(engine, spool)
        assert spool.owed_report(queue_id) == spool.load(queue_id).owed_report == owed

        for _ in range(2):
            spool.mark_reported(queue_id, owed.indices)
            # A fate that is told of is the same fate.
            spool.mark({queue_id: {1: BOUNCED}})
            assert spool.owed_report(queue_id) is None
            spool = again(engine, spool)
        message = spool.load(queue_id)
        assert (message.statuses, message.reported) == ((Status.TODO, BOUNCED, EXPIRED), frozenset({1, 2}))
        with pytest.raises(SpoolFault):
            spool.mark({queue_id: {1: RELAYED}})
        spool.mark({queue_id: {0: BOUNCED}})
        assert spool.owed_report(queue_id) == OwedReport(report_id(queue_id), (0,), (BOUNCED,))
        assert again(engine, spool).totals() == Totals(accepted=3, bounced=2, expired=1)

    def test_a_report_that_a_crash_left_unmarked_is_not_owed(self, engine: Engine) -> None:
        spool, queue_id = recovered(engine), accept(engine.intake())
        taken(spool)
        spool.mark({queue_id: {1: BOUNCED}})
        owed = spool.owed_report(queue_id)
        assert owed is not None
        report = replace(ENVELOPE, reverse_path="", recipients=("list-owner@example.org",))
        assert spool.publish_report(owed.report_id, report, b"Subject: sorry\r\n")

        spool.commit()
        spool.close()
        spool = engine.start()
        (entry,) = [e for e in recover(spool).entries if e.queue_id == queue_id]
        assert not entry.owes_report
        spool.mark({queue_id: {0: BOUNCED}})
        assert spool.owed_report(queue_id) == OwedReport(report_id(queue_id, 0), (0,), (BOUNCED,))

    def test_mail_from_nobody_owes_no_report(self, engine: Engine) -> None:
        spool, queue_id = recovered(engine), accept(engine.intake(), replace(ENVELOPE, reverse_path=""))
        taken(spool)
        spool.mark({queue_id: {1: BOUNCED}})

        assert spool.owed_report(queue_id) is None
        assert not again(engine, spool).load(queue_id).entry.owes_report

    def test_a_held_message_stays_held_until_it_is_released(self, engine: Engine) -> None:
        spool, queue_id = recovered(engine), accept(engine.intake())
        taken(spool)
        for is_held, change in ((True, spool.hold), (False, spool.release), (True, spool.hold)):
            change(queue_id)
            assert spool.load(queue_id).is_held == spool.is_held(queue_id) == is_held
            change(queue_id)
            assert spool.load(queue_id).is_held == spool.is_held(queue_id) == is_held

        spool.commit()
        spool.close()
        spool = engine.start()
        (entry,) = recover(spool).entries
        assert entry.is_held
        spool.mark({queue_id: {0: RELAYED, 1: BOUNCED, 2: RELAYED}})
        assert b"".join(spool.content(queue_id)) == CONTENT
        spool.release(queue_id)
        spool.hold(queue_id)
        spool.finish([queue_id])
        assert again(engine, spool).totals() == Totals(accepted=3, relayed=2, bounced=1)

    def test_a_postponed_message_remembers_when_it_is_due(self, engine: Engine) -> None:
        spool, queue_id = recovered(engine), accept(engine.intake())
        taken(spool)
        spool.mark({queue_id: {0: RELAYED}})
        spool.postpone(queue_id, START_WALL_NS + 300 * SECOND_NS)
        spool.postpone(QueueId("0" * 16), START_WALL_NS)
        for _ in range(2):
            assert spool.load(queue_id).next_attempt_at_ns == START_WALL_NS + 300 * SECOND_NS
            spool = again(engine, spool)

    def test_that_the_sender_was_warned_is_remembered(self, engine: Engine) -> None:
        spool, queue_id = recovered(engine), accept(engine.intake())
        taken(spool)
        spool.mark_warned(queue_id)
        spool.mark_warned(queue_id)
        for _ in range(2):
            assert spool.load(queue_id).is_warned
            assert spool.load(queue_id).content == CONTENT
            spool = again(engine, spool)

    def test_what_changes_state_may_be_called_again(self, engine: Engine) -> None:
        spool, queue_id = recovered(engine), accept(engine.intake())
        taken(spool)
        marks = {queue_id: {0: RELAYED, 1: BOUNCED, 2: DELETED}}
        for _ in range(2):
            spool.note({queue_id: [note(1)]})
            spool.mark(marks)
        for _ in range(2):
            spool.finish([queue_id])
            spool.note({queue_id: [note(1)]})
            spool.mark(marks)
        assert spool.totals() == Totals(accepted=3, relayed=1, bounced=1, deleted=1)
        assert again(engine, spool).totals() == Totals(accepted=3, relayed=1, bounced=1, deleted=1)

    def test_a_group_is_there_whole_or_not_at_all(self, engine: Engine) -> None:
        spool, queue_id, other = recovered(engine), accept(engine.intake()), accept(engine.intake())
        taken(spool)
        spool.commit()
        settle_all(spool, queue_id)
        spool.hold(other)
        spool.postpone(other, START_WALL_NS)
        # Reads see what was called.
        assert spool.load(other).is_held
        assert spool.notes(queue_id) == []
        with pytest.raises(Absent):
            spool.load(queue_id)
        assert (spool.totals().relayed, spool.totals().bounced) == (2, 1)
        assert is_balanced(spool.totals())

        spool.close()
        spool = recovered(engine)
        spool.take(9)
        if spool.load(other).is_held:
            assert spool.load(report_id(queue_id)).left == (0,)
            assert spool.totals() == Totals(accepted=7, relayed=2, bounced=1, queued=4)
        else:
            assert spool.load(queue_id).left == (0, 1, 2)
            assert spool.notes(queue_id) == []
            assert spool.totals() == Totals(accepted=6, queued=6)

    def test_a_group_that_was_lost_may_be_called_again(self, engine: Engine) -> None:
        spool, queue_id = recovered(engine), accept(engine.intake())
        taken(spool)
        settle_all(spool, queue_id)
        spool.close()
        spool = recovered(engine)
        spool.take(9)
        if spool.totals().relayed == 0:
            assert settle_all(spool, queue_id)
        spool = again(engine, spool)
        spool.take(9)
        assert spool.load(report_id(queue_id)).content == b"Subject: sorry\r\n"
        assert spool.totals() == Totals(accepted=4, relayed=2, bounced=1, queued=1)

    def test_a_fate_is_final(self, engine: Engine) -> None:
        spool, queue_id = recovered(engine), accept(engine.intake())
        taken(spool)
        spool.mark({queue_id: {1: RELAYED}})
        with pytest.raises(SpoolFault):
            spool.mark({queue_id: {1: BOUNCED}})

        assert again(engine, spool).load(queue_id).statuses == (Status.TODO, RELAYED, Status.TODO)
