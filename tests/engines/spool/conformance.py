"""What every engine of the spool must do. An engine's tests inherit `Conformance` and supply the engine."""

import errno
import os
from dataclasses import replace

import pytest

from relay.clock import SECOND_NS
from relay.mail.envelope import Envelope, QueueId
from relay.spool.base import READ_AGAIN_NS
from relay.spool.identity import report_id, warning_id
from relay.spool.interface import (
    HEAD_BYTES,
    INLINE_BYTES,
    Absent,
    Adopted,
    Corrupt,
    Full,
    Message,
    Report,
    Settlement,
    Spool,
    SpoolBusy,
    Status,
    Unavailable,
)
from tests.engines.spool.engine import (
    BOUNCED,
    CONTENT,
    DEFERRED_NS,
    DELETED,
    ENVELOPE,
    EVERY,
    EXPIRED,
    RELAYED,
    REPORT,
    Engine,
    accept,
    again,
    bounced,
    claimed,
    ended,
    fill,
    note,
    on_the_model,
    read,
    report_of,
    settle,
    warning_of,
)
from tests.fakes.disk import Fault, ModelDisk


def begun(engine: Engine, *contents: bytes) -> tuple[Spool, list[QueueId]]:
    spool, intake = engine.start(), engine.intake()
    queue_ids = [accept(intake, content=content) for content in contents]
    assert [message.queue_id for message in claimed(spool)] == queue_ids
    return spool, queue_ids


def unhinted(messages: list[Message]) -> list[Message]:
    return [message._replace(next_attempt_at_ns=None) for message in messages]


def watched(engine: Engine) -> ModelDisk:
    assert isinstance(engine.disk, ModelDisk)
    view = engine.disk.another()
    engine.view = lambda: view  # type: ignore[method-assign]  # the view whose calls fail
    return view


