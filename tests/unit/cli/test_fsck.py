"""`relay fsck`: a line a finding, and an exit code for what all of them come to."""

import json
import os
from pathlib import Path

import pytest

from relay.clock import SystemClock
from relay.spool.disk.durable import RealDisk
from relay.throttle.admission import Request
from relay.throttle.file_history import FileHistory
from relay.throttle.throttle import Throttle
from tests.engines.spool.engine import CONTENT, accept, claimed
from tests.engines.spool.log_engine import log_on_the_kernel
from tests.engines.spool.maildir_engine import MaildirEngine, on_the_kernel
from tests.unit.cli.control import code_of, write_policy


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MaildirEngine:
    monkeypatch.setenv("RELAY_POLICY", str(write_policy(tmp_path)))
    made = on_the_kernel(tmp_path)
    made.start().close()
    return made


def told(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_clean_spool_ends_with_0_and_one_that_is_held_with_75(
    engine: MaildirEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    accept(engine.intake())
    assert code_of("fsck") == os.EX_OK
    assert capsys.readouterr().out == f"{engine.root}: 1 messages, clean\n"
    spool = engine.start()
    assert code_of("fsck") == os.EX_TEMPFAIL
    assert f"not read: {engine.root} is held by process {os.getpid()}" in capsys.readouterr().out
    assert code_of("fsck", "--json") == os.EX_TEMPFAIL
    (busy,) = told(capsys)
    assert busy["messages"] is None
    spool.close()

    assert code_of("fsck", "--json") == os.EX_OK
    summary = {"finding": "summary", "path": engine.root, "messages": 1, "findings": 0, "damages": 0}
    assert told(capsys) == [summary | {"busy": None}]


@pytest.mark.parametrize("name", ["maildir", "log"])
def test_a_damaged_message_ends_with_65_however_long_it_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RELAY_POLICY", str(write_policy(tmp_path, engine=name)))
    made = on_the_kernel(tmp_path) if name == "maildir" else log_on_the_kernel(tmp_path)
    spool, intake = made.start(), made.intake()
    damaged = [accept(intake, content=content) for content in (CONTENT, bytes(600_000))]
    accept(intake)
    assert len(claimed(spool)) == 3
    spool.close()
    intake.close()
    for queue_id in damaged:
        made.damage(queue_id)
    for _ in range(2):
        assert code_of("fsck", "--json") == os.EX_DATAERR
        *findings, summary = told(capsys)
        assert {str(each["path"]) for each in findings} == {f"{made.root}/corrupt/{each}" for each in damaged}
        assert all(each["damage"] for each in findings)
        assert (summary["messages"], summary["findings"], summary["damages"]) == (1, 2, 2)


def test_a_torn_history_ends_with_1_and_a_damaged_history_with_65(
    engine: MaildirEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(engine.root)
    history = root.parent / "history" / "mjd@smtp.example.net"
    clock = SystemClock()
    account = Throttle(FileHistory(history, RealDisk(), clock), [], None, clock)
    account.reserve([Request(1)])
    account.close()
    history.write_bytes(history.read_bytes().rstrip(b"\0") + b"00000000 [[1")
    assert code_of("fsck", "--json") == 1
    torn, summary = told(capsys)
    assert (torn["path"], torn["damage"], torn["operator"]) == (str(history), False, None)
    for path in (history, root / "reports"):
        path.write_text("not a history")
    (root / "corrupt" / "\x1b[31m\n").write_text("x")
    assert code_of("fsck", "--json") == os.EX_DATAERR
    *findings, summary = told(capsys)
    assert findings[0].keys() == {"finding", "path", "what", "relay", "operator", "damage"}
    damaged = {str(each["path"]) for each in findings if each["damage"]}
    assert damaged == {str(history), f"{root}/reports", f"{root}/corrupt/?[31m"}
    assert (summary["findings"], summary["damages"]) == (3, 3)

    assert code_of("fsck") == os.EX_DATAERR
    *lines, last = capsys.readouterr().out.splitlines()
    assert any(f"{root}/corrupt/?[31m: " in line and " -> " in line for line in lines)
    assert last == f"{root}: 0 messages, 3 findings, 3 of them damage"


def test_what_cannot_be_verified_is_not_called_clean(
    engine: MaildirEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("fsck", "--policy", str(tmp_path / "none")) == os.EX_CONFIG
    Path(engine.root).rename(tmp_path / "elsewhere")
    assert code_of("fsck") == os.EX_NOINPUT
    assert engine.root in capsys.readouterr().err
    (tmp_path / "elsewhere").rename(engine.root)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert code_of("fsck") == os.EX_NOPERM
    assert f"{engine.root}: it belongs to user" in capsys.readouterr().err
