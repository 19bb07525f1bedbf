"""What the disk does not give for a while keeps its place, is told of, and goes once it is there again."""

import errno
import itertools

import pytest

from relay.mail.envelope import QueueId
from relay.spool.interface import Spool, Unreadable
from relay.spool.log import recovery as log_recovery
from relay.spool.maildir import recovery
from tests.engines.spool.engine import OnModel, accept, content_of, taken
from tests.engines.spool.faulting import OPENS
from tests.engines.spool.plays import prepared
from tests.engines.spool.recovering import recover
from tests.engines.spool.world import World
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault

CONTENT = b"Subject: long\r\n\r\n" + bytes(300_000)


class Disturbed:
    """A spool whose disk can be told to give nothing, and what it said of that."""

    def __init__(self, engine: OnModel) -> None:
        self._engine = engine
        self.disk = prepared(engine=engine)
        self.told: list[str] = []
        self.sender = self.start()
        recover(self.sender)
        self.intake = World(self.disk, engine=engine).listener().intake

    def start(self) -> Spool:
        return self._engine.sender(self.disk, FakeClock(), lambda name, _why: self.told.append(name))

    def accept(self) -> QueueId:
        return accept(self.intake, content=CONTENT)

    def fail(self, queue_id: QueueId, number: int = errno.EIO, *, nth: int = 1, forever: bool = True) -> None:
        """Let reading fail of a message, which is in a file of its own."""
        self.disk.fail(Fault(nth, number, kinds=frozenset({"read"}), path=queue_id, forever=forever))


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EUCLEAN, errno.EBADMSG])
def test_a_message_that_cannot_be_read_is_left_and_told_of_once(number: int, engine: OnModel) -> None:
    spool = Disturbed(engine)
    queue_id = spool.accept()
    taken(spool.sender)
    spool.fail(queue_id, number)

    for _ in range(3):
        with pytest.raises(Unreadable):
            spool.sender.load(queue_id)
    assert (spool.told, spool.disk.names(f"{engine.root}/corrupt")) == ([queue_id], [])

    spool.disk.heal()
    assert spool.sender.load(queue_id).left == (0, 1, 2)
    assert spool.sender.corrupt_count() == 0


def test_content_that_ends_early_for_a_while_is_not_corrupt(engine: OnModel) -> None:
    spool = Disturbed(engine)
    queue_id = spool.accept()
    taken(spool.sender)
    spool.fail(queue_id, nth=3, forever=False)

    with pytest.raises(Unreadable):
        content_of(spool.sender)(queue_id)

    assert spool.disk.has_failed
    assert b"".join(content_of(spool.sender)(queue_id)) == CONTENT


def test_new_mail_that_cannot_be_read_now_is_taken_when_it_can(engine: OnModel) -> None:
    spool = Disturbed(engine)
    unread, other = spool.accept(), spool.accept()
    spool.fail(unread)

    assert [taken(spool.sender), taken(spool.sender)] == [[other], []]
    assert spool.sender.corrupt_count() == 1

    spool.disk.heal()
    # As each hour.
    spool.sender.clean_up()
    assert taken(spool.sender) == [unread]


def test_a_start_leaves_what_it_cannot_read_to_the_next_one(engine: OnModel) -> None:
    spool = Disturbed(engine)
    unread, other = spool.accept(), spool.accept()
    taken(spool.sender)
    spool.disk.die()
    spool.fail(unread)

    sender = spool.start()
    recovery = recover(sender)
    assert [entry.queue_id for entry in recovery.entries] == [other]
    # Counted where an operator looks, and not as lost.
    assert (sender.corrupt_count(), recovery.missing_recipients) == (1, 0)
    sender.close()

    spool.disk.heal()
    sender = spool.start()
    assert [entry.queue_id for entry in recover(sender).entries] == [unread, other]
    assert sender.corrupt_count() == 0


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_a_start_that_lacks_descriptors_or_memory_goes_on_where_it_was(
    number: int, engine: OnModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "BATCH", 2)
    monkeypatch.setattr(log_recovery, "RECOVERED_AT_ONCE", 2)
    spool = Disturbed(engine)
    queue_ids = [spool.accept() for _ in range(12)]
    taken(spool.sender)
    spool.disk.die()
    walk = spool.start().recover()
    batches = [next(walk)]
    spool.disk.fail(Fault(1, number, kinds=OPENS, forever=True))
    # Empty ones: asked again, it tries again.
    batches += [next(walk) for _ in range(5)]
    assert batches[-1] == []
    spool.disk.heal()
    batches += walk

    assert [entry.queue_id for batch in batches for entry in batch] == queue_ids


def test_a_folder_that_cannot_be_listed_is_not_empty(engine: OnModel) -> None:
    spool = Disturbed(engine)
    spool.accept()
    taken(spool.sender)
    spool.disk.die()
    for nth in itertools.count(1):
        sender = spool.start()
        spool.disk.has_failed = False
        spool.disk.fail(Fault(nth, errno.EIO, kinds=frozenset({"names"})))
        try:
            found = len(recover(sender).entries)
        except OSError:
            found = 1
        spool.disk.heal()
        sender.close()
        assert found == 1
        if not spool.disk.has_failed:
            break
    assert nth > 2
