"""A file of somebody else, or that somebody else may write, is never sent, by whomever it can be opened."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import RealDisk, why_of_others
from relay.spool.interface import Corrupt, Spool
from relay.spool.maildir.inspection import Inspector
from tests.unit.spool.engine import BOUNCED, accept, note, recovered, taken
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_kernel
from tests.unit.spool.recovering import recover

SOMEBODY_ELSE = 12345
DRAFT = "0123456789abcdef"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")


def belongs_to_somebody_else(path: Path) -> None:
    os.chown(path, SOMEBODY_ELSE, -1)


def everybody_may_write(path: Path) -> None:
    path.chmod(0o666)


def its_group_may_write(path: Path) -> None:
    path.chmod(0o660)


def nobody_may_write(path: Path) -> None:
    path.chmod(0o444)


Change = Callable[[Path], None]
CHANGES = [
    pytest.param(
        belongs_to_somebody_else, f"belongs to user {SOMEBODY_ELSE}, and is not ours", marks=as_root
    ),
    pytest.param(everybody_may_write, "mode 0666: others may write it"),
    pytest.param(its_group_may_write, "mode 0660: others may write it"),
    pytest.param(nobody_may_write, "mode 0444: its owner may not read and write it", marks=as_root),
]


@pytest.fixture
def engine(tmp_path: Path) -> MaildirEngine:
    return on_the_kernel(tmp_path)


def path_of(engine: MaildirEngine, folder: str, queue_id: QueueId) -> Path:
    layout = engine.layout
    places = {"new": layout.accepted, "cur": layout.queued, "hold": layout.held, "bounce": layout.notes}
    return Path(places[folder](queue_id))


def one_in(engine: MaildirEngine, folder: str) -> tuple[Spool, QueueId]:
    spool, queue_id = recovered(engine), accept(engine.intake())
    if folder != "new":
        taken(spool)
    if folder == "hold":
        spool.hold(queue_id)
    return spool, queue_id


@pytest.mark.parametrize(("change", "fault"), CHANGES)
@pytest.mark.parametrize("folder", ["new", "cur", "hold"])
def test_a_message_of_a_wrong_owner_is_set_aside_as_fsck_said(
    engine: MaildirEngine, folder: str, change: Change, fault: str
) -> None:
    spool, queue_id = one_in(engine, folder)
    spool.close()
    change(path_of(engine, folder, queue_id))
    (finding,) = Inspector(engine.root, RealDisk()).inspect().findings

    spool = engine.start()
    recovery = recover(spool)

    assert (recovery.entries, recovery.corrupt, taken(spool)) == ((), 1, [])
    assert engine.told == [(queue_id, fault)]
    assert (finding.what, "moved to corrupt/" in finding.becomes) == (fault, True)
    (listed,) = spool.set_aside_files(9)
    assert (listed.name, listed.reason) == (queue_id, fault)
    (finding,) = Inspector(engine.root, RealDisk()).inspect().findings
    assert (finding.kind, finding.what) == ("set_aside", fault)


@pytest.mark.parametrize(("change", "fault"), CHANGES)
def test_a_message_of_a_wrong_owner_or_mode_is_not_sent(
    engine: MaildirEngine, change: Change, fault: str
) -> None:
    spool, known = one_in(engine, "cur")
    assert spool.load(known).left
    fresh = accept(engine.intake())
    for path in (engine.layout.queued(known), engine.layout.accepted(fresh)):
        change(Path(path))

    assert taken(spool) == []
    with pytest.raises(Corrupt):
        spool.load(known)
    assert engine.told == [(fresh, fault), (known, fault)]
    assert engine.names("corrupt") == sorted([fresh, known])


@pytest.mark.parametrize(("change", "fault"), CHANGES)
def test_other_files_of_a_wrong_owner_are_kept_and_made_anew(
    engine: MaildirEngine, change: Change, fault: str
) -> None:
    """A stranger's draft that begins as ours would be removed, and a stranger's notes be reported."""
    spool, queue_id = one_in(engine, "cur")
    spool.note({queue_id: [note(0)]})
    spool.mark({queue_id: {0: BOUNCED}})
    spool.close()
    Path(engine.layout.draft(QueueId(DRAFT))).write_bytes(b"relay-message 1 ")
    (Path(engine.root) / "tmp" / DRAFT).chmod(0o600)
    places = [f"tmp/{DRAFT}", f"bounce/{queue_id}", "ledger", "trigger"]
    for place in places:
        change(Path(engine.root) / place)
    said = {
        os.path.relpath(found.path, engine.root): found
        for found in Inspector(engine.root, RealDisk()).inspect().findings
        if "moved to corrupt/" in found.becomes
    }

    spool = engine.start()
    assert [entry.queue_id for entry in recover(spool).entries] == [queue_id]
    assert engine.names("corrupt") == sorted([f"bounce-{queue_id}", "ledger", f"tmp-{DRAFT}", "trigger"])
    assert {place: fault in said[place].what for place in places} == dict.fromkeys(places, True)
    assert {why for _, why in engine.told} == {fault}
    assert spool.notes(queue_id) == []


@as_root
def test_root_sends_what_the_spools_owner_accepted(engine: MaildirEngine) -> None:
    """Who starts the relay of another user as root by mistake must not set all its mail aside."""
    spool, queue_id = one_in(engine, "cur")
    spool.close()
    for path in (Path(engine.root), *Path(engine.root).rglob("*")):
        os.chown(path, SOMEBODY_ELSE, -1)

    recovery = recover(engine.start())

    assert ([entry.queue_id for entry in recovery.entries], engine.told) == ([queue_id], [])


@as_root
def test_fsck_by_root_judges_for_the_spools_owner(engine: MaildirEngine) -> None:
    spool, queue_id = one_in(engine, "cur")
    spool.close()
    for path in (Path(engine.root), *Path(engine.root).rglob("*")):
        os.chown(path, SOMEBODY_ELSE, -1)
    os.chown(engine.layout.queued(queue_id), 0, -1)

    (finding,) = Inspector(engine.root, RealDisk()).inspect().findings
    assert (finding.kind, finding.what) == ("corrupt_message", "belongs to user 0, and is not ours")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o604, 0o700])
def test_a_file_that_others_may_only_read_is_ours(mode: int) -> None:
    """Some backups lose modes; who may look into the spool at all is a matter of its folders."""
    assert why_of_others(7, mode, {7}) is None


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o400, 0o200, 0o000])
def test_a_file_that_others_may_write_is_none_of_ours(mode: int) -> None:
    assert (why_of_others(7, mode, {7}) or "").startswith(f"mode {mode:04o}: ")
