"""`relay plan`: an edited policy against a relay that runs, and against the spool of one that is down."""

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from relay.clock import SystemClock
from relay.mail.envelope import Envelope
from relay.policy.source import parse_policy
from relay.spool.disk.durable import RealDisk
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.intake import MaildirIntake
from relay.status.plan import plan_to_json
from relay.throttle.admission import Request
from relay.throttle.file_history import FileHistory
from relay.throttle.throttle import Throttle
from tests.fakes.operations import FakeOperations
from tests.fakes.snapshots import a_plan
from tests.unit.cli.control import POLICY, code_of, relay_up, write_policy

LIMITED = POLICY.replace("limits: []", "limits: [{messages: 3, per: 1h}]").replace(
    "    auth: {user: mjd, password_file: not-there}\n", ""
)


@pytest.fixture
def policy_path(tmp_path: Path) -> Path:
    return write_policy(tmp_path, LIMITED)


def edited(policy_path: Path, text: str) -> str:
    path = policy_path.parent / "edited.yaml"
    path.write_text(text)
    return str(path)


def queue_up(policy_path: Path, *senders: str) -> None:
    """Leave messages in the spool of a relay that is down."""
    root = str(policy_path.parent / "spool")
    clock = SystemClock()
    MaildirSpool(root, RealDisk(), clock, lambda _name, _why: None).close()
    intake = MaildirIntake(root, RealDisk(), clock)
    for sender in senders:
        draft = intake.draft()
        draft.append(b"Subject: hello\r\n\r\nhello\r\n")
        envelope = Envelope(
            sender, ("r@there.example",), clock.wall_ns(), "unknown[127.0.0.1]", "here", "ESMTP"
        )
        assert intake.accept([(draft, envelope)]) == [None]


def send(policy_path: Path, messages: int) -> None:
    """Have had so many sent just now."""
    policy, clock = parse_policy(LIMITED.encode(), policy_path), SystemClock()
    history = FileHistory(policy.history_path("isp"), RealDisk(), clock)
    account = Throttle(history, policy.upstreams["isp"].limits, None, clock)
    for answer in account.reserve([Request(1)] * messages):
        account.settle(answer, clock.boottime_ns())  # type: ignore[arg-type]  # all have room
    account.flush()
    account.close()


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert code_of("plan", "--json", *arguments) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def test_a_running_relay_is_asked(policy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    operations, text = FakeOperations(), LIMITED.replace("messages: 3", "messages: 2")
    file = edited(policy_path, text)
    with relay_up(policy_path.parent / "spool", operations):
        assert code_of("plan", file, "--policy", str(policy_path)) == 0

    assert operations.planned == [(text.encode(), Path(file))]
    told = capsys.readouterr().out
    for words in (
        "  ~ upstreams.isp.connections: 4 → 5",
        "over at once: isp: 5 messages per 60s: 8 of 5 used, and nothing goes until 2025-10-09T08:54:02Z",
        "isp: 12 messages, 14 recipients wait",
        "  edited:   all have gone in 3m, at 2025-10-09T08:56:20Z; most of it for limit 5 messages per 60s",
    ):
        assert words in told


def test_json_is_the_plan_on_one_line(policy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with relay_up(policy_path.parent / "spool", FakeOperations()):
        found = planned(capsys, edited(policy_path, LIMITED), "--policy", str(policy_path))

    assert found == json.loads(json.dumps(plan_to_json(a_plan())))


@pytest.mark.parametrize(("within", "code"), [("3m", 0), ("179s", 1), ("1h", 0)])
def test_mail_that_would_wait_longer_is_1(policy_path: Path, within: str, code: int) -> None:
    file = edited(policy_path, LIMITED)
    with relay_up(policy_path.parent / "spool", FakeOperations()):
        assert code_of("plan", file, "--within", within, "--policy", str(policy_path)) == code
        assert code_of("plan", file, "--json", "--within", within, "--policy", str(policy_path)) == code


@pytest.mark.parametrize("within", ["soon", "0s", "-1h", "5"])
def test_a_within_that_is_no_duration_is_a_wrong_call(policy_path: Path, within: str) -> None:
    assert code_of("plan", str(policy_path), "--within", within) == os.EX_USAGE
    assert code_of("plan") == os.EX_USAGE


def test_a_faulty_file_is_78_with_every_fault_as_check_tells_it(
    policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = edited(policy_path, LIMITED.replace("messages: 3", "messages: 0") + "retyr: {}\n")
    operations = FakeOperations()
    with relay_up(policy_path.parent / "spool", operations):
        assert code_of("plan", file, "--policy", str(policy_path)) == os.EX_CONFIG
    told = capsys.readouterr()

    assert code_of("check", file) == os.EX_CONFIG
    assert (told.out, told.err) == ("", capsys.readouterr().err)
    assert len(told.err.splitlines()) == 2
    assert operations.planned == []
    assert code_of("plan", str(policy_path.parent / "absent.yaml")) == os.EX_CONFIG


def test_of_a_relay_that_is_down_it_tells_what_a_start_would_do(
    policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue_up(policy_path, *["a@here.example"] * 4)
    send(policy_path, 2)
    file = edited(policy_path, LIMITED.replace("messages: 3", "messages: 1"))

    found = planned(capsys, file, "--policy", str(policy_path))

    assert found["is_running"] is False
    (over,) = found["over"]
    assert (over["limit"], over["used"], over["count"]) == ("1 messages per 3600s", 2, 1)
    opens_in = datetime.fromisoformat(over["opens_at"]) - datetime.fromisoformat(found["at"])
    assert 3500 < opens_in.total_seconds() <= 3601
    (line,) = found["upstreams"]
    # One has room now, and the others an hour, two and three after what was sent: half as many as asked.
    assert (line["messages"], line["held_by"]) == (4, "limit 3 messages per 3600s")
    began = datetime.fromisoformat(found["at"])
    ends = [datetime.fromisoformat(line[key]) - began for key in ("drained_at", "edited_drained_at")]
    assert [round(end.total_seconds() / 3601, 1) for end in ends] == [1.0, 4.0]
    assert code_of("plan", file, "--policy", str(policy_path), "--within", "3h") == 1
    assert code_of("plan", file, "--policy", str(policy_path), "--within", "5h") == 0


def test_it_changes_no_history_and_asks_no_lock_of_one(
    policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    send(policy_path, 2)
    queue_up(policy_path, "ann@here.example")
    assert code_of("queue", "--policy", str(policy_path)) == 0
    (history,) = (policy_path.parent / "history").glob("*[!k]")
    spool = policy_path.parent / "spool"

    def files() -> dict[str, bytes]:
        found = [*spool.rglob("*"), *history.parent.iterdir()]
        return {str(path): path.read_bytes() for path in found if path.is_file() and path.name != "boots"}

    before, disk = files(), RealDisk()
    held = disk.lock(f"{history}.lock", wait=False)
    assert held is not None
    file = edited(policy_path, LIMITED.replace("messages: 3", "messages: 1"))
    planned(capsys, file, "--policy", str(policy_path))
    disk.close(held)
    assert files() == before