class Conformance:
    """The suite for any engine and any disk."""

    def test_a_message_comes_out_as_it_went_in(self, engine: Engine) -> None:
        spool, (queue_id,) = begun(engine, CONTENT)
        message = read(spool, queue_id)
        assert (message.envelope, message.content) == (ENVELOPE, CONTENT)
        assert b"".join(spool.content(queue_id)) == CONTENT
        assert (message.shape.size_bytes, message.shape.eight_bit) == (len(CONTENT), True)
        assert (message.statuses, message.left) == ((Status.TODO,) * 3, (0, 1, 2))
        assert (message.is_held, message.is_warned, message.told) == (False, False, frozenset())
        (found,) = again(engine, spool)[1]
        # On a real disk the kernel's clock runs on; the engine may take its time stamp for a next attempt.
        assert unhinted([found]) == unhinted([message])

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
        spool, queue_id = engine.start(), accept(engine.intake(), envelope)
        for _ in range(2):
            (message,) = claimed(spool)
            assert (message.queue_id, message.envelope) == (queue_id, envelope)
            spool.close()
            spool = engine.start()

    @pytest.mark.parametrize("size", [0, 1, HEAD_BYTES + 1, INLINE_BYTES, INLINE_BYTES + 1, 3 * INLINE_BYTES])
    @pytest.mark.parametrize("chunk", [0, 100_000])
    def test_content_of_any_length_is_kept_to_the_byte(self, engine: Engine, size: int, chunk: int) -> None:
        content = (bytes(range(256)) * (size // 256 + 1))[:size]
        spool, queue_id = engine.start(), accept(engine.intake(), content=content, chunk=chunk)
        (message,) = claimed(spool)
        chunks = list(spool.content(queue_id))
        assert b"".join(chunks) == content
        assert all(len(piece) <= INLINE_BYTES for piece in chunks)
        assert message.content == (content if size <= INLINE_BYTES else None)
        assert message.head == (content if size <= INLINE_BYTES else content[:HEAD_BYTES])

    def test_statuses_of_ten_thousand_recipients_survive_a_restart(self, engine: Engine) -> None:
        everybody = replace(ENVELOPE, recipients=tuple(f"member{n}@example.com" for n in range(10_000)))
        spool, queue_id = engine.start(), accept(engine.intake(), everybody)
        claimed(spool)
        done = set(range(0, 10_000, 3))
        settle(spool, Settlement(queue_id, everybody, dict.fromkeys(done, RELAYED)))
        settle(spool, Settlement(queue_id, everybody, {9_998: BOUNCED}))
        _, (message,) = again(engine, spool)
        assert message.envelope == everybody
        assert message.left == tuple(i for i in range(10_000) if i not in done and i != 9_998)

    def test_every_status_survives_a_start(self, engine: Engine) -> None:
        envelope = replace(ENVELOPE, recipients=tuple(f"r{number}@example.com" for number in range(6)))
        spool, queue_id = engine.start(), accept(engine.intake(), envelope)
        claimed(spool)
        fates = (RELAYED, BOUNCED, EXPIRED, DELETED, Status.SUCCESS)
        settle(spool, Settlement(queue_id, envelope, dict(enumerate(fates))))
        for _ in range(2):
            assert read(spool, queue_id).statuses == (*fates, Status.TODO)
            spool, _ = again(engine, spool)

    def test_an_ended_message_never_comes_back(self, engine: Engine) -> None:
        spool, (queue_id, other) = begun(engine, CONTENT, CONTENT)
        settle(spool, *ended(queue_id))
        for marks in (EVERY, {}):
            # The settlement is repeated, as after an error.
            (failure,) = spool.settle([Settlement(queue_id, ENVELOPE, marks, ends=True)])
            assert isinstance(failure, Absent) if spool.is_shared else failure is None
        for _ in range(2):
            with pytest.raises(Absent):
                read(spool, queue_id)
            with pytest.raises(Absent):
                list(spool.content(queue_id))
            (failure,) = spool.settle([Settlement(queue_id, ENVELOPE, {0: RELAYED})])
            assert isinstance(failure, Absent)
            spool, found = again(engine, spool)
            assert [message.queue_id for message in found] == [other]

    def test_a_message_with_recipients_left_cannot_end(self, engine: Engine) -> None:
        spool, (queue_id,) = begun(engine, CONTENT)
        with pytest.raises(AssertionError):
            spool.settle([Settlement(queue_id, ENVELOPE, {0: RELAYED, 1: RELAYED}, ends=True)])
        assert 2 in again(engine, spool)[1][0].left

    @pytest.mark.parametrize(
        "settlement",
        [
            Settlement(QueueId(""), ENVELOPE, {1: BOUNCED}),
            Settlement(QueueId(""), replace(ENVELOPE, recipients=ENVELOPE.recipients[::-1]), {2: RELAYED}),
        ],
    )
    def test_a_settlement_that_contradicts_the_stored_message_makes_it_corrupt(
        self, engine: Engine, settlement: Settlement
    ) -> None:
        spool, (queue_id,) = begun(engine, CONTENT)
        for _ in range(2):
            settle(spool, Settlement(queue_id, ENVELOPE, {1: RELAYED}))
        (failure,) = spool.settle([replace(settlement, queue_id=queue_id)])
        assert isinstance(failure, Corrupt)
        assert spool.look().corrupt == 1
        assert again(engine, spool)[1] == []

    def test_notes_hold_the_last_reply_for_each_recipient_to_be_reported(self, engine: Engine) -> None:
        spool, (queue_id, other) = begun(engine, CONTENT, CONTENT)
        assert read(spool, queue_id).notes == ()
        settle(
            spool,
            Settlement(queue_id, ENVELOPE, {2: BOUNCED, 0: BOUNCED}, [note(2, None), note(0)]),
            Settlement(other, ENVELOPE, {1: BOUNCED}, [note(1, "554 other")]),
        )
        settle(spool, Settlement(queue_id, ENVELOPE, {2: BOUNCED}, [note(2, "550 again")]))
        for _ in range(2):
            assert read(spool, queue_id).notes == (note(0), note(2, "550 again"))
            assert read(spool, other).notes == (note(1, "554 other"),)
            spool, _ = again(engine, spool)

    def test_a_report_is_published_once_and_ends_with_its_message(self, engine: Engine) -> None:
        spool, (queue_id,) = begun(engine, CONTENT)
        settle(spool, Settlement(queue_id, ENVELOPE, {1: BOUNCED}, [note(1)]))
        own = report_id(queue_id, 1)
        first = report_of(spool, queue_id)
        settle(spool, first)
        settle(spool, first)
        assert [(m.queue_id, m.envelope, m.content) for m in claimed(spool)] == [
            (own, REPORT, b"Subject: sorry\r\n")
        ]
        message = read(spool, queue_id)
        assert (message.told, message.owed_report) == (frozenset({1}), None)
        settle(spool, Settlement(own, REPORT, {0: RELAYED}, ends=True))
        # The same holds after the report is gone.
        settle(spool, first)
        assert claimed(spool) == []
        settle(spool, Settlement(queue_id, ENVELOPE, {0: BOUNCED, 2: RELAYED}, [note(0)]))
        assert read(spool, queue_id).owed_report is not None
        spool, found = again(engine, spool)
        assert [m.queue_id for m in found] == [queue_id]
        settle(spool, report_of(spool, queue_id, ends=True))
        assert [m.queue_id for m in claimed(spool)] == [report_id(queue_id)]
        spool, found = again(engine, spool)
        assert [m.queue_id for m in found] == [report_id(queue_id)]

    def test_one_settlement_may_mark_report_and_end_a_message(self, engine: Engine) -> None:
        spool, (queue_id, other) = begun(engine, CONTENT, CONTENT)
        settle(spool, bounced(queue_id), *ended(other))
        assert [m.queue_id for m in claimed(spool)] == [report_id(queue_id)]
        assert [m.queue_id for m in again(engine, spool)[1]] == [report_id(queue_id)]

    def test_a_warning_is_published_once_and_remembered(self, engine: Engine) -> None:
        spool, (queue_id,) = begun(engine, CONTENT)
        own = warning_id(queue_id)
        for _ in range(2):
            settle(spool, warning_of(queue_id))
        assert [m.queue_id for m in claimed(spool)] == [own]
        for _ in range(2):
            message = read(spool, queue_id)
            assert (message.is_warned, message.content) == (True, CONTENT)
            spool, _ = again(engine, spool)

    def test_a_held_message_stays_held_until_it_is_released(self, engine: Engine) -> None:
        spool, (queue_id,) = begun(engine, CONTENT)
        for is_held in (True, True, False, False, True):
            # An operator may hold a message that nobody has read: the settlement lacks its recipients.
            settle(spool, Settlement(queue_id, replace(ENVELOPE, recipients=()), is_held=is_held))
            assert read(spool, queue_id).is_held is is_held
        spool, (message,) = again(engine, spool)
        assert message.is_held
        settle(spool, Settlement(queue_id, ENVELOPE, {0: RELAYED}))
        assert b"".join(spool.content(queue_id)) == CONTENT
        settle(spool, *ended(queue_id))
        assert again(engine, spool)[1] == []

    def test_a_deferred_message_remembers_its_next_attempt(self, engine: Engine) -> None:
        spool, (queue_id,) = begun(engine, CONTENT)
        settle(spool, Settlement(queue_id, ENVELOPE, {0: RELAYED}, next_attempt_at_ns=DEFERRED_NS))
        settle(spool, warning_of(queue_id))
        for _ in range(2):
            spool, (message, _) = again(engine, spool)
            assert message.next_attempt_at_ns == read(spool, queue_id).next_attempt_at_ns == DEFERRED_NS

    def test_an_unknown_message_is_absent_and_the_others_are_settled(self, engine: Engine) -> None:
        spool, (queue_id,) = begun(engine, CONTENT)
        unknown = QueueId("0" * 16)
        missing, whole = spool.read([unknown, queue_id])
        assert isinstance(missing, Absent)
        assert not isinstance(whole, Exception)
        first, second, third = spool.settle(
            [
                Settlement(unknown, ENVELOPE, {0: RELAYED}),
                Settlement(queue_id, ENVELOPE, {0: RELAYED}),
                Settlement(unknown, ENVELOPE, is_held=True),
            ]
        )
        assert isinstance(first, Absent)
        assert isinstance(third, Absent)
        assert second is None
        assert again(engine, spool)[1][0].left == (1, 2)

    def test_a_second_owner_of_the_queue_is_refused_with_the_pid_of_the_first(self, engine: Engine) -> None:
        spool, _ = begun(engine)
        for _ in range(2):
            with pytest.raises(SpoolBusy, match=rf"\b{os.getpid()}\b"):
                engine.start()
        spool.close()
        engine.start().close()

    def test_messages_are_claimed_once_and_the_oldest_first_in_pages(self, engine: Engine) -> None:
        spool, intakes = engine.start(), [engine.intake(), engine.intake()]
        accepted = []
        for number in range(8):
            accepted.append(accept(intakes[number % 2]))
            engine.clock.advance(SECOND_NS)
        assert spool.look().unclaimed in (0, 8)
        found = [message.queue_id for message in spool.claim(3)]
        assert found == accepted[:3]
        assert spool.look().unclaimed == 5
        accepted.append(accept(intakes[0]))
        found += [message.queue_id for message in claimed(spool, 4)]
        # A new message comes after those that the start found.
        assert found == accepted
        assert spool.claim(9) == []
        assert [message.queue_id for message in again(engine, spool)[1]] == accepted

    def test_a_page_has_no_more_than_some_megabytes_of_content(self, engine: Engine) -> None:
        spool, intake = engine.start(), engine.intake()
        queue_ids = [accept(intake, content=bytes(INLINE_BYTES)) for _ in range(40)]
        pages = [spool.claim(100), spool.claim(100), spool.claim(100)]
        assert all(sum(len(m.head) for m in page) < 5_000_000 for page in pages)
        assert [m.queue_id for page in pages for m in page] == queue_ids

    def test_a_batch_is_accepted_as_one_and_a_bad_envelope_is_refused_alone(self, engine: Engine) -> None:
        spool, intake = engine.start(), engine.intake()
        bad: list[tuple[str, ...]] = [("r@example.com\nDx",), (), ("\ud800@example.com",)]
        envelopes = [ENVELOPE, *(replace(ENVELOPE, recipients=addresses) for addresses in bad), ENVELOPE]
        drafts = [intake.draft() for _ in envelopes]
        for number, draft in enumerate(drafts):
            draft.append(b"message %d" % number)
        assert intake.accept([]) == []
        first, *others, last = intake.accept(list(zip(drafts, envelopes, strict=True)))
        assert (first, last) == (None, None)
        assert all(isinstance(each, Unavailable) for each in others)
        assert [message.content for message in claimed(spool)] == [b"message 0", b"message 4"]

    def test_a_discarded_draft_leaves_nothing_and_is_not_accepted(self, engine: Engine) -> None:
        spool, intake = engine.start(), engine.intake()
        for spills in (0, 1, 2):
            draft = intake.draft()
            for _ in range(spills):
                draft.append(b"x" * 1000)
                draft.spill()
                assert draft.buffered_bytes == 0
            assert draft.is_on_disk == (spills > 0)
            draft.discard()
            draft.discard()
            assert isinstance(intake.accept([(draft, ENVELOPE)])[0], Unavailable)
        assert claimed(spool) == []
        assert spool.tidy() == 0
        assert again(engine, spool)[1] == []

    @pytest.mark.parametrize("size", [1000, 3 * INLINE_BYTES])
    def test_a_damaged_message_is_set_aside_and_the_rest_goes_on(self, engine: Engine, size: int) -> None:
        spool, (damaged, whole) = begun(engine, bytes(size), CONTENT)
        engine.damage(damaged)
        # No octet may go out: the upstream might refuse damaged content and blame the sender.
        with pytest.raises(Corrupt):
            assert (read(spool, damaged).content, any(spool.content(damaged))) == (None, False)
        with pytest.raises(Absent):
            read(spool, damaged)
        assert [name for name, _ in engine.told] == [damaged]
        assert spool.look().corrupt == 1
        (listed,) = spool.set_aside(10)
        assert (listed.name, spool.set_aside(0)) == (damaged, [])
        settle(spool, *ended(whole))
        for _ in range(2):
            spool, found = again(engine, spool)
            assert (found, spool.look().corrupt) == ([], 1)

    def test_a_start_sets_aside_a_message_that_was_damaged_before(self, engine: Engine) -> None:
        spool, (damaged, whole) = begun(engine, CONTENT, CONTENT)
        spool.close()
        engine.damage(damaged)
        for _ in range(2):
            spool = engine.start()
            assert [message.queue_id for message in claimed(spool)] == [whole]
            assert ([name for name, _ in engine.told], spool.look().corrupt) == ([damaged], 1)
            spool.close()

    def test_content_that_is_damaged_while_it_is_read_stops_before_the_damage(self, engine: Engine) -> None:
        spool, (queue_id,) = begun(engine, bytes(3 * INLINE_BYTES))
        chunks = iter(spool.content(queue_id))
        assert next(filter(None, chunks)) == bytes(INLINE_BYTES)
        engine.damage(queue_id)
        with pytest.raises(Corrupt):
            b"".join(chunks)
        assert spool.look().corrupt == 1

    def test_a_message_of_another_spool_is_adopted_as_it_is(self, engine: Engine) -> None:
        other = on_the_model()
        fill(other.start(), other.intake())
        source = other.start()
        found = claimed(source)
        (long,) = (each.queue_id for each in found if each.content is None)
        (partly,) = (each.queue_id for each in found if each.left == (2,))
        spool, _ = begun(engine)

        def adopted() -> list[Adopted]:
            return [Adopted(message, source.content(message.queue_id)) for message in found]

        spool.adopt(adopted())
        for _ in range(2):
            assert [read(spool, each.queue_id).told for each in found] == [each.told for each in found]
            assert b"".join(spool.content(long)) == bytes(INLINE_BYTES + 1)
            spool, listed = again(engine, spool)
            assert unhinted(listed) == unhinted(found)
            hints = {each.queue_id: each.next_attempt_at_ns or each.envelope.arrival_at_ns for each in listed}
            arrivals = {each.queue_id: each.envelope.arrival_at_ns for each in found}
            assert hints == arrivals | {partly: DEFERRED_NS}
        # Adopting again leaves an existing message as it is.
        settle(spool, Settlement(partly, ENVELOPE, {2: RELAYED}))
        spool.adopt(adopted())
        assert next(m for m in again(engine, spool)[1] if m.queue_id == partly).left == ()

    def test_free_space_is_reported(self, engine: Engine) -> None:
        spool, _ = begun(engine)
        assert spool.look().free_bytes > 0
        intake = engine.intake()
        assert 0 < intake.room() < spool.look().free_bytes
        intake.close()


class FailingConformance(Conformance):
    """The suite for an engine on the model disk, whose calls can fail for a while."""

    def test_an_unreadable_message_is_reported_once_counted_and_claimed_later(self, engine: Engine) -> None:
        view, intake = watched(engine), engine.intake()
        queue_ids = [accept(intake), accept(intake)]
        spool = engine.start()
        assert spool.claim(0) == []
        view.fail(Fault(1, errno.EIO, kinds=frozenset({"read"}), forever=True))
        assert spool.claim(9) == []
        assert (spool.look().corrupt, spool.look().unclaimed) == (2, 2)
        assert spool.set_aside(9)[0].reason.startswith("left in place: cannot be read now")
        view.heal()
        assert claimed(spool) == []
        assert sorted(name for name, _ in engine.told) == queue_ids
        engine.clock.advance(READ_AGAIN_NS)
        assert [message.queue_id for message in claimed(spool)] == queue_ids
        assert (spool.look().corrupt, spool.look().unclaimed) == (0, 0)

    def test_a_long_report_without_room_keeps_the_marks_and_blocks_no_other_message(
        self, engine: Engine
    ) -> None:
        spool, (queue_id, other) = begun(engine, CONTENT, CONTENT)
        spool.close()
        view = watched(engine)
        spool = engine.start()
        claimed(spool)
        long = Report(report_id(queue_id, 1), REPORT, bytes(INLINE_BYTES + 1))
        view.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"write"}), path=long.queue_id, forever=True))
        failure, done = spool.settle(
            [
                Settlement(queue_id, ENVELOPE, {0: RELAYED, 1: BOUNCED}, report=long, told=[1]),
                *ended(other),
            ]
        )
        assert isinstance(failure, Full)
        assert done is None
        view.heal()
        spool, (message,) = again(engine, spool)
        assert (message.queue_id, message.statuses[0]) == (queue_id, RELAYED)

    def test_a_start_that_lacks_descriptors_goes_on_where_it_stopped(self, engine: Engine) -> None:
        view = watched(engine)
        # Each from a listener of its own: no two are in one file.
        queue_ids = sorted(accept(engine.intake()) for _ in range(6))
        spool = engine.start()
        found = [message.queue_id for message in spool.claim(2)]
        view.fail(Fault(3, errno.EMFILE, kinds=frozenset({"open"})))
        found += [message.queue_id for message in spool.claim(100)]
        assert len(found) == 4
        found += [message.queue_id for message in spool.claim(100)]
        assert found == queue_ids
