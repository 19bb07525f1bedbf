"""What a start could not read or move is shown to the operator, and queued once the disk gives it again."""

import errno
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import RealDisk
from relay.spool.interface import Corrupt, Entry, Spool
from relay.spool.maildir.into_queue import FAILURES_AN_HOUR
from relay.spool.maildir.layout import READ_AGAIN, Layout
from relay.spool.message.message_file import HEADER_BYTES
from relay.spool.root.quarantine import Quarantine
from tests.fakes.disk import Fault, ModelDisk
from tests.unit.spool.engine import (
    BOUNCED,
    CONTENT,
    RELAYED,
    accept,
    again,
    is_balanced,
    note,
    recovered,
    taken,
)
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_kernel, on_the_model
from tests.unit.spool.plays import prepared as ready_disk
from tests.unit.spool.recovering import Recovered, recover
from tests.unit.spool.world import ROOT

LAYOUT = Layout(ROOT)
WHY = "cannot be taken: Input/output error"


@dataclass
class Left:
    """A spool that was started on a disk which does not give one of its two messages."""

    engine: MaildirEngine
    view: ModelDisk
    left: QueueId
    other: QueueId
    spool: Spool = field(init=False)
    recovery: Recovered = field(init=False)

    def start(self, kind: str, number: int, path: str) -> None:
        self.view.fail(Fault(1, number, kinds=frozenset({kind}), path=path, forever=True))
        self.spool = self.engine.start()
        self.recovery = recover(self.spool)

    def an_hour_later(self) -> list[Entry]:
        self.spool.clean_up()
        return self.spool.take(100)


def prepared(*, is_held: bool = False, marks: bool = False) -> Left:
    engine = on_the_model()
    assert isinstance(engine.disk, ModelDisk)
    view = engine.disk.another()
    engine.disk.another = lambda: view  # type: ignore[method-assign]  # the one whose calls fail
    spool, intake = recovered(engine), engine.intake()
    left, other = accept(intake), accept(intake)
    taken(spool)
    if marks:
        spool.note({left: [note(1)]})
        spool.mark({left: {0: RELAYED, 1: BOUNCED}})
    if is_held:
        spool.hold(left)
    spool.close()
    return Left(engine, view, left, other)


def listed(spool: Spool) -> list[tuple[str, str]]:
    return [(file.name, file.reason) for file in spool.set_aside_files(9)]


@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("is_held", [False, True])
def test_what_a_start_cannot_read_is_listed_and_queued_later(*, is_held: bool, marks: bool) -> None:
    found = prepared(is_held=is_held, marks=marks)
    folder = "/hold/" if is_held else "/cur/"
    found.start(
        "read", errno.EIO, f"{folder}{found.left}" if is_held else found.engine.layout.queued(found.left)
    )

    assert [entry.queue_id for entry in found.recovery.entries] == [found.other]
    assert listed(found.spool) == [(found.left, f"{WHY}; left where it is, and tried again within the hour")]
    (shown,) = found.spool.set_aside_files(9)
    assert shown.size_bytes > len(CONTENT)
    # Nothing of it could be read.
    assert (shown.arrival_at_ns, shown.reverse_path, shown.recipients_left) == (0, "", 0)
    assert found.spool.corrupt_count() == 1
    assert is_balanced(found.spool.totals())
    assert found.an_hour_later() == []

    found.view.heal()
    (entry,) = found.an_hour_later()

    assert (entry.queue_id, entry.is_held, entry.recipients_left) == (found.left, is_held, 1 if marks else 3)
    assert (found.spool.corrupt_count(), listed(found.spool)) == (0, [])
    totals = found.spool.totals()
    assert is_balanced(totals)
    assert (totals.queued, totals.relayed, totals.bounced) == ((4, 1, 1) if marks else (6, 0, 0))
    if is_held:
        found.spool.release(found.left)
    found.spool.mark({found.left: dict.fromkeys(found.spool.load(found.left).left, RELAYED)})
    found.spool.finish([found.left])
    assert is_balanced(found.spool.totals())
    assert [name for name, _ in found.engine.told] == [found.left]
    spool = again(found.engine, found.spool)
    assert (is_balanced(spool.totals()), recover(spool).missing_recipients) == (True, 0)


def test_marks_of_what_is_taken_again_are_durable_first() -> None:
    """A killed sender may have left them in memory only."""
    found = prepared(marks=True)
    found.start("read", errno.EIO, found.engine.layout.queued(found.left))
    found.view.fail(Fault(1, errno.EIO, kinds=frozenset({"sync_content"}), path=found.left, forever=True))
    assert found.an_hour_later() == []
    assert found.spool.corrupt_count() == 1

    found.view.heal()
    assert [entry.queue_id for entry in found.an_hour_later()] == [found.left]


