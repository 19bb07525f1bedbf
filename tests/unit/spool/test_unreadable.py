"""What the disk does not give now keeps its place; what somebody took away is absent, and no fault."""

import errno

import pytest

from relay.mail.envelope import QueueId
from relay.spool.interface import Absent, Corrupt, Status, Unreadable
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.layout import Layout
from relay.spool.root.quarantine import Quarantine
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault, ModelDisk
from tests.unit.spool.engine import CONTENT, ENVELOPE, accept, content_of, taken
from tests.unit.spool.plays import prepared
from tests.unit.spool.recovering import recover
from tests.unit.spool.world import ROOT, World

LONG = b"Subject: long\r\n\r\n" + bytes(300_000)
LAYOUT = Layout(ROOT)


class Spool:
    """A spool whose disk can be told to give nothing, and what it said of that."""

    def __init__(self) -> None:
        self.disk = prepared()
        self.told: list[tuple[str, str]] = []
        self.sender = self.start()
        recover(self.sender)
        self.intake = World(self.disk).listener().intake

    def start(self) -> MaildirSpool:
        return MaildirSpool(ROOT, self.disk, FakeClock(), lambda name, why: self.told.append((name, why)))

    def accept(self, content: bytes = CONTENT) -> QueueId:
        return accept(self.intake, ENVELOPE, content)

    def fail(self, path: str, number: int = errno.EIO) -> None:
        self.disk.fail(Fault(1, number, kinds=frozenset({"read"}), path=path, forever=True))


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EUCLEAN, errno.EBADMSG])
def test_a_message_that_cannot_be_read_is_left_and_told_of_once(number: int) -> None:
    spool = Spool()
    queue_id = spool.accept()
    taken(spool.sender)
    spool.fail("/cur/", number)

    for _ in range(3):
        with pytest.raises(Unreadable):
            spool.sender.load(queue_id)
    assert [name for name, _ in spool.told] == [queue_id]
    assert spool.disk.names(LAYOUT.folder("corrupt")) == []

    spool.disk.heal()
    assert spool.sender.load(queue_id).content == CONTENT
    assert spool.sender.corrupt_count() == 0


def test_content_that_ends_early_for_a_while_is_not_corrupt() -> None:
    spool = Spool()
    queue_id = spool.accept(LONG)
    taken(spool.sender)
    spool.disk.fail(Fault(3, errno.EIO, kinds=frozenset({"read"}), path="/cur/"))

    with pytest.raises(Unreadable):
        content_of(spool.sender)(queue_id)

    assert b"".join(content_of(spool.sender)(queue_id)) == LONG


def test_new_mail_that_cannot_be_read_now_is_taken_when_it_can() -> None:
    spool = Spool()
    queue_id = spool.accept()
    spool.fail("/new/")

    assert [taken(spool.sender), taken(spool.sender)] == [[], []]
    assert [name for name, _ in spool.told] == [queue_id]

    spool.disk.heal()
    assert taken(spool.sender) == [queue_id]


def test_a_start_leaves_what_it_cannot_read_to_the_next_one() -> None:
    spool = Spool()
    unread, other = spool.accept(), spool.accept()
    taken(spool.sender)
    spool.sender.close()
    spool.fail(LAYOUT.queued(unread))

    sender = spool.start()
    recovery = recover(sender)
    assert [entry.queue_id for entry in recovery.entries] == [other]
    # Counted where an operator looks, and not as lost.
    assert (recovery.corrupt, recovery.missing_recipients) == (1, 0)
    sender.close()

    spool.disk.heal()
    recovery = recover(spool.start())
    assert [entry.queue_id for entry in recovery.entries] == [unread, other]
    assert (recovery.corrupt, recovery.missing_recipients) == (0, 0)


def test_a_folder_that_cannot_be_listed_is_not_empty() -> None:
    spool = Spool()
    spool.accept()
    taken(spool.sender)
    spool.sender.close()
    spool.disk.fail(Fault(1, errno.EIO, kinds=frozenset({"names"}), path="/cur/"))

    with pytest.raises(OSError, match="Input/output error"):
        recover(spool.start())


def test_a_file_that_is_removed_meanwhile_keeps_no_other_waiting() -> None:
    spool = Spool()
    gone, there = spool.accept(), spool.accept()
    taken(spool.sender)
    assert {spool.sender.load(queue_id).queue_id for queue_id in (gone, there)} == {gone, there}
    spool.disk.unlink(LAYOUT.queued(gone))

    with pytest.raises(Absent):
        spool.sender.mark({queue_id: {0: Status.RELAYED} for queue_id in (gone, there)})
    with pytest.raises(Absent):
        spool.sender.mark_warned(gone)

    assert spool.sender.load(there).left == (1, 2)
    cut = next(iter(ModelDisk(spool.disk.platter).prefixes()))
    assert recover(MaildirSpool(ROOT, cut, FakeClock())).entries[0].recipients_left in (2, 3)


