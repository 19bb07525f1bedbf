"""What an inspection says of what it may not look at, of folders that are not ours, and of what has gone."""

import os
from pathlib import Path

import pytest

from relay.spool.maildir.inspection import Inspector
from tests.fakes.denying import BROKEN, DENIED, GONE, TOO_MANY, Denying
from tests.fakes.foreign import plant
from tests.unit.spool.engine import accept, recovered, taken
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_kernel

SOMEBODY_ELSE = 12345

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")


@pytest.fixture
def engine(tmp_path: Path) -> MaildirEngine:
    engine = on_the_kernel(tmp_path)
    spool = recovered(engine)
    accept(engine.intake())
    taken(spool)
    spool.close()
    return engine


def _said(engine: MaildirEngine, disk: Denying | None = None) -> list[tuple[str, str]]:
    findings = Inspector(engine.root, disk or engine.disk).inspect().findings
    return sorted((os.path.relpath(finding.path, engine.root), finding.kind) for finding in findings)


def test_a_folder_that_is_a_link_is_told_of(engine: MaildirEngine, tmp_path: Path) -> None:
    hold = Path(engine.root) / "hold"
    hold.rename(tmp_path / "elsewhere")
    hold.symlink_to(tmp_path / "elsewhere")
    assert _said(engine) == [("hold", "link")]


def test_a_folder_that_its_owner_may_not_use_is_told_of(engine: MaildirEngine) -> None:
    (Path(engine.root) / "bounce").chmod(0o500)
    try:
        assert _said(engine) == [("bounce", "mode")]
    finally:
        (Path(engine.root) / "bounce").chmod(0o700)


@pytest.mark.parametrize(
    ("root", "folder", "is_told"),
    [
        (0o700, 0o700, False),
        (0o700, 0o755, False),
        (0o711, 0o700, False),
        (0o700, 0o720, True),
        (0o700, 0o702, True),
        (0o710, 0o740, True),
        (0o710, 0o710, True),
        (0o701, 0o704, True),
        (0o701, 0o701, True),
    ],
)
def test_a_folder_that_others_may_reach_is_told_of(
    engine: MaildirEngine, root: int, folder: int, *, is_told: bool
) -> None:
    Path(engine.root).chmod(root)
    (Path(engine.root) / "hold").chmod(folder)

    assert _said(engine) == [("hold", "mode")] * is_told
    findings = Inspector(engine.root, engine.disk).inspect().findings
    assert [finding.what.startswith(f"mode {folder:04o}: ") for finding in findings] == [True] * is_told


@pytest.mark.parametrize("kind", ["a folder", "a FIFO", "a socket", "a symlink"])
def test_what_is_no_file_is_told_of_by_what_it_is(engine: MaildirEngine, tmp_path: Path, kind: str) -> None:
    plant(Path(engine.root) / "hold" / "0123456789abcdef", kind, tmp_path / "victim")

    (finding,) = Inspector(engine.root, engine.disk).inspect().findings
    assert finding.what == f"{kind.replace('symlink', 'symbolic link')}, no message"


@as_root
def test_what_belongs_to_somebody_else_is_told_of(engine: MaildirEngine) -> None:
    os.chown(Path(engine.root) / "hold", SOMEBODY_ELSE, -1)
    os.chown(Path(engine.root) / "format", SOMEBODY_ELSE, -1)
    assert _said(engine) == [("format", "owner"), ("hold", "owner")]


def test_a_draft_that_may_not_be_read_is_told_of(engine: MaildirEngine) -> None:
    draft = Path(engine.root) / "tmp" / "0123456789abcdef"
    draft.write_bytes(b"relay-message")
    assert _said(engine, Denying("/tmp/0123", DENIED)) == [("tmp/0123456789abcdef", "foreign")]
    assert _said(engine, Denying("/tmp/0123", GONE)) == []


def test_a_message_that_moves_on_meanwhile_is_no_finding(engine: MaildirEngine) -> None:
    assert ("cur", "foreign") not in _said(engine, Denying("/cur/", GONE))


def test_a_ledger_that_is_no_file_is_told_of_once(engine: MaildirEngine) -> None:
    ledger = Path(engine.root) / "ledger"
    ledger.unlink()
    ledger.mkdir()
    assert _said(engine) == [("ledger", "foreign")]


def test_a_reserve_in_a_bad_sector_is_taken_for_ours(engine: MaildirEngine) -> None:
    assert _said(engine, Denying("/reserve", BROKEN, when_read=True)) == []


def test_a_lack_of_our_own_blames_no_reserve(engine: MaildirEngine) -> None:
    with pytest.raises(OSError, match="Too many open files"):
        Inspector(engine.root, Denying("/reserve", TOO_MANY)).inspect()
