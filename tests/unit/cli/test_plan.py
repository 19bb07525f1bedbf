"""`relay plan`: an edited policy against a relay that runs, and against the spool of one that is down."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay.clock import SECOND_NS, SystemClock
from relay.mail.envelope import Envelope
from relay.policy.source import parse_policy
from relay.spool.disk.durable import RealDisk
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.intake import MaildirIntake
from relay.status.estimate.plan import UpstreamCourse, plan_to_json
from relay.throttle.throttle import Request, Throttle
from tests.fakes.operations import FakeOperations
from tests.fakes.snapshots import a_plan
from tests.unit.cli.control import POLICY, code_of, relay_up, write_policy

LIMITED = POLICY.replace("host: smtp", "limits: [{messages: 3, per: 1h}]\n    host: smtp").replace(
    "    auth: {user: mjd, password_file: not-there}\n", ""
)
LANES = "lanes:\n  news: {sender: '@news.example', ceiling: 50}\n"


@pytest.fixture
def policy_path(tmp_path: Path) -> Path:
    return write_policy(tmp_path, LIMITED)


def edited(policy_path: Path, text: str) -> str:
    path = policy_path.parent / "edited.yaml"
    path.write_text(text)
    return str(path)


def queue_up(policy_path: Path, *senders: str, recipients: int = 1) -> None:
    """Leave messages in the spool of a relay that is down."""
    root = str(policy_path.parent / "spool")
    clock = SystemClock()
    MaildirSpool(root, RealDisk(), clock, lambda _name, _why: None).close()
    intake = MaildirIntake(root, RealDisk(), clock)
    for sender in senders:
        draft = intake.draft()
        draft.append(b"Subject: hello\r\n\r\nhello\r\n")
        whom = tuple(f"r{number}@there.example" for number in range(recipients))
        envelope = Envelope(sender, whom, clock.wall_ns(), "unknown[127.0.0.1]", "here", "ESMTP")
        assert intake.accept([(draft, envelope)]) == [None]


def send(policy_path: Path, messages: int) -> None:
    """Have had so many sent just now."""
    policy, clock = parse_policy(LIMITED.encode(), policy_path), SystemClock()
    account = Throttle(policy.history_path("isp"), policy.upstreams["isp"].limits, None, RealDisk(), clock)
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


def test_a_running_relay_is_asked_and_its_plan_is_80_columns_wide(
    policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operations, text = FakeOperations(), LIMITED.replace("messages: 3", "messages: 2")
    file = edited(policy_path, text)
    with relay_up(policy_path.parent / "spool", operations):
        assert code_of("plan", file, "--policy", str(policy_path)) == 0

    assert operations.planned == [(text.encode(), Path(file))]
    lines = capsys.readouterr().out.splitlines()
    # The first line has the path, which may be one long word.
    assert max(map(len, lines[1:])) <= 80
    told = "\n".join(lines)
    for words in (
        "  ~ isp: 8 → 5 messages in any 1m",
        "max_size: 100 → 50 (needs a restart; not in the",
        "5 messages per 1m: 8 of 5 used, and nothing goes until 2025-10-09T08:54:02Z",
        "2 keys hold more; of a@x.example (4 of 1)",
        "2 messages with more than 5 recipients: in parts, because of 5 recipients per",
        "isp                    12  08:55:20Z, 2m              08:56:20Z, 3m",
        "  lane news            10  08:55:20Z, 2m              08:56:20Z, 3m",
        "  0 in force          8     4     .     .",
        "    edited            5     5     2     .",
        "isp: 1234 transactions are known one by one, from 2025-10-06T08:53:20Z on (2d",
        "77 older messages are known only roughly",
        "edited: 120 wait more than 1s, the longest 3m",
        "not judged: 9 messages per 60s for each client",
    ):
        assert words in told


def test_with_routes_each_upstream_has_a_row(policy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    operations, plan = FakeOperations(), a_plan()
    ses = UpstreamCourse("ses", 3, None, "stop: 535 no")
    rows = (UpstreamCourse("isp", 12, plan.new.drained_at_ns, ""), ses)
    new, old = (replace(each, upstream="", upstreams=rows) for each in (plan.new, plan.old))
    over = tuple(replace(each, upstream="isp") for each in plan.over)
    operations.foretold = replace(plan, new=new, old=old, over=over)
    with relay_up(policy_path.parent / "spool", operations):
        assert code_of("plan", edited(policy_path, LIMITED), "--policy", str(policy_path)) == 0

    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "ses 3 nobody can tell nobody can tell" in lines
    assert "edited, ses: held by stop: 535 no" in lines
    assert any(line.startswith("isp: 5 messages per 1m: 8 of 5 used") for line in lines)


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
    old, new = found["old"], found["new"]
    # One has room now, and the others an hour, two and three after what was sent: half as many as asked.
    assert (old["messages"], old["minutes"][0], sum(old["minutes"])) == (4, 1, 1)
    assert sum(new["minutes"]) == 0
    hours = [each["longest_wait_seconds"] / 3601 for each in (old, new)]
    assert (round(hours[0], 1), round(hours[1], 1)) == (1.0, 4.0)
    (past,) = found["past"]
    assert (past["transactions"], past["old"]["waited"], past["new"]["waited"]) == (2, 0, 1)
    assert code_of("plan", file, "--policy", str(policy_path), "--within", "3h") == 1
    assert code_of("plan", file, "--policy", str(policy_path), "--within", "5h") == 0


def test_lanes_that_come_and_go_are_told_message_by_message(
    policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue_up(policy_path, "list@news.example", "list@news.example", "ann@here.example")
    other = LANES.replace("news:", "bulk:")
    policy_path.write_text(LIMITED + LANES)

    found = planned(capsys, edited(policy_path, LIMITED + other), "--policy", str(policy_path))

    notes = [(each["kind"], each["about"], each["messages"]) for each in found["notes"]]
    assert notes == [("other lane", "news → bulk", 2)]
    lanes = {each["name"]: each["messages"] for each in found["new"]["lanes"]}
    assert lanes == {"bulk": 2, "default": 1}
    code_of("plan", edited(policy_path, LIMITED + other), "--policy", str(policy_path))
    told = capsys.readouterr().out
    assert "  lane news " in told
    assert "no such lane" in told


def test_messages_beyond_a_new_bound_are_told(policy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue_up(policy_path, "ann@here.example", recipients=9)
    tighter = LIMITED.replace("{messages: 3", "{recipients: 4, per: 1h}, {messages: 3").replace(
        "clients:", "max_size: 10\n    clients:"
    )

    found = planned(capsys, edited(policy_path, tighter), "--policy", str(policy_path))

    notes = [(each["kind"], each["messages"], each["most"]) for each in found["notes"]]
    assert notes == [("in parts", 1, 4), ("too large", 1, 10)]


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


def test_a_stopped_account_keeps_mail_for_longer_than_any_time(
    policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    send(policy_path, 1)
    queue_up(policy_path, "ann@here.example")
    (history,) = (policy_path.parent / "history").glob("*[!k]")
    history.write_bytes(b"user: password\n")
    file = edited(policy_path, LIMITED.replace("messages: 3", "messages: 9"))

    assert code_of("plan", file, "--policy", str(policy_path), "--within", "300d") == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "nobody can tell" in told
    assert "its history cannot be read" in told
    assert "held by stop: " in told


def test_the_longest_of_the_last_days_counts_too(policy_path: Path) -> None:
    plan = a_plan()

    assert plan.waits_longer_than(3 * 60 * SECOND_NS - 1)
    assert not plan.waits_longer_than(3 * 60 * SECOND_NS)
    assert policy_path.exists()