def test_a_damaged_message_that_cannot_be_moved_is_told_of() -> None:
    spool = Spool()
    queue_id = spool.accept()
    taken(spool.sender)
    fd = spool.disk.open_update(LAYOUT.queued(queue_id))
    spool.disk.write_at(fd, b"!", 300)
    spool.disk.close(fd)
    spool.disk.fail(Fault(1, errno.EIO, kinds=frozenset({"rename", "link"}), forever=True))

    with pytest.raises(Corrupt):
        spool.sender.load(queue_id)
    assert (queue_id, "cannot be set aside: Input/output error") in spool.told
    assert spool.disk.inode(LAYOUT.queued(queue_id)) is not None

    spool.disk.heal()
    with pytest.raises(Corrupt):
        spool.sender.load(queue_id)
    assert spool.disk.names(LAYOUT.folder("corrupt")) == [queue_id]


def test_a_damaged_message_that_another_moved_is_only_told_of() -> None:
    disk, told = prepared(), list[tuple[str, str]]()
    aside = Quarantine(disk, LAYOUT.root, lambda name, why: told.append((name, why)))
    aside.move(LAYOUT.queued(QueueId("0" * 16)), "damaged")
    assert (aside.moved, aside.stuck, len(told)) == (0, {}, 1)


@pytest.mark.parametrize("folder", ["queued", "held"])
def test_a_second_name_that_comes_back_is_no_second_message(folder: str) -> None:
    """A rename that a crash cut in half leaves both names; a start that may not remove one leaves it."""
    spool = Spool()
    queue_id = spool.accept()
    taken(spool.sender)
    if folder == "held":
        spool.sender.hold(queue_id)
    second = f"{LAYOUT.folder('new')}/{queue_id}"
    spool.disk.link(getattr(LAYOUT, folder)(queue_id), second)

    assert taken(spool.sender) == []
    assert spool.told == []
    assert spool.disk.inode(second) is None
    assert spool.sender.load(queue_id).content == CONTENT


@pytest.mark.parametrize("folder", ["queued", "held"])
def test_a_second_name_of_what_is_unreadable_is_no_message(folder: str) -> None:
    spool = Spool()
    queue_id = spool.accept()
    taken(spool.sender)
    if folder == "held":
        spool.sender.hold(queue_id)
    first, second = getattr(LAYOUT, folder)(queue_id), f"{LAYOUT.folder('new')}/{queue_id}"
    spool.disk.link(first, second)
    spool.disk.fail(Fault(1, errno.EIO, kinds=frozenset({"read"}), path=first, forever=True))

    assert recover(spool.sender).entries == ()
    assert [name for name, _ in spool.told] == [queue_id]
    assert spool.disk.inode(second) is None

    spool.disk.heal()
    assert [entry.queue_id for entry in recover(spool.sender).entries] == [queue_id]


def test_a_second_name_in_another_folder_is_no_second_message() -> None:
    spool = Spool()
    queue_id = spool.accept()
    taken(spool.sender)
    home = LAYOUT.queued(queue_id)
    second = f"{next(folder for folder in LAYOUT.queued_folders() if not home.startswith(folder))}/{queue_id}"
    spool.disk.link(home, second)

    assert [entry.queue_id for entry in recover(spool.sender).entries] == [queue_id]
    assert spool.told == []
    assert spool.disk.inode(second) is None
    assert spool.sender.load(queue_id).content == CONTENT


@pytest.mark.parametrize("folder", ["new", "cur"])
def test_what_a_repair_of_the_file_system_took_is_missed(folder: str) -> None:
    """Nobody decided about it: it was never in corrupt/."""
    spool = Spool()
    queue_id = spool.accept()
    taken(spool.sender)
    spool.sender.close()
    path = LAYOUT.queued(queue_id)
    if folder == "new":
        path = LAYOUT.accepted(queue_id)
        spool.disk.rename(LAYOUT.queued(queue_id), path)
    spool.fail(path)
    sender = spool.start()
    assert recover(sender).missing_recipients == 0
    sender.close()
    spool.disk.heal()
    spool.disk.unlink(path)

    recovery = recover(spool.start())

    assert (recovery.missing_recipients, recovery.removed_recipients) == (3, 0)
