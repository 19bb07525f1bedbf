"""What a file in a folder of messages is, and what becomes of it: each row of the table in `into_queue`."""

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from relay.mail.envelope import QueueId
from relay.spool.identity import report_id
from relay.spool.interface import Corrupt, Unreadable
from relay.spool.maildir.into_queue import BECOMES, Becomes, Found, look
from relay.spool.message import files
from relay.spool.message.message_file import Opened
from tests.fakes.disk import Fault, ModelDisk
from tests.unit.spool.engine import BOUNCED, CONTENT, ENVELOPE, RELAYED, accept, again, recovered, taken
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_model
from tests.unit.spool.recovering import recover

HERE, OTHER = QueueId("0" * 16), QueueId("1" * 16)


def _reads(fault: Exception) -> Callable[[QueueId], Opened]:
    def read(_queue_id: QueueId) -> Opened:
        raise fault

    return read


def _finds(engine: MaildirEngine, path: str) -> Callable[[QueueId], Opened]:
    return lambda queue_id: files.read(engine.disk, path, queue_id, with_content=False)


NEVER = _reads(AssertionError("it is not to be read"))
Row = tuple[str, Callable[[MaildirEngine, str, QueueId], object], Found, Becomes]
ROWS: list[Row] = [
    ("new/mine", lambda e, path, _: e.plant(path), Found.FOREIGN, Becomes.SET_ASIDE),
    (
        "new/{0}",
        lambda e, path, q: e.plant(path, e.content_of(e.layout.queued(q))),
        Found.COPY,
        Becomes.SET_ASIDE,
    ),
    (
        "{1}",
        lambda e, _path, q: e.disk.link(e.layout.queued(q), e.layout.held(q)),
        Found.SECOND_NAME,
        Becomes.DROPPED,
    ),
    ("{1}", lambda e, path, _: e.disk.unlink(path), Found.GONE, Becomes.NOTHING),
    ("{1}", lambda e, path, _: e.plant(path, b"torn"), Found.DAMAGED, Becomes.SET_ASIDE),
    ("{1}", lambda *_: None, Found.AT_HOME, Becomes.QUEUED),
    ("new/{0}", lambda e, path, q: e.disk.rename(e.layout.queued(q), path), Found.MISPLACED, Becomes.QUEUED),
]


@pytest.mark.parametrize(("place", "make", "found", "becomes"), ROWS)
def test_a_file_is_what_its_name_place_and_bytes_say(
    place: str,
    make: Callable[[MaildirEngine, str, QueueId], object],
    found: Found,
    becomes: Becomes,
) -> None:
    engine = on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    home = engine.layout.queued(queue_id)
    path = f"{engine.root}/{place.format(queue_id, home.removeprefix(engine.root + '/'))}"
    make(engine, path, queue_id)

    seen = look(engine.disk, engine.layout, path, _finds(engine, path))
    assert (seen.found, seen.becomes) == (found, becomes)
    assert (seen.queued is not None) == (becomes is Becomes.QUEUED)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (FileNotFoundError(), Found.GONE),
        (files.StillArriving(), Found.ARRIVING),
        (Corrupt("torn"), Found.DAMAGED),
        (Unreadable(errno.EIO, "no bytes"), Found.UNREADABLE),
        (PermissionError(errno.EACCES, "not yours"), Found.UNREADABLE),
    ],
)
def test_a_file_that_cannot_be_read_is_what_the_error_says(fault: Exception, found: Found) -> None:
    engine = on_the_model()
    recovered(engine)

    seen = look(engine.disk, engine.layout, engine.layout.accepted(HERE), _reads(fault))
    assert (seen.found, seen.message) == (found, None)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.EROFS])
def test_a_lack_of_ours_or_a_failing_disk_says_nothing_of_a_file(number: int) -> None:
    engine = on_the_model()
    recovered(engine)

    with pytest.raises(OSError, match="none") as failed:
        look(engine.disk, engine.layout, engine.layout.accepted(HERE), _reads(OSError(number, "none")))
    assert failed.value.errno == number


def test_only_what_is_all_done_and_counted_out_has_ended() -> None:
    engine = on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    path = engine.layout.queued(queue_id)

    def found(counted_out: set[QueueId]) -> Found:
        return look(engine.disk, engine.layout, path, _finds(engine, path), counted_out).found

    assert found({queue_id}) is Found.AT_HOME
    spool.mark({queue_id: dict.fromkeys(range(len(ENVELOPE.recipients)), RELAYED)})
    assert (found({OTHER}), found({queue_id})) == (Found.AT_HOME, Found.COUNTED_OUT)


