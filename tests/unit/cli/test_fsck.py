"""`relay fsck`: a line a finding, an exit code for what it comes to, and nothing changed."""

import json
import os
from pathlib import Path

import pytest

from tests.engines.spool.engine import accept, recovered, taken
from tests.engines.spool.maildir_engine import MaildirEngine, on_the_kernel
from tests.fakes.operations import FakeOperations
from tests.unit.cli.control import code_of, relay_up, write_policy


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MaildirEngine:
    monkeypatch.setenv("RELAY_POLICY", str(write_policy(tmp_path)))
    made = on_the_kernel(tmp_path)
    recovered(made).close()
    return made


def told(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_clean_spool_ends_with_0_and_a_sender_that_holds_it_is_named(
    engine: MaildirEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    spool = recovered(engine)
    accept(engine.intake())
    taken(spool)
    assert code_of("fsck") == os.EX_OK
    clean, held = capsys.readouterr().out.splitlines()
    assert clean == f"{engine.root}: 1 messages, clean"
    assert f"process {os.getpid()}" in held
    spool.close()

    assert code_of("fsck", "--json") == os.EX_OK
    assert told(capsys) == [
        {
            "finding": "summary",
            "path": engine.root,
            "messages": 1,
            "arriving": 0,
            "findings": 0,
            "damages": 0,
            "is_held": False,
            "holder": None,
        }
    ]


def test_leftovers_end_with_1_and_damage_with_65(
    engine: MaildirEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(engine.root)
    (root / "tmp" / "0123456789abcdef").touch()
    assert code_of("fsck", "--json") == 1
    finding, summary = told(capsys)
    assert (finding["finding"], finding["path"]) == ("draft", f"{root}/tmp/0123456789abcdef")
    assert finding.keys() == {"finding", "path", "what", "relay", "operator", "damage"}
    assert (finding["damage"], summary["findings"], summary["damages"]) == (False, 1, 0)

    history = root.parent / "history" / "mjd@smtp.example.net"
    history.parent.mkdir()
    for path in (history, root / "reports"):
        path.write_text("not a history")
    (root / "corrupt" / "\x1b[31m\n").write_text("x")
    assert code_of("fsck", "--json") == os.EX_DATAERR
    *findings, summary = told(capsys)
    damaged = {str(each["path"]) for each in findings if each["damage"]}
    assert damaged == {str(history), f"{root}/reports", rf"{root}/corrupt/\x1b[31m\x0a"}
    assert (summary["findings"], summary["damages"]) == (4, 3)

    assert code_of("fsck") == os.EX_DATAERR
    lines = capsys.readouterr().out.splitlines()
    assert rf"{root}/corrupt/\x1b[31m\x0a" in "\n".join(lines)
    assert lines[-1] == f"{root}: 0 messages, 4 findings, 3 of them damage"


def test_a_relay_with_an_unseen_lock_is_known_by_its_socket(
    engine: MaildirEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in another container, whose locks this one's /proc does not list."""
    with relay_up(Path(engine.root), FakeOperations()):
        assert code_of("fsck") == os.EX_OK

    assert "process unknown" in capsys.readouterr().out


def test_what_cannot_be_verified_is_not_called_clean(
    engine: MaildirEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("fsck", "--policy", str(tmp_path / "none")) == os.EX_CONFIG
    Path(engine.root).rename(tmp_path / "elsewhere")
    assert code_of("fsck") == os.EX_NOINPUT
    assert engine.root in capsys.readouterr().err
    (tmp_path / "elsewhere").rename(engine.root)

    def refused(*_: object) -> list[str]:
        raise PermissionError(13, "Permission denied", "spool/new")

    monkeypatch.setattr("relay.spool.disk.durable.RealDisk.names", refused)
    assert code_of("fsck") == os.EX_NOPERM
    assert "spool/new: Permission denied" in capsys.readouterr().err