@pytest.mark.parametrize("marks", [False, True])
def test_what_stays_in_a_wrong_folder_is_taken_from_there_later(*, marks: bool) -> None:
    found = prepared(marks=marks)
    home = found.engine.layout.queued(found.left)
    wrong = next(folder for folder in found.engine.layout.queued_folders() if not home.startswith(folder))
    found.view.rename(home, f"{wrong}/{found.left}")
    found.start("rename", errno.EPERM, found.left)
    assert [why.partition(";")[0] for _, why in listed(found.spool)] == [
        "cannot be taken: Operation not permitted"
    ]

    found.view.heal()
    assert [entry.queue_id for entry in found.an_hour_later()] == [found.left]
    assert found.spool.load(found.left).content == CONTENT
    assert found.view.inode(home) is not None


@pytest.mark.parametrize("folder", ["new", "cur"])
def test_new_mail_is_no_longer_listed_once_it_is_taken(folder: str) -> None:
    """In new/ it is looked at each time; also where a crash took back the rename, not the account."""
    found = prepared()
    path = found.engine.layout.accepted(found.left)
    if folder == "cur":
        found.view.rename(found.engine.layout.queued(found.left), path)
    else:
        found.left = accept(found.engine.intake())
        path = found.engine.layout.accepted(found.left)
    found.start("read", errno.EIO, path)
    assert ([name for name, _ in listed(found.spool)], found.spool.corrupt_count()) == ([found.left], 1)

    found.view.heal()
    assert taken(found.spool) == [found.left]
    assert (listed(found.spool), found.spool.corrupt_count()) == ([], 0)
    assert is_balanced(found.spool.totals())


def damage(found: Left) -> None:
    """Change an octet of what was left, in its content."""
    path = found.engine.layout.queued(found.left)
    content = bytearray(found.view.peek(path))
    content[HEADER_BYTES + 1] ^= 1
    found.view.poke(path, bytes(content))


def test_damage_that_cannot_be_moved_is_listed_and_moved_later() -> None:
    found = prepared()
    found.start("rename", errno.EPERM, "/corrupt/")
    spool = found.spool
    damage(found)
    with pytest.raises(Corrupt):
        spool.load(found.left)
    fault = "the content does not match its checksum"
    told = [(found.left, fault), (found.left, "cannot be set aside: Operation not permitted")]
    assert found.engine.told == told
    (shown,) = listed(spool)
    assert shown[1].startswith(f"{fault}; cannot be set aside: Operation not permitted; left")
    assert found.an_hour_later() == []
    assert (found.engine.told, spool.corrupt_count()) == (told, 1)

    found.view.heal()
    assert found.an_hour_later() == []
    assert found.engine.names("corrupt") == [found.left]
    assert (spool.corrupt_count(), len(listed(spool))) == (1, 1)
    assert is_balanced(spool.totals())


def test_what_is_read_again_and_found_damaged_goes_to_corrupt() -> None:
    found = prepared()
    found.start("read", errno.EIO, found.engine.layout.queued(found.left))
    found.view.heal()
    damage(found)

    assert found.an_hour_later() == []
    assert found.engine.names("corrupt") == [found.left]
    assert (found.left, "the content does not match its checksum") in found.engine.told
    assert (found.spool.corrupt_count(), is_balanced(found.spool.totals())) == (1, True)


def test_what_somebody_removed_is_unlisted_and_missed_later() -> None:
    found = prepared()
    found.start("read", errno.EIO, found.engine.layout.queued(found.left))
    found.view.unlink(found.engine.layout.queued(found.left))

    assert found.an_hour_later() == []
    assert (found.spool.corrupt_count(), listed(found.spool)) == (0, [])
    found.view.heal()
    found.spool.close()
    assert recover(found.engine.start()).missing_recipients == 3


def test_what_is_removed_just_before_it_is_read_is_unlisted() -> None:
    found = prepared()
    path = found.engine.layout.queued(found.left)
    found.start("read", errno.EIO, path)
    found.view.heal()
    found.spool.clean_up()
    found.engine.disk.unlink(path)

    assert found.spool.take(100) == []
    assert (found.spool.corrupt_count(), listed(found.spool)) == (0, [])


def test_a_strangers_file_that_could_not_be_moved_is_moved_later() -> None:
    found = prepared()
    path = f"{found.engine.layout.queued_folder(found.left)}/mine"
    found.engine.plant(path, b"somebody's")
    found.start("rename", errno.EPERM, path)
    assert [name for name, _ in listed(found.spool)] == ["mine"]

    found.view.heal()
    assert found.an_hour_later() == []
    assert found.engine.names("corrupt") == ["mine"]
    # Told of once, as what it is; and once that it could not be moved.
    assert found.engine.told == [
        ("mine", "not a name that we give"),
        ("mine", "cannot be set aside: Operation not permitted"),
    ]
    assert found.engine.content_of(f"{found.engine.root}/corrupt/mine") == b"somebody's"