def test_a_name_that_is_not_ours_is_not_even_opened() -> None:
    engine = on_the_model()
    recovered(engine)

    assert look(engine.disk, engine.layout, f"{engine.root}/new/{HERE}.bak", NEVER).found is Found.FOREIGN


def test_every_kind_of_file_becomes_something() -> None:
    assert set(BECOMES) == set(Found)
    assert set(BECOMES.values()) == set(Becomes)


def test_a_file_that_goes_before_it_is_moved_is_taken_for_gone() -> None:
    engine = on_the_model()
    assert isinstance(engine.disk, ModelDisk)
    view = engine.disk.another()
    engine.disk.another = lambda: view  # type: ignore[method-assign]  # the one whose steps are seen
    spool, queue_id = recovered(engine), accept(engine.intake())
    other = ModelDisk(view.platter)

    def meanwhile(step: str) -> None:
        if step.startswith("rename"):
            view.before = None
            other.unlink(engine.layout.accepted(queue_id))

    view.before = meanwhile
    assert taken(spool) == []
    assert (engine.told, spool.corrupt_count(), spool.accepted_count()) == ([], 0, 0)


@pytest.mark.parametrize(("damaged", "whole"), [("hold/{0}", "{1}"), ("{1}", "new/{0}")])
def test_a_damaged_file_takes_no_whole_one_of_its_id_along(damaged: str, whole: str) -> None:
    engine = on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.close()
    home = engine.layout.queued(queue_id)
    content = engine.content_of(home)
    engine.disk.unlink(home)
    for place, found in ((damaged, b"torn"), (whole, content)):
        engine.plant(f"{engine.root}/{place.format(queue_id, home.removeprefix(engine.root + '/'))}", found)

    spool = engine.start()
    (entry,) = recover(spool).entries
    assert (entry.queue_id, entry.is_held, spool.corrupt_count()) == (queue_id, False, 1)
    assert spool.load(queue_id).content == CONTENT


def test_a_message_without_marks_is_read_again_without_a_sync() -> None:
    engine = on_the_model()
    assert isinstance(engine.disk, ModelDisk)
    view = engine.disk.another()
    engine.disk.another = lambda: view  # type: ignore[method-assign]  # the one whose calls fail
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.close()
    path = engine.layout.queued(queue_id)
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"read"}), path=path, forever=True))
    spool = engine.start()
    assert recover(spool).entries == ()

    view.heal()
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"sync_content"}), path=path, forever=True))
    spool.clean_up()
    assert [entry.queue_id for entry in spool.take(100)] == [queue_id]


def test_what_is_left_in_another_part_comes_home_with_its_marks() -> None:
    engine = on_the_model()
    assert isinstance(engine.disk, ModelDisk)
    view = engine.disk.another()
    engine.disk.another = lambda: view  # type: ignore[method-assign]  # the one whose calls fail
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.mark({queue_id: {0: RELAYED}})
    spool.close()
    home = engine.layout.queued(queue_id)
    elsewhere = next(f for f in engine.layout.queued_folders() if not home.startswith(f))
    engine.disk.rename(home, f"{elsewhere}/{queue_id}")
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"read"}), path=elsewhere, forever=True))
    spool = engine.start()
    assert recover(spool).entries == ()

    view.heal()
    spool.clean_up()
    (entry,) = spool.take(100)

    assert (entry.queue_id, entry.recipients_left) == (queue_id, 2)
    assert engine.names(home.removeprefix(f"{engine.root}/").rpartition("/")[0]) == [queue_id]
    assert again(engine, spool).load(queue_id).left == (1, 2)


def test_what_was_reported_is_marked_also_where_it_came_back_to_new() -> None:
    engine = on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.mark({queue_id: {1: BOUNCED}})
    to_its_sender = replace(ENVELOPE, reverse_path="", recipients=(ENVELOPE.reverse_path,))
    assert spool.publish_report(report_id(queue_id, 1), to_its_sender, CONTENT)
    # A power cut here, ahead of `mark_reported`, may undo the move out of new/ and keep the marks.
    spool.close()
    engine.disk.rename(engine.layout.queued(queue_id), engine.layout.accepted(queue_id))
    spool = engine.start()

    entries = {entry.queue_id: entry for entry in recover(spool).entries}
    assert not entries[queue_id].owes_report
    assert spool.load(queue_id).reported == {1}
