"""The inspection of a spool tells each thing that is not as it should be, once, and changes nothing."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import RealDisk
from relay.spool.finding import Inspection
from relay.spool.interface import Spool
from relay.spool.maildir.inspection import Inspector
from tests.fakes.foreign import KINDS, plant
from tests.unit.spool.engine import BOUNCED, CONTENT, RELAYED, accept, note, recovered, taken
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_kernel

FOREIGN_ID = "0123456789abcdef"


@pytest.fixture
def engine(tmp_path: Path) -> MaildirEngine:
    return on_the_kernel(tmp_path)


def inspected(engine: MaildirEngine) -> Inspection:
    return Inspector(engine.root, RealDisk()).inspect()


def found(engine: MaildirEngine) -> list[tuple[str, str, bool]]:
    """Return each finding: its path below the spool, its kind, and whether somebody has to look."""
    findings = inspected(engine).findings
    return sorted((os.path.relpath(f.path, engine.root), f.kind, f.is_damage) for f in findings)


def everything(root: str) -> dict[str, tuple[int, int, int, int, bytes]]:
    """Return all that a spool is: names, inodes, modes, times, contents."""
    seen = {}
    for path in sorted(Path(root).rglob("*")):
        at = path.lstat()
        is_small_file = path.is_file() and not path.is_symlink() and at.st_size < 1 << 20
        content = path.read_bytes() if is_small_file else b""
        seen[str(path)] = at.st_ino, at.st_mode, at.st_mtime_ns, at.st_size, content
    return seen


def plant_everything(engine: MaildirEngine, places: list[str]) -> None:
    root = Path(engine.root)
    for place in places:
        for number, kind in enumerate(KINDS):
            plant(root / place / f"{FOREIGN_ID[:-1]}{number}", kind, root / "format")


def a_spool(engine: MaildirEngine) -> tuple[Spool, list[QueueId]]:
    """Return a spool at work, with a message in each state, and the five messages."""
    spool, intake = recovered(engine), engine.intake()
    queue_ids = [accept(intake) for _ in range(4)]
    taken(spool)
    spool.mark({queue_ids[0]: {0: RELAYED}})
    spool.note({queue_ids[1]: [note(0)]})
    spool.mark({queue_ids[1]: {0: BOUNCED}})
    spool.hold(queue_ids[2])
    return spool, [*queue_ids, accept(intake)]


def test_a_spool_at_rest_is_clean_and_so_is_one_at_work(engine: MaildirEngine) -> None:
    spool, queue_ids = a_spool(engine)
    intake = engine.intake()
    draft = intake.draft()
    draft.append(CONTENT)
    intake.spill(draft)
    at_work = inspected(engine)
    assert (at_work.findings, at_work.messages, at_work.arriving) == ([], len(queue_ids), 1)
    assert at_work.holder == str(os.getpid())
    intake.discard(draft)
    spool.close()

    at_rest = inspected(engine)
    assert (at_rest.findings, at_rest.messages, at_rest.arriving) == ([], len(queue_ids), 0)
    assert at_rest.holder is None


def test_an_inspection_changes_nothing_and_stops_no_start(engine: MaildirEngine) -> None:
    spool, _ = a_spool(engine)
    spool.close()
    plant_everything(engine, ["tmp", "new", "cur/00", "hold", "bounce", "corrupt", "."])
    before = everything(engine.root)
    assert inspected(engine).findings

    assert everything(engine.root) == before
    recovered(engine).close()


def test_what_fsck_says_is_set_aside_the_next_start_sets_aside(
    engine: MaildirEngine,
) -> None:
    spool, queue_ids = a_spool(engine)
    spool.close()
    plant_everything(engine, ["tmp", "new", "cur/00", "hold", "bounce"])
    engine.damage(queue_ids[0])
    # What an operator put into hold/ stays there: the one in the queue goes.
    _copy(engine.layout.queued(queue_ids[3]), engine.layout.held(queue_ids[3]))
    findings = inspected(engine).findings
    said = {Path(f.path) for f in findings if "moved to corrupt/" in f.becomes}
    inodes = {path.lstat().st_ino for path in said}

    recovered(engine).close()
    kept = {path.lstat().st_ino for path in (Path(engine.root) / "corrupt").iterdir()}
    assert kept == inodes


def test_what_is_no_file_in_corrupt_is_told_for_what_it_is(engine: MaildirEngine) -> None:
    spool, ids = a_spool(engine)
    spool.close()
    corner = Path(engine.root) / "corrupt"
    (corner / ids[0]).mkdir()
    os.mkfifo(corner / ids[1])
    (corner / ids[2]).symlink_to(engine.layout.queued(ids[3]))

    told = {Path(f.path).name: f.what for f in inspected(engine).findings if f.kind == "set_aside"}
    kinds = ("a folder", "a FIFO", "a symbolic link")
    assert told == {name: f"{kind}, no message" for name, kind in zip(ids[:3], kinds, strict=True)}


@pytest.mark.parametrize(("name", "advice"), [("lock", "move it away"), ("reserve", "look at it")])
def test_the_advice_is_to_move_what_stops_a_start(engine: MaildirEngine, name: str, advice: str) -> None:
    recovered(engine).close()
    path = Path(engine.root) / name
    path.unlink()
    path.mkdir()

    assert [f.advice.startswith(advice) for f in inspected(engine).findings if f.path == str(path)] == [True]


Break = Callable[[MaildirEngine, list[QueueId]], object]


def _file(engine: MaildirEngine, name: str) -> Path:
    return Path(engine.root) / name


def _write(engine: MaildirEngine, *names: str) -> None:
    """Put empty files in the place of whatever is there."""
    for name in names:
        path = _file(engine, name)
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.touch()


def _queued(engine: MaildirEngine, queue_id: QueueId) -> Path:
    return Path(engine.layout.queued(queue_id))


def _finish(engine: MaildirEngine, queue_id: QueueId) -> None:
    path = _queued(engine, queue_id)
    lines = path.read_bytes().replace(b"\nTalice", b"\nDalice").replace(b"\nTbob", b"\nDbob")
    path.write_bytes(lines.replace(b"\nTcarol", b"\nDcarol"))


def _remove_from_corrupt(engine: MaildirEngine, queue_id: QueueId) -> None:
    path = _queued(engine, queue_id)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    recovered(engine).close()
    _file(engine, f"corrupt/{queue_id}").unlink()


# What is done to a spool, whose sender is down, and what is said of it: path, kind, damage.
# In a path {0} to {4} are the messages, in the home of which each of them is.
CASES: dict[str, tuple[Break, list[tuple[str, str, bool]]]] = {
    "a content with a wrong bit": (
        lambda engine, ids: _damage_content(engine.layout.queued(ids[0])),
        [("{0}", "corrupt_message", True)],
    ),
    "a message that is finished": (lambda engine, ids: _finish(engine, ids[3]), [("{3}", "finished", False)]),
    "a message in another part": (
        lambda engine, ids: _queued(engine, ids[3]).rename(f"{_elsewhere(engine, ids[3])}/{ids[3]}"),
        [("{elsewhere3}", "misplaced", False)],
    ),
    "a second name of one message": (
        lambda engine, ids: os.link(engine.layout.queued(ids[3]), engine.layout.held(ids[3])),
        [("{3}", "second_name", False)],
    ),
    "a copy of a message": (
        lambda engine, ids: _copy(engine.layout.queued(ids[3]), engine.layout.held(ids[3])),
        [("{3}", "copy", True)],
    ),
    "a message that was removed": (
        lambda engine, ids: _queued(engine, ids[3]).unlink(),
        [("ledger", "missing", True)],
    ),
    "a message removed from corrupt/": (
        lambda engine, ids: _remove_from_corrupt(engine, ids[3]),
        [("ledger", "removed", False)],
    ),
    "a whole message in corrupt/": (
        lambda engine, ids: _queued(engine, ids[3]).rename(f"{engine.root}/corrupt/{ids[3]}"),
        [("corrupt/{id3}", "set_aside", True)],
    ),
    "a message of another user's": (
        lambda engine, ids: _queued(engine, ids[3]).chmod(0o000),
        [("{3}", "corrupt_message", True)],
    ),
    "a draft of a dead listener": (
        lambda engine, _ids: _write(engine, f"tmp/{FOREIGN_ID}"),
        [(f"tmp/{FOREIGN_ID}", "draft", False)],
    ),
    "a foreign draft": (
        lambda engine, _ids: _file(engine, f"tmp/{FOREIGN_ID}").write_text("mine"),
        [(f"tmp/{FOREIGN_ID}", "foreign", True)],
    ),
    "a stray in cur/": (
        lambda engine, _ids: _write(engine, f"cur/{FOREIGN_ID}"),
        [(f"cur/{FOREIGN_ID}", "stray", True)],
    ),
    "a stray in the spool": (lambda engine, _ids: _write(engine, "x"), [("x", "stray", True)]),
    "rewrites that a crash cut off": (
        lambda engine, _ids: _write(engine, "ledger.new", "format.1", "boots.new", "notes.new"),
        [
            ("boots.new", "leftover", False),
            ("format.1", "leftover", False),
            ("ledger.new", "leftover", False),
            ("notes.new", "leftover", False),
        ],
    ),
    "others' files in the place of ours": (
        lambda engine, _ids: _mine(engine, "ledger.new", "reserve", "boots", "boots.new", "notes.new"),
        [
            ("boots", "foreign", True),
            ("boots.new", "foreign", True),
            ("ledger.new", "foreign", True),
            ("notes.new", "foreign", True),
            ("reserve", "foreign", True),
        ],
    ),
    "notes of a message that is gone": (
        lambda engine, _ids: _write(engine, f"bounce/{FOREIGN_ID}"),
        [(f"bounce/{FOREIGN_ID}", "leftover", False)],
    ),
    "notes of a message that is gone, with others' lines": (
        lambda engine, ids: _notes_with(engine, ids[1], b"and mine\n"),
        [(f"bounce/{FOREIGN_ID}", "foreign", True)],
    ),
    "a control socket for everybody": (
        lambda engine, _ids: _socket(engine).chmod(0o666),
        [("control.sock", "owner", True)],
    ),
    "foreign notes": (
        lambda engine, _ids: _write(engine, "bounce/README"),
        [("bounce/README", "foreign", True)],
    ),
    "notes that are gone": (
        lambda engine, ids: Path(engine.layout.notes(ids[1])).unlink(),
        [("bounce/{id1}", "no_notes", False)],
    ),
    "a torn note with another behind it": (
        lambda engine, ids: _append(engine.layout.notes(ids[1]), b'{"index":\n\n'),
        [("bounce/{id1}", "torn_note", False)],
    ),
    "a torn line at the end of the ledger": (
        lambda engine, _ids: _append(engine.layout.file("ledger"), b"in 012"),
        [("ledger", "torn_line", False)],
    ),
    "a damaged line of the ledger": (
        lambda engine, _ids: _append(engine.layout.file("ledger"), b"in 012 1\n"),
        [("ledger", "damaged_ledger", True)],
    ),
    "another format": (
        lambda engine, _ids: _file(engine, "format").write_text("relay spool 2\n"),
        [("format", "format", True)],
    ),
    "a trigger that is none": (
        lambda engine, _ids: _write(engine, "trigger"),
        [("trigger", "foreign", True)],
    ),
    "a folder for everybody": (
        lambda engine, _ids: _file(engine, "new").chmod(0o777),
        [("new", "mode", True)],
    ),
    "a folder that is not there": (
        lambda engine, _ids: shutil.rmtree(f"{engine.root}/bounce"),
        [("bounce", "no_folder", False)],
    ),
    "a folder that is a file": (
        lambda engine, _ids: _write(engine, "tmp"),
        [("tmp", "no_folder", True)],
    ),
}


def _elsewhere(engine: MaildirEngine, queue_id: QueueId) -> str:
    home = engine.layout.queued_folder(queue_id)
    return next(folder for folder in engine.layout.queued_folders() if folder != home)


def _damage_content(path: str) -> None:
    whole = Path(path).read_bytes()
    assert CONTENT in whole
    Path(path).write_bytes(whole.replace(CONTENT, CONTENT.swapcase()))


def _copy(path: str, target: str) -> None:
    Path(target).write_bytes(Path(path).read_bytes())
    Path(target).chmod(0o600)


def _mine(engine: MaildirEngine, *names: str) -> None:
    for name in names:
        _file(engine, name).write_text("mine")


def _notes_with(engine: MaildirEngine, queue_id: QueueId, line: bytes) -> None:
    _file(engine, f"bounce/{FOREIGN_ID}").write_bytes(Path(engine.layout.notes(queue_id)).read_bytes() + line)
    _file(engine, f"bounce/{FOREIGN_ID}").chmod(0o600)


def _socket(engine: MaildirEngine) -> Path:
    with socket.socket(socket.AF_UNIX) as listening:
        # By a short path: its length is limited.
        folder = os.open(engine.root, os.O_PATH)
        listening.bind(f"/proc/self/fd/{folder}/control.sock")
        os.close(folder)
    return _file(engine, "control.sock")


def _append(path: str, content: bytes) -> None:
    with Path(path).open("ab") as file:
        file.write(content)


@pytest.mark.parametrize("what", CASES)
def test_each_thing_is_told_once_and_for_what_it_is(engine: MaildirEngine, what: str) -> None:
    spool, queue_ids = a_spool(engine)
    spool.close()
    change, expected = CASES[what]
    change(engine, queue_ids)
    names = {f"id{n}": queue_id for n, queue_id in enumerate(queue_ids)}
    homes = [os.path.relpath(engine.layout.queued(queue_id), engine.root) for queue_id in queue_ids]
    elsewhere = os.path.relpath(f"{_elsewhere(engine, queue_ids[3])}/{queue_ids[3]}", engine.root)
    said = [
        (path.format(*homes, elsewhere3=elsewhere, **names), kind, is_damage)
        for path, kind, is_damage in expected
    ]

    # With bounce/ the reasons of one recipient are gone, and that is told too.
    assert [one for one in found(engine) if one[1] != "no_notes" or what.startswith("notes")] == said


def test_every_finding_says_what_becomes_of_it_and_what_to_do(engine: MaildirEngine) -> None:
    spool, queue_ids = a_spool(engine)
    spool.close()
    for what in ("a content with a wrong bit", "a stray in cur/", "a foreign draft", "foreign notes"):
        CASES[what][0](engine, queue_ids)
    findings = inspected(engine).findings

    assert len(findings) == 4
    assert all(f.what and f.becomes and f.advice for f in findings)
    assert all("\n" not in f.what + f.becomes + f.advice for f in findings)


def test_what_moves_meanwhile_is_neither_missing_nor_double(
    engine: MaildirEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender that takes, holds, releases and ends messages between any two looks at a folder."""
    spool, queue_ids = a_spool(engine)
    disk = RealDisk()
    steps: list[Callable[[], object]] = [
        lambda: spool.take(10),
        lambda: spool.release(queue_ids[2]),
        lambda: spool.hold(queue_ids[3]),
        lambda: spool.mark({queue_ids[4]: dict.fromkeys(range(3), RELAYED)}),
        lambda: spool.finish([queue_ids[4]]),
        lambda: spool.release(queue_ids[3]),
    ]
    names, looks = disk.names, []

    def meanwhile(path: str) -> list[str]:
        looks.append(path)
        if len(looks) % 12 == 8 and steps:
            steps.pop(0)()
        return names(path)

    monkeypatch.setattr(disk, "names", meanwhile)
    seen = Inspector(engine.root, disk).inspect()

    assert not steps
    assert [finding.kind for finding in seen.findings if finding.kind != "finished"] == []


