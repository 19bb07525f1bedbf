"""`relay queue`, over a real control socket."""

import io
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from relay.control.operations import VERBS
from relay.status.snapshot import QueueState, detail_to_json, message_to_json
from tests.fakes.operations import FakeOperations
from tests.fakes.snapshots import AT_NS, FIRST, REPORT, SECOND, a_detail, a_message
from tests.unit.cli.control import code_of, relay_up, write_policy

DONE = {
    "hold": "held",
    "release": "released",
    "retry": "to be tried at once",
    "bounce": "bounced",
    "delete": "deleted",
}


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def operations() -> FakeOperations:
    """Three messages: one waits, one is active, one report is held."""
    return FakeOperations(
        [
            a_message(FIRST),
            a_message(SECOND, state=QueueState.ACTIVE, reason="", size_bytes=600),
            replace(
                a_message(REPORT, state=QueueState.HELD, reverse_path="", reason="held by the operator"),
                held_by="hold",
            ),
        ]
    )


@pytest.fixture
def up(tmp_path: Path, operations: FakeOperations, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RELAY_POLICY", str(write_policy(tmp_path)))
    with relay_up(tmp_path / "spool", operations):
        yield


@pytest.mark.usefixtures("up")
def test_the_listing_is_a_line_a_message_as_mailq_has_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.clock.SystemClock.wall_ns", lambda _clock: AT_NS)

    assert code_of("queue") == 0

    assert capsys.readouterr().out.splitlines() == [
        "----Queue ID------ --Size-- ---Arrival Time---- --Sender-------- --State-- -Left- --Why, ETA--",
        (
            "0000000000000001       1500 Thu Oct 09 08:51:50 list@example.org waiting        2 "
            "(no room in 8 messages per 60s; ETA Thu Oct 09 08:53:40, in 20s)"
        ),
        (
            "0000000000000002*       600 Thu Oct 09 08:51:50 list@example.org active         2 "
            "(held by limit 8 messages per 60s; ETA Thu Oct 09 08:53:40, in 20s)"
        ),
        (
            "0000000000000002r!     1500 Thu Oct 09 08:51:50 MAILER-DAEMON    held           2 "
            "(held by the operator; ETA Thu Oct 09 08:53:40, in 20s)"
        ),
        "-- 4 Kbytes in 3 Requests.",
    ]


@pytest.mark.usefixtures("up")
def test_an_empty_queue_is_said_in_mailqs_words_and_no_json(
    operations: FakeOperations, capsys: pytest.CaptureFixture[str]
) -> None:
    operations.messages.clear()

    assert code_of("queue") == 0
    assert capsys.readouterr().out == "Mail queue is empty\n"
    assert code_of("queue", "--json") == 0
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("up")
def test_one_message_is_one_request(operations: FakeOperations, capsys: pytest.CaptureFixture[str]) -> None:
    operations.messages = {FIRST: a_message(size_bytes=1024)}

    assert code_of("queue") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "-- 1 Kbytes in 1 Request."


@pytest.mark.usefixtures("up")
def test_json_is_an_object_a_line(operations: FakeOperations, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("queue", "--json") == 0

    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [
        message_to_json(message) for message in operations.messages.values()
    ]


@pytest.mark.usefixtures("up")
def test_nothing_foreign_steers_the_terminal_or_makes_a_line(
    operations: FakeOperations, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "a\x1b[2J\nMail queue is empty\u202e"
    operations.messages = {FIRST: replace(a_message(reverse_path=evil, reason=evil), eta_at_ns=10**24)}

    assert code_of("queue") == 0

    out = capsys.readouterr().out
    assert len(out.splitlines()) == 3
    assert all(line.isprintable() for line in out.splitlines())


@pytest.mark.usefixtures("up")
def test_a_message_is_shown_with_all_its_recipients(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("queue", "show", FIRST) == 0

    out = capsys.readouterr().out
    for shown in (
        f"{FIRST}: waiting",
        "<list@example.org>",
        "mail.example.org[192.0.2.1]",
        "to do    <bob@example.com>",
        "bounced  <eve@example.com>  (550 5.1.1 no such user)",
        "Subject: hello",
        "X-Trick: \\x1b[2J",
    ):
        assert shown in out


@pytest.mark.usefixtures("up")
def test_shown_as_json_is_an_object_a_message(
    operations: FakeOperations, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("queue", "show", "--json", FIRST, SECOND) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [
        detail_to_json(a_detail(operations.messages[queue_id])) for queue_id in (FIRST, SECOND)
    ]


@pytest.mark.usefixtures("up")
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_acts_on_the_messages_that_were_named(
    verb: str, operations: FakeOperations, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("queue", verb, REPORT, FIRST, REPORT) == 0

    assert operations.asked == [(verb, (REPORT, FIRST))]
    assert capsys.readouterr().out == f"{REPORT}: {DONE[verb]}\n{FIRST}: {DONE[verb]}\n"


@pytest.mark.usefixtures("up")
@pytest.mark.parametrize("verb", [*VERBS, "show"])
def test_an_absent_message_is_named_and_exits_1(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    absent = "zzzzzzzzzzzzzzzz"

    assert code_of("queue", verb, FIRST, absent) == 1

    out, err = capsys.readouterr()
    assert FIRST in out
    assert err == f"{absent}: there is no such message in the queue\n"


@pytest.mark.usefixtures("up")
@pytest.mark.parametrize("verb", VERBS)
def test_a_busy_message_exits_75_also_beside_an_absent_one(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("queue", verb, "zzzzzzzzzzzzzzzz", SECOND) == os.EX_TEMPFAIL
    assert f"{SECOND}: it is in a transaction, try again later" in capsys.readouterr().err


@pytest.mark.usefixtures("up")
def test_a_message_that_cannot_be_shown_says_why(
    operations: FakeOperations, capsys: pytest.CaptureFixture[str]
) -> None:
    operations.messages[FIRST] = a_message(state=QueueState.CORRUPT)

    assert code_of("queue", "show", FIRST) == 1
    assert capsys.readouterr().err == f"{FIRST}: its checksum is wrong\n"


@pytest.mark.usefixtures("up")
def test_a_minus_reads_ids_from_stdin(operations: FakeOperations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{FIRST}\n  {REPORT} {FIRST}\n"))

    assert code_of("queue", "hold", "-") == 0
    assert operations.asked == [("hold", (FIRST, REPORT))]


@pytest.mark.usefixtures("up")
def test_all_is_everything_that_can_be_acted_on(operations: FakeOperations) -> None:
    operations.messages[SECOND] = a_message(SECOND, state=QueueState.CORRUPT)

    assert code_of("queue", "delete", "ALL", "--yes") == 0

    assert operations.asked == [("delete", (FIRST, REPORT))]
    assert list(operations.messages) == [SECOND]


@pytest.mark.usefixtures("up")
def test_all_of_an_empty_queue_is_done(operations: FakeOperations) -> None:
    operations.messages.clear()

    assert code_of("queue", "bounce", "ALL", "--yes") == 0
    assert operations.asked == []


@pytest.mark.usefixtures("up")
@pytest.mark.parametrize(
    "arguments",
    [
        ["delete"],
        ["delete", "ALL"],
        ["delete", "--yes", "ALL", FIRST],
        ["delete", "../../etc/passwd"],
        ["hold", FIRST, FIRST + "x"],
        ["hold", FIRST + "\n"],
        ["hold", FIRST.upper().replace("0", "A")],
        ["show", "ALL"],
        ["show"],
        ["--json", "hold", FIRST],
        ["frobnicate", FIRST],
    ],
)
def test_a_wrong_call_exits_64_and_asks_nothing(arguments: list[str], operations: FakeOperations) -> None:
    assert code_of("queue", *arguments) == os.EX_USAGE
    assert operations.asked == []


@pytest.mark.usefixtures("up")
def test_the_policy_may_stand_before_or_behind_the_verb(
    operations: FakeOperations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RELAY_POLICY")
    policy = str(tmp_path / "policy.yaml")

    assert code_of("queue", "--policy", policy, "hold", FIRST) == 0
    assert code_of("queue", "hold", "--policy", policy, FIRST) == 0
    assert len(operations.asked) == 2


@pytest.mark.usefixtures("up")
def test_help_explains_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["queue", "--help"], *(["queue", verb, "--help"] for verb in VERBS)):
        assert code_of(*arguments) == 0
    out = capsys.readouterr().out
    assert all(verb in out for verb in [*VERBS, "show", "--yes"])
