"""`relay fsck`: a line a finding, an exit code for what it comes to, and nothing changed."""

import json
import os
from pathlib import Path

import pytest

from tests.fakes.operations import FakeOperations
from tests.unit.cli.control import code_of, relay_up, write_policy
from tests.unit.spool.engine import accept, recovered, taken
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_kernel


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MaildirEngine:
    monkeypatch.setenv("RELAY_POLICY", str(write_policy(tmp_path)))
    return on_the_kernel(tmp_path)


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_a_clean_spool_is_said_to_be_clean(engine: MaildirEngine, capsys: pytest.CaptureFixture[str]) -> None:
    spool = recovered(engine)
    accept(engine.intake())
    taken(spool)
    spool.close()

    assert code_of("fsck") == os.EX_OK
    assert said(capsys) == [f"{engine.root}: 1 messages, clean"]


def test_a_damaged_history_of_reports_stops_nothing_and_is_told(
    engine: MaildirEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    recovered(engine).close()
    reports = Path(engine.root) / "reports"
    reports.write_text("not a history")
    (Path(engine.root) / "reports.lock").touch()
    (Path(engine.root) / "reports.new").touch()

    assert code_of("fsck") == os.EX_DATAERR
    leftover, damaged, _ = said(capsys)
    assert leftover == f"{reports}.new: a rewrite that a crash cut off: removed by the next one"
    assert damaged.startswith(f"{reports}: byte 0: not a history")
    assert damaged.endswith(": reports are not counted -> remove it while no relay runs")


def test_leftovers_end_with_1_and_damage_with_65(
    engine: MaildirEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    recovered(engine).close()
    draft = Path(engine.root) / "tmp" / "0123456789abcdef"
    draft.touch()
    assert code_of("fsck") == 1
    assert said(capsys) == [
        (
            f"{draft}: a draft whose listener is gone; its client was told nothing: "
            "removed at the next start, or within the hour"
        ),
        f"{engine.root}: 0 messages, 1 findings, 0 of them damage",
    ]
    history = Path(engine.root).parent / "history" / "mjd@smtp.example.net"
    history.parent.mkdir()
    history.write_text("not a history")
    (Path(engine.root) / "corrupt" / "\x1b[31m\n").write_text("x")

    assert code_of("fsck") == os.EX_DATAERR
    lines = said(capsys)
    assert len(lines) == 4
    assert lines[1].startswith(
        rf"{engine.root}/corrupt/\x1b[31m\x0a: not a name that we give: kept and counted"
    )
    assert lines[2].startswith(f"{history}: byte 0: not a history")
    assert "nothing is sent" in lines[2]
    assert " -> stop, wait for the longest period" in lines[2]
    assert lines[3] == f"{engine.root}: 0 messages, 3 findings, 2 of them damage"


def test_json_is_an_object_a_line_and_a_summary(
    engine: MaildirEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    recovered(engine).close()
    (Path(engine.root) / "new" / "README").write_text("x")
    assert code_of("fsck", "--json") == os.EX_DATAERR

    finding, summary = map(json.loads, said(capsys))
    assert finding == {
        "finding": "corrupt_message",
        "path": f"{engine.root}/new/README",
        "what": "not a name that we give",
        "relay": "moved to corrupt/ when the relay next meets it, never sent, never deleted",
        "operator": "see in corrupt/ what it is, and what the log says",
        "damage": True,
    }
    assert summary == {
        "finding": "summary",
        "path": engine.root,
        "messages": 0,
        "arriving": 0,
        "findings": 1,
        "damages": 1,
        "is_held": False,
        "holder": None,
    }


def test_a_sender_that_holds_the_spool_is_named(
    engine: MaildirEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    spool = recovered(engine)
    accept(engine.intake())

    assert code_of("fsck") == os.EX_OK
    clean, held = said(capsys)
    assert clean.endswith("1 messages, clean")
    assert held.startswith(f"a sender holds the spool (process {os.getpid()}), and 0 messages were arriving")
    spool.close()


def test_a_relay_with_an_unseen_lock_is_known_by_its_socket(
    engine: MaildirEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in another container, whose locks this one's /proc does not list."""
    recovered(engine).close()
    with relay_up(Path(engine.root), FakeOperations()):
        assert code_of("fsck") == os.EX_OK

    assert "process unknown" in said(capsys)[-1]


def test_what_cannot_be_verified_is_not_called_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_policy(tmp_path)
    (tmp_path / "spool").rmdir()
    assert code_of("fsck", "--policy", str(path)) == os.EX_NOINPUT
    assert str(tmp_path / "spool") in capsys.readouterr().err
    assert code_of("fsck", "--policy", str(tmp_path / "none")) == os.EX_CONFIG

    def refused(*_: object) -> list[str]:
        raise PermissionError(13, "Permission denied", "spool/new")

    recovered(on_the_kernel(tmp_path)).close()
    monkeypatch.setattr("relay.spool.disk.durable.RealDisk.names", refused)
    assert code_of("fsck", "--policy", str(path)) == os.EX_NOPERM
    assert "spool/new: Permission denied" in capsys.readouterr().err
