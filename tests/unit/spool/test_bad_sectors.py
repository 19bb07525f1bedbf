"""A bad sector under a file that is beside the messages keeps no mail from going, and loses none of it."""

import errno
from pathlib import Path

import pytest

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import RealDisk
from relay.spool.interface import Spool
from relay.spool.maildir.inspection import Inspector
from tests.fakes.denying import BROKEN, TOO_MANY, Denying
from tests.fakes.disk import Fault, ModelDisk
from tests.unit.spool.engine import BOUNCED, CONTENT, accept, note, recovered, taken
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_kernel, on_the_model
from tests.unit.spool.recovering import recover

DRAFT = QueueId("0123456789abcdef")


def with_a_message(view: ModelDisk, engine: MaildirEngine) -> tuple[Spool, QueueId]:
    """Return a spool with a message of which one recipient failed, and a dead listener's draft."""
    engine.disk.another = lambda: view  # type: ignore[attr-defined]  # the one whose calls fail
    spool = recovered(engine)
    queue_id = accept(engine.intake())
    assert taken(spool) == [queue_id]
    spool.note({queue_id: [note(0)]})
    spool.mark({queue_id: {0: BOUNCED}})
    engine.plant(engine.layout.draft(DRAFT), b"relay-message 1 ")
    return spool, queue_id


@pytest.mark.parametrize("number", [errno.EIO, errno.EUCLEAN, errno.EBADMSG])
@pytest.mark.parametrize("place", ["/tmp/", "/bounce/"])
def test_an_unreadable_file_beside_the_messages_stops_no_start(place: str, number: int) -> None:
    engine = on_the_model()
    assert isinstance(engine.disk, ModelDisk)
    view = engine.disk.another()
    spool, queue_id = with_a_message(view, engine)
    spool.close()
    view.fail(Fault(1, number, kinds=frozenset({"read"}), path=place, forever=True))

    spool = engine.start()
    assert [entry.queue_id for entry in recover(spool).entries] == [queue_id]
    assert spool.load(queue_id).content == CONTENT
    assert spool.clean_up() == 0
    assert engine.names("corrupt") == []

    view.heal()
    spool.close()
    spool = recovered(engine)
    assert spool.notes(queue_id) == [note(0)]
    assert engine.names("tmp") == []


@pytest.mark.parametrize(
    ("place", "becomes"),
    [
        ("spool/tmp/", "left where it is, and tried again"),
        ("spool/cur/", "left where it is, and tried again"),
        ("spool/corrupt/", "left where it is, and tried again"),
        ("spool/bounce/", "the report may give no reasons"),
        ("spool/ledger", "no relay starts on it"),
    ],
)
def test_fsck_tells_of_an_unreadable_file_and_all_the_others(
    tmp_path: Path, place: str, becomes: str
) -> None:
    engine = on_the_kernel(tmp_path)
    spool = recovered(engine)
    queue_id = accept(engine.intake())
    assert taken(spool) == [queue_id]
    spool.note({queue_id: [note(0)]})
    spool.mark({queue_id: {0: BOUNCED}})
    spool.close()
    for folder in ("tmp", "corrupt"):
        (tmp_path / "spool" / folder / DRAFT).write_bytes(b"relay-message")
    sound = {(f.path, f.kind) for f in Inspector(engine.root, RealDisk()).inspect().findings}

    seen = Inspector(engine.root, Denying(place, BROKEN, when_read=True)).inspect()

    (finding,) = (found for found in seen.findings if found.kind == "unreadable")
    assert place in finding.path
    assert (finding.becomes, finding.is_damage) == (becomes, True)
    others = {(found.path, found.kind) for found in seen.findings} - {(finding.path, "unreadable")}
    assert others == {(path, kind) for path, kind in sound if path != finding.path}


@pytest.mark.parametrize("place", ["spool/bounce/", "spool/ledger"])
def test_fsck_that_lacks_descriptors_blames_no_file(tmp_path: Path, place: str) -> None:
    engine = on_the_kernel(tmp_path)
    spool = recovered(engine)
    queue_id = accept(engine.intake())
    assert taken(spool) == [queue_id]
    spool.note({queue_id: [note(0)]})
    spool.close()

    with pytest.raises(OSError, match="Too many open files"):
        Inspector(engine.root, Denying(place, TOO_MANY)).inspect()
