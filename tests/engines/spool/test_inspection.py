"""The inspection of a maildir tells each thing that is not as it should be, once, and changes nothing."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import RealDisk
from relay.spool.finding import Inspection
from relay.spool.interface import Spool
from relay.spool.maildir.inspection import Inspector
from tests.engines.spool.engine import BOUNCED, CONTENT, RELAYED, accept, note, recovered, taken
from tests.engines.spool.maildir_engine import MaildirEngine, on_the_kernel
from tests.fakes.denying import BROKEN, TOO_MANY, Denying
from tests.fakes.foreign import KINDS, plant

SOME_ID = "0123456789abcdef"


@pytest.fixture
def engine(tmp_path: Path) -> MaildirEngine:
    return on_the_kernel(tmp_path)


def inspected(engine: MaildirEngine, disk: RealDisk | None = None) -> Inspection:
    return Inspector(engine.root, disk or RealDisk()).inspect()


def found(engine: MaildirEngine) -> list[tuple[str, str, bool]]:
    """Return each finding: its path below the spool, its kind, and whether somebody has to look."""
    findings = inspected(engine).findings
    assert all(f.what and f.becomes and f.advice is not None for f in findings)
    return sorted((os.path.relpath(f.path, engine.root), f.kind, f.is_damage) for f in findings)


def everything(root: str) -> dict[str, tuple[int, int, int, int]]:
    """Return all that a spool is: names, inodes, modes, times."""
    stats = {str(path): path.lstat() for path in Path(root).rglob("*")}
    return {path: (at.st_ino, at.st_mode, at.st_mtime_ns, at.st_size) for path, at in stats.items()}


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


def test_an_inspection_changes_nothing_and_says_what_the_next_start_sets_aside(engine: MaildirEngine) -> None:
    spool, queue_ids = a_spool(engine)
    spool.close()
    root = Path(engine.root)
    for place in ("tmp", "new", "cur/00", "hold", "bounce"):
        for number, kind in enumerate(KINDS):
            plant(root / place / f"{SOME_ID[:-1]}{number}", kind, root / "format")
    engine.damage(queue_ids[0])
    before = everything(engine.root)
    said = [
        Path(f.path).lstat().st_ino for f in inspected(engine).findings if "moved to corrupt/" in f.becomes
    ]
    assert everything(engine.root) == before

    recovered(engine).close()
    assert sorted(path.lstat().st_ino for path in (root / "corrupt").iterdir()) == sorted(said)


Break = Callable[[MaildirEngine, list[QueueId]], object]


def _queued(engine: MaildirEngine, queue_id: QueueId) -> Path:
    return Path(engine.layout.queued(queue_id))


def _file(engine: MaildirEngine, name: str) -> Path:
    return Path(engine.root) / name


def _finish(engine: MaildirEngine, queue_id: QueueId) -> None:
    path = _queued(engine, queue_id)
    path.write_bytes(path.read_bytes().replace(b"\nT", b"\nD"))


def _append(path: str, content: bytes) -> None:
    with Path(path).open("ab") as file:
        file.write(content)


# What is done to a spool, whose sender is down, and what is said of it: path, kind, damage.
# In a path {0} to {4} are the messages, in the home of which each of them is.
CASES: dict[str, tuple[Break, list[tuple[str, str, bool]]]] = {
    "a damaged message": (lambda engine, ids: engine.damage(ids[0]), [("{0}", "corrupt_message", True)]),
    "a message that is finished": (lambda engine, ids: _finish(engine, ids[3]), [("{3}", "finished", False)]),
    "a second name of one message": (
        lambda engine, ids: os.link(engine.layout.queued(ids[3]), engine.layout.held(ids[3])),
        [("{3}", "second_name", False)],
    ),
    "a message that was removed": (
        lambda engine, ids: _queued(engine, ids[3]).unlink(),
        [("ledger", "missing", True)],
    ),
    "a message in corrupt/": (
        lambda engine, ids: _queued(engine, ids[3]).rename(_file(engine, f"corrupt/{ids[3]}")),
        [("corrupt/{id3}", "set_aside", True)],
    ),
    "a draft of a dead listener": (
        lambda engine, _ids: _file(engine, f"tmp/{SOME_ID}").touch(),
        [(f"tmp/{SOME_ID}", "draft", False)],
    ),
    "a stray": (lambda engine, _ids: _file(engine, "x").touch(), [("x", "stray", True)]),
    "a rewrite that a crash cut off": (
        lambda engine, _ids: _file(engine, "ledger.new").touch(),
        [("ledger.new", "leftover", False)],
    ),
    "notes that are gone": (
        lambda engine, ids: Path(engine.layout.notes(ids[1])).unlink(),
        [("bounce/{id1}", "no_notes", False)],
    ),
    "a torn line at the end of the ledger": (
        lambda engine, _ids: _append(engine.layout.file("ledger"), b"in 012"),
        [("ledger", "torn_line", False)],
    ),
    "another format": (
        lambda engine, _ids: _file(engine, "format").write_text("relay spool 2\n"),
        [("format", "format", True)],
    ),
    "a folder for everybody": (
        lambda engine, _ids: _file(engine, "new").chmod(0o777),
        [("new", "mode", True)],
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_each_thing_is_told_once_and_for_what_it_is(engine: MaildirEngine, what: str) -> None:
    spool, queue_ids = a_spool(engine)
    spool.close()
    change, expected = CASES[what]
    change(engine, queue_ids)
    names = {f"id{n}": queue_id for n, queue_id in enumerate(queue_ids)}
    homes = [os.path.relpath(engine.layout.queued(queue_id), engine.root) for queue_id in queue_ids]

    assert found(engine) == [(path.format(*homes, **names), kind, bad) for path, kind, bad in expected]


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
    seen = inspected(engine, disk)

    assert not steps
    assert [finding.kind for finding in seen.findings if finding.kind != "finished"] == []


def test_an_unreadable_file_is_told_with_all_the_others_and_a_lack_of_ours_blames_none(
    engine: MaildirEngine,
) -> None:
    spool, queue_ids = a_spool(engine)
    spool.close()
    _finish(engine, queue_ids[3])

    seen = inspected(engine, Denying(engine.layout.queued(queue_ids[0]), BROKEN, when_read=True))
    assert sorted(finding.kind for finding in seen.findings) == ["finished", "unreadable"]
    with pytest.raises(OSError, match="Too many open files"):
        inspected(engine, Denying(engine.layout.queued(queue_ids[0]), TOO_MANY))