def test_what_was_left_in_two_places_is_listed_until_both_go() -> None:
    disk, told = ready_disk(), list[str]()
    aside = Quarantine(disk, ROOT, lambda name, _: told.append(name))
    queue_id = QueueId("0" * 16)
    places = [LAYOUT.queued(queue_id), LAYOUT.held(queue_id)]
    for path in places:
        aside.leave(path, "why")

    aside.forget(places[0])
    assert (aside.count, len(aside.left(9, READ_AGAIN)), aside.left_in([LAYOUT.folder("hold")])) == (
        1,
        1,
        places[1:],
    )
    aside.forget(places[1])
    assert (aside.count, aside.left(9, READ_AGAIN), told) == (0, [], [queue_id])


def test_what_cannot_be_looked_at_any_more_is_listed(tmp_path: Path) -> None:
    engine = on_the_kernel(tmp_path)
    recovered(engine).close()
    aside = Quarantine(RealDisk(), engine.root, lambda _name, _why: None)
    in_the_way = Path(engine.root) / "cur" / "a file"
    in_the_way.write_text("no folder")
    aside.leave(f"{in_the_way}/{'0' * 16}", "why")

    assert [(each.name, each.size_bytes) for each in aside.left(9, READ_AGAIN)] == [("0" * 16, 0)]


def test_what_was_counted_out_and_unreadable_is_not_sent_again() -> None:
    found = prepared()
    spool = recovered(found.engine)
    spool.mark({found.left: dict.fromkeys(range(3), RELAYED)})
    path = found.engine.layout.queued(found.left)
    content = found.engine.content_of(path)
    spool.finish([found.left])
    spool.close()
    # The crash came before its removal was durable.
    found.engine.plant(path, content)
    found.start("read", errno.EIO, path)

    found.view.heal()
    assert found.an_hour_later() == []
    assert (found.view.inode(path), found.spool.corrupt_count()) == (None, 0)
    assert found.spool.totals().relayed == 3
    assert is_balanced(found.spool.totals())


@pytest.mark.parametrize("is_held", [False, True])
def test_a_second_name_that_stays_is_no_second_message(*, is_held: bool) -> None:
    found = prepared(is_held=is_held)
    layout = found.engine.layout
    home = layout.held(found.left) if is_held else layout.queued(found.left)
    second = next(f"{f}/{found.left}" for f in reversed(layout.queued_folders()) if f not in home)
    found.view.link(home, second)
    found.start("unlink", errno.EPERM, found.left)
    assert found.left in {entry.queue_id for entry in found.recovery.entries}
    assert [name for name, _ in listed(found.spool)] == [found.left]

    found.view.heal()
    assert found.an_hour_later() == []
    assert (found.view.inode(second), listed(found.spool)) == (None, [])
    assert found.view.inode(home) is not None


def test_a_disk_that_gives_nothing_is_asked_a_few_times_an_hour() -> None:
    """Each read of a bad sector may take the disk half a minute, in which nothing is sent."""
    found = prepared()
    spool, intake = recovered(found.engine), found.engine.intake()
    many = [accept(intake) for _ in range(3 * FAILURES_AN_HOUR)]
    taken(spool)
    spool.close()
    found.start("read", errno.EIO, "/cur/")
    asked: list[str] = []
    open_update = found.view.open_update

    def open_and_tell(path: str) -> int:
        asked.append(path[-16:])
        return open_update(path)

    found.view.open_update = open_and_tell  # type: ignore[method-assign]  # reads are no steps of the model

    for _ in range(4):
        found.spool.clean_up()
        for _ in range(3 * FAILURES_AN_HOUR):
            before = len(asked)
            assert found.spool.take(100) == []
            assert len(asked) - before <= 1
    assert len(asked) == 4 * FAILURES_AN_HOUR
    assert set(asked) == {found.left, found.other, *many}
    found.view.heal()
    assert len(found.an_hour_later()) == len(many) + 2
    assert is_balanced(found.spool.totals())


def test_a_lack_of_our_own_blames_no_message_and_ends_the_look() -> None:
    found = prepared()
    found.start("read", errno.EIO, found.engine.layout.queued(found.left))
    found.view.fail(Fault(1, errno.EMFILE, kinds=frozenset({"open"}), path="/cur/", forever=True))
    assert found.an_hour_later() == []

    found.view.heal()
    assert taken(found.spool) == [found.left]


def test_the_list_is_bounded_with_what_waits_for_the_disk_first() -> None:
    found = prepared()
    found.engine.plant(f"{found.engine.root}/corrupt/0", b"no message")
    found.start("read", errno.EIO, found.engine.layout.queued(found.left))

    assert [file.name for file in found.spool.set_aside_files(1)] == [found.left]
    assert [file.name for file in found.spool.set_aside_files(9)] == [found.left, "0"]
