"""The half of the suite about what is handed from listeners to the sender, and who may have it."""

import errno
import os
from dataclasses import replace

import pytest

from relay.clock import SECOND_NS
from relay.mail.envelope import Envelope, QueueId
from relay.queue.sorting import Sorter, SortingRule
from relay.spool.interface import (
    INLINE_BYTES,
    Absent,
    Adopted,
    Corrupt,
    LedgerAccount,
    SpoolBusy,
    Status,
    Totals,
)
from tests.engines.spool.engine import (
    CONTENT,
    ENVELOPE,
    RELAYED,
    Engine,
    accept,
    again,
    content_of,
    note,
    recovered,
    taken,
)
from tests.engines.spool.maildir_engine import on_the_model
from tests.engines.spool.recovering import recover


class HandingOver:
    """See tests.engines.spool.conformance."""

    def test_a_message_comes_out_as_it_went_in(self, engine: Engine) -> None:
        spool, queue_id = recovered(engine), accept(engine.intake())
        (entry,) = spool.take(10)
        message = spool.load(queue_id)

        assert message.envelope == ENVELOPE
        assert message.content == CONTENT
        assert b"".join(spool.content(queue_id)) == CONTENT
        assert message.shape.size_bytes == len(CONTENT)
        assert message.shape.eight_bit
        assert message.statuses == (Status.TODO,) * 3
        assert message.left == (0, 1, 2)
        assert not message.is_held
        assert not message.is_warned
        assert entry == message.entry
        assert (entry.queue_id, entry.recipients_left) == (queue_id, 3)
        assert entry.arrival_at_ns == ENVELOPE.arrival_at_ns

    @pytest.mark.parametrize(
        "envelope",
        [
            replace(ENVELOPE, reverse_path=""),
            replace(ENVELOPE, recipients=('"a b\\" c"@[IPv6:::1]', "T@example.com", "Dx@example.com")),
            replace(ENVELOPE, recipients=("jörg@bücher.example",), smtputf8=True),
            replace(ENVELOPE, helo='evil\n{"id": \udcff}\0', user=None, client="unknown[::1]"),
        ],
    )
    def test_envelopes_are_kept_to_the_byte(self, engine: Engine, envelope: Envelope) -> None:
        spool, queue_id = recovered(engine), accept(engine.intake(), envelope)
        assert taken(spool) == [queue_id]
        assert again(engine, spool).load(queue_id).envelope == envelope

    @pytest.mark.parametrize("size", [0, 3 * INLINE_BYTES])
    def test_a_message_is_in_the_same_lane_however_it_is_read(self, engine: Engine, size: int) -> None:
        sorter = Sorter(
            (
                SortingRule("list", headers=(("List-Id", ("*",)),)),
                SortingRule("many", recipients_above=len(ENVELOPE.recipients) - 1),
            )
        )
        spool = recovered(engine)
        listed = accept(engine.intake(), content=b"List-Id: <l>\r\n\r\n" + b"x\r\n" * (size // 3))
        plain = accept(engine.intake(), content=b"Subject: list-id\r\n\r\nList-Id: <l>\r\n")
        wanted = {listed: "list", plain: "many"}

        assert {entry.queue_id: entry.lane for entry in spool.take(10, sorter)} == wanted
        spool.hold(plain)
        # However far it got: what a lane asks of never changes.
        spool.mark({listed: {0: Status.RELAYED}})
        found = spool.sort([listed, plain, QueueId("0" * 16)], sorter)
        assert {queue_id: entry.lane for queue_id, entry in found.items()} == wanted
        spool.commit()
        spool.close()
        entries = recover(engine.start(), sorter).entries
        assert {entry.queue_id: entry.lane for entry in entries} == wanted

    @pytest.mark.parametrize("size", [0, 1, INLINE_BYTES, INLINE_BYTES + 1, 3 * INLINE_BYTES])
    @pytest.mark.parametrize("chunk", [0, 100_000])
    def test_content_of_any_length_is_kept_to_the_byte(self, engine: Engine, size: int, chunk: int) -> None:
        content = (bytes(range(256)) * (size // 256 + 1))[:size]
        spool, queue_id = recovered(engine), accept(engine.intake(), content=content, chunk=chunk)
        taken(spool)
        chunks = list(spool.content(queue_id))

        assert b"".join(chunks) == content
        assert all(len(piece) <= INLINE_BYTES for piece in chunks)
        assert b"".join(spool.content(queue_id, is_checked=False)) == content
        assert spool.load(queue_id).content == (content if size <= INLINE_BYTES else None)

    def test_an_unknown_message_is_absent_and_the_others_are_marked(self, engine: Engine) -> None:
        spool, queue_id, unknown = recovered(engine), accept(engine.intake()), QueueId("0" * 16)
        taken(spool)
        for call in (spool.load, spool.hold, spool.release, content_of(spool)):
            with pytest.raises(Absent):
                call(unknown)
        with pytest.raises(Absent):
            spool.mark({unknown: {0: RELAYED}, queue_id: {0: RELAYED}})

        assert spool.notes(unknown) == []
        assert again(engine, spool).load(queue_id).left == (1, 2)

    def test_only_one_sender_has_the_spool_and_the_other_is_told_who(self, engine: Engine) -> None:
        spool = recovered(engine)
        for _ in range(2):
            with pytest.raises(SpoolBusy, match=rf"\b{os.getpid()}\b"):
                engine.start()
        spool.close()
        engine.start().close()

    def test_messages_are_taken_oldest_first_and_so_many_at_a_time(self, engine: Engine) -> None:
        spool, intakes = recovered(engine), [engine.intake(), engine.intake()]
        accepted = []
        for number in range(8):
            accepted.append(accept(intakes[number % 2]))
            engine.clock.advance(SECOND_NS)
        assert accepted == sorted(set(accepted))
        assert spool.accepted_count() == 8
        assert taken(spool, 3) == accepted[:3]
        accepted.append(accept(intakes[0]))
        assert taken(spool, 4) == accepted[3:7]
        # What came in while some were still waiting is not forgotten when they are taken.
        assert spool.accepted_count() == 2
        assert taken(spool, 4) == accepted[7:]
        assert (taken(spool), spool.accepted_count()) == ([], 0)
        assert [entry.queue_id for entry in recover(again(engine, spool)).entries] == accepted

    def test_a_batch_is_accepted_as_one(self, engine: Engine) -> None:
        spool, intake = recovered(engine), engine.intake()
        drafts = [intake.draft() for _ in range(20)]
        for number, draft in enumerate(drafts):
            draft.append(b"message %d" % number)
        assert intake.accept([]) == []
        assert intake.accept([(draft, ENVELOPE) for draft in drafts]) == [None] * 20
        assert taken(spool) == [draft.queue_id for draft in drafts]
        assert {spool.load(draft.queue_id).content for draft in drafts} == {
            b"message %d" % n for n in range(20)
        }

    def test_one_bad_envelope_of_a_batch_is_refused_alone(self, engine: Engine) -> None:
        spool, intake = recovered(engine), engine.intake()
        bad: list[tuple[str, ...]] = [("r@example.com\nDx",), (), ("\ud800@example.com",)]
        envelopes = [ENVELOPE, *(replace(ENVELOPE, recipients=addresses) for addresses in bad)]
        drafts = [intake.draft() for _ in envelopes]
        for draft in drafts:
            draft.append(CONTENT)
        first, *others = intake.accept(list(zip(drafts, envelopes, strict=True)))
        assert first is None
        assert [error and error.errno for error in others] == [errno.EINVAL] * 3
        assert taken(spool) == [drafts[0].queue_id]

    def test_a_discarded_draft_leaves_nothing(self, engine: Engine) -> None:
        spool, intake = recovered(engine), engine.intake()
        for spills in (0, 1, 2):
            draft = intake.draft()
            for _ in range(spills):
                draft.append(b"x" * 1000)
                intake.spill(draft)
                assert draft.buffered_bytes == 0
            draft.append(b"y")
            assert draft.buffered_bytes == 1
            intake.discard(draft)
            intake.discard(draft)
        assert taken(spool) == []
        spool.close()
        recovery = recover(engine.start())
        assert (recovery.entries, recovery.abandoned, recovery.corrupt) == ((), 0, 0)

    @pytest.mark.parametrize("size", [1000, 3 * INLINE_BYTES])
    def test_a_damaged_message_is_set_aside_and_the_rest_goes_on(self, engine: Engine, size: int) -> None:
        spool, intake = recovered(engine), engine.intake()
        damaged, whole = accept(intake, content=bytes(size)), accept(intake)
        taken(spool)
        # What was just taken may be in memory, where no damage reaches it.
        spool = again(engine, spool)
        engine.damage(damaged)
        # Not one octet: an upstream could refuse it, and its sender would be blamed.
        with pytest.raises(Corrupt):
            assert (spool.load(damaged).content, any(spool.content(damaged))) == (None, False)
        with pytest.raises(Absent):
            spool.load(damaged)

        assert [name for name, _ in engine.told] == [damaged]
        assert spool.corrupt_count() == 1
        assert spool.load(whole).left == (0, 1, 2)
        spool.mark({whole: dict.fromkeys(range(3), RELAYED)})
        spool.finish([whole])
        spool.commit()
        for _ in range(2):
            spool.close()
            spool = engine.start()
            recovery = recover(spool)
            assert (recovery.corrupt, recovery.entries, recovery.missing_recipients) == (1, (), 0)
            # Those of the damaged one are counted as still there: it is in nobody's hands but ours.
            assert spool.totals() == Totals(accepted=6, relayed=3, queued=3)

    def test_content_that_is_damaged_while_it_is_read_stops_before_the_damage(self, engine: Engine) -> None:
        spool, queue_id = recovered(engine), accept(engine.intake(), content=bytes(3 * INLINE_BYTES))
        taken(spool)
        chunks = spool.content(queue_id)
        assert next(filter(None, chunks)) == bytes(INLINE_BYTES)
        engine.damage(queue_id)
        with pytest.raises(Corrupt):
            b"".join(chunks)
        assert spool.corrupt_count() == 1

    def test_a_message_of_another_spool_is_adopted_as_it_is(self, engine: Engine) -> None:
        other = on_the_model()
        source, queue_id, held = recovered(other), accept(other.intake()), accept(other.intake())
        taken(source)
        source.note({queue_id: [note(1)]})
        source.mark({queue_id: {0: RELAYED, 1: Status.BOUNCED}})
        source.mark_warned(queue_id)
        source.hold(held)
        spool = recovered(engine)
        messages = [source.load(each) for each in (queue_id, held)]
        adopted = [Adopted(m, source.notes(m.queue_id), source.content(m.queue_id)) for m in messages]

        spool.adopt(adopted, LedgerAccount(Totals(accepted=5, relayed=5), frozenset(), {}))
        for _ in range(2):
            assert [spool.load(each) for each in (queue_id, held)] == messages
            assert spool.notes(queue_id) == [note(1)]
            assert spool.owed_report(queue_id) == source.owed_report(queue_id)
            assert spool.totals() == Totals(accepted=11, relayed=6, bounced=1, queued=4)
            spool = again(engine, spool)
        # What is here already stays as it is.
        spool.mark({queue_id: {2: RELAYED}})
        spool.adopt(adopted)
        assert again(engine, spool).load(queue_id).left == ()

    def test_what_was_adopted_and_not_committed_is_whole_or_not_there(self, engine: Engine) -> None:
        other = on_the_model()
        source, queue_id = recovered(other), accept(other.intake(), content=bytes(2 * INLINE_BYTES))
        taken(source)
        source.hold(queue_id)
        message = source.load(queue_id)
        spool = recovered(engine)
        spool.adopt([Adopted(message, (), source.content(queue_id))])
        spool.close()
        spool = engine.start()
        found = recover(spool).entries
        assert found in ((), (message.entry,))
        if found:
            assert b"".join(spool.content(queue_id)) == bytes(2 * INLINE_BYTES)
        spool.adopt([Adopted(message, (), source.content(queue_id))])
        assert again(engine, spool).load(queue_id) == message

    def test_room_is_told(self, engine: Engine) -> None:
        spool = recovered(engine)
        assert spool.free()[0] > 0
        assert engine.intake().free()[0] > 0
        assert spool.clean_up() == 0