def test_a_file_that_goes_before_it_is_looked_at_is_no_finding(
    engine: MaildirEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, _ = a_spool(engine)
    spool.close()
    disk = RealDisk()
    names = disk.names

    monkeypatch.setattr(disk, "names", lambda path: [*names(path), FOREIGN_ID])
    findings = Inspector(engine.root, disk).inspect().findings
    # Beside the folders names alone are looked at.
    assert {os.path.relpath(f.path, engine.root) for f in findings} == {FOREIGN_ID, f"cur/{FOREIGN_ID}"}


@pytest.mark.parametrize(("make", "kind"), [(os.link, "second_name"), (_copy, "copy")])
def test_of_two_misplaced_files_of_one_id_the_first_comes_home(
    engine: MaildirEngine, make: Callable[[str, str], object], kind: str
) -> None:
    spool, queue_ids = a_spool(engine)
    spool.close()
    home = engine.layout.queued_folder(queue_ids[3])
    first, second = [f"{f}/{queue_ids[3]}" for f in engine.layout.queued_folders() if f != home][:2]
    _queued(engine, queue_ids[3]).rename(first)
    make(first, second)

    findings = inspected(engine).findings
    assert [(f.path, f.kind) for f in findings] == [(first, "misplaced"), (second, kind)]
    assert first in findings[1].what


def test_where_there_is_no_spool_there_is_nothing_to_say(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Inspector(str(tmp_path / "none"), RealDisk()).inspect()
