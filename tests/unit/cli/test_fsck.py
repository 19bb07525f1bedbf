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
from tests.unit.cli.conftest import Ran, Run
from tests.unit.cli.control import write_policy


@pytest.fixture
def engine(policy_path: Path) -> MaildirEngine:
    made = on_the_kernel(policy_path.parent)
    made.start().close()
    return made


def told(ran: Ran) -> list[dict[str, object]]:
    return [json.loads(line) for line in ran.out.splitlines()]


def test_a_clean_spool_ends_with_0_and_one_that_is_held_with_75(engine: MaildirEngine, run: Run) -> None:
    accept(engine.intake())
    assert run("fsck") == (os.EX_OK, f"{engine.root}: 1 messages, clean\n", "")
    spool = engine.start()
    code, out, _ = run("fsck")
    assert code == os.EX_TEMPFAIL
    assert f"not read: {engine.root} is held by process {os.getpid()}" in out
    (busy,) = told(run("fsck", "--json"))
    assert busy["messages"] is None
    spool.close()

    summary = {"finding": "summary", "path": engine.root, "messages": 1, "findings": 0, "damages": 0}
    assert told(run("fsck", "--json")) == [summary | {"busy": None}]


@pytest.mark.parametrize("name", ["maildir", "log"])
def test_a_damaged_message_ends_with_65_however_long_it_is(name: str, policy_path: Path, run: Run) -> None:
    folder = write_policy(policy_path.parent, engine=name).parent
    made = on_the_kernel(folder) if name == "maildir" else log_on_the_kernel(folder)
    spool, intake = made.start(), made.intake()
    damaged = [accept(intake, content=content) for content in (CONTENT, bytes(600_000))]
    accept(intake)
    assert len(claimed(spool)) == 3
    spool.close()
    intake.close()
    for queue_id in damaged:
        made.damage(queue_id)
    for _ in range(2):
        ran = run("fsck", "--json")
        *findings, summary = told(ran)
        assert ran.code == os.EX_DATAERR
        assert {each["path"] for each in findings} == {f"{made.root}/corrupt/{each}" for each in damaged}
        assert all(each["damage"] for each in findings)
        assert (summary["messages"], summary["findings"], summary["damages"]) == (1, 2, 2)


def test_a_torn_history_ends_with_1_and_a_damaged_history_with_65(engine: MaildirEngine, run: Run) -> None:
    root = Path(engine.root)
    history = root.parent / "history" / "mjd@smtp.example.net"
    clock = SystemClock()
    account = Throttle(FileHistory(history, RealDisk(), clock), [], None, clock)
    account.reserve([Request(1)])
    account.close()
    history.write_bytes(history.read_bytes().rstrip(b"\0") + b"00000000 [[1")
    ran = run("fsck", "--json")
    torn, _ = told(ran)
    assert (ran.code, torn["path"], torn["damage"], torn["operator"]) == (1, str(history), False, None)

    for path in (history, root / "reports"):
        path.write_text("not a history")
    (root / "corrupt" / "\x1b[31m\n").write_text("x")
    ran = run("fsck", "--json")
    *findings, summary = told(ran)
    assert ran.code == os.EX_DATAERR
    assert findings[0].keys() == {"finding", "path", "what", "relay", "operator", "damage"}
    damaged = {str(history), f"{root}/reports", f"{root}/corrupt/?[31m"}
    assert {each["path"] for each in findings if each["damage"]} == damaged
    assert (summary["findings"], summary["damages"]) == (3, 3)
    *lines, last = run("fsck").out.splitlines()
    assert any(f"{root}/corrupt/?[31m: " in line and " -> " in line for line in lines)
    assert last == f"{root}: 0 messages, 3 findings, 3 of them damage"


def test_what_cannot_be_verified_is_not_called_clean(
    engine: MaildirEngine, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(engine.root).rename(tmp_path / "elsewhere")
    code, _, err = run("fsck")
    assert (code, engine.root in err) == (os.EX_NOINPUT, True)
    (tmp_path / "elsewhere").rename(engine.root)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    code, _, err = run("fsck")
    assert (code, f"{engine.root}: it belongs to user" in err) == (os.EX_NOPERM, True)
