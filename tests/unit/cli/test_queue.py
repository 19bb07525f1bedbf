"""`relay queue`, over a real control socket."""

import io
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from relay.control.operations import VERBS
from relay.mail.envelope import QueueId
from relay.status.snapshot import (
    QueueState,
    detail_to_json,
    message_to_json,
)
from tests.fakes.operations import FakeOperations
from tests.fakes.snapshots import (
    FIRST,
    REPORT,
    SECOND,
    a_detail,
    a_message,
)
from tests.unit.cli.control import code_of, relay_up, write_policy
from tests.unit.cli.terminal import on_a_terminal

NO_ROOM = "; no room in 8 messages per 60s until 2025-10-09T08:53:40Z"
DONE = {
    "hold": ("held", "was held already"),
    "release": (f"released{NO_ROOM}", "was not held; nothing changed"),
    "retry": (f"its back-off is over{NO_ROOM}", "has no back-off; nothing changed"),
    "first": (f"goes next in its account{NO_ROOM}", f"goes next in its account{NO_ROOM}"),
    "bounce": ("bounced", "bounced"),
    "delete": ("deleted", "deleted"),
}
BEFORE = {"release": QueueState.HELD, "retry": QueueState.DEFERRED}
AFTER = {"hold": QueueState.HELD}
"""States in which a verb changes a message, and in which it does not."""


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
def test_the_listing_is_a_line_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("queue") == 0

    who = "list@example.org -> ann@example.net +1"
    _, waiting, active, held, end = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    assert waiting.startswith(
        f"{FIRST} 1500 2025-10-09T08:51:50Z waiting 2 {who} (no room in 8 messages per 60s; ETA 2025-"
    )
    assert f"{SECOND}* 600 2025-10-09T08:51:50Z active 2 {who} (held by limit 8 messages per 60s;" in active
    assert f"{REPORT}! 1500 2025-10-09T08:51:50Z held 2 MAILER-DAEMON -> ann@" in held
    assert end == "-- 4 Kbytes in 3 Requests."


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
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_list_that_was_cut_says_so_on_stderr(
    as_json: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("queue", "--limit", "2", *as_json) == 0
    cut = capsys.readouterr()
    assert code_of("queue", "--limit", "3", *as_json) == 0
    whole = capsys.readouterr()

    assert cut.err == "only the first 2 are listed; there are more\n"
    assert REPORT not in cut.out
    assert SECOND in cut.out
    assert whole.err == ""
    assert REPORT in whole.out
    if not as_json:
        assert cut.out.endswith("in 2 Requests.\n")


@pytest.mark.usefixtures("up")
@pytest.mark.parametrize("arguments", [[], ["--json"], ["--limit", "6"], ["--sort", "size"]])
def test_a_list_that_ends_too_early_says_so_and_exits_75(
    arguments: list[str], operations: FakeOperations, capsys: pytest.CaptureFixture[str]
) -> None:
    operations.messages = {
        name: a_message(name) for name in (QueueId(f"{number:016d}") for number in range(1000))
    }
    operations.rows_before_fault = 5

    assert code_of("queue", *arguments) == os.EX_TEMPFAIL

    captured = capsys.readouterr()
    assert "Requests" not in captured.out
    assert "in the middle: this is not all" in captured.err


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
def test_a_verb_acts_on_those_named_and_says_what_was_as_wanted(
    verb: str, operations: FakeOperations, capsys: pytest.CaptureFixture[str]
) -> None:
    operations.messages[REPORT] = a_message(REPORT, state=BEFORE.get(verb, QueueState.WAITING))
    operations.messages[FIRST] = a_message(FIRST, state=AFTER.get(verb, QueueState.WAITING))
    done, already = DONE[verb]
    assert code_of("queue", verb, REPORT, FIRST, REPORT) == 0

    assert operations.asked == [(verb, (REPORT, FIRST))]
    assert capsys.readouterr().out == f"{REPORT}: {done}\n{FIRST}: {already}\n"


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
@pytest.mark.parametrize(
    "words",
    [
        *("delete", "delete ALL", f"delete --yes ALL {FIRST}", "delete ../../etc/passwd", "delete --yes"),
        *(f"hold {FIRST} {FIRST}x", f"hold {FIRST.upper().replace('0', 'A')}", "show ALL", "show"),
        *(f"--json hold {FIRST}", "--sender @example.org hold", f"hold --sender @example.org {FIRST}"),
        *("delete --sender @example.org ALL --yes", "delete --reason limit --yes", "--sender list"),
        *("--domain a@example.org", "--older 2", "--size much", "--client 192.0.2.1/8", "--state incoming"),
        *(
            "--by sender --sort size",
            "--limit 0",
            f"frobnicate {FIRST}",
            "content",
            f"content {FIRST} {SECOND}",
        ),
    ],
)
def test_a_wrong_call_exits_64_and_asks_nothing(words: str, operations: FakeOperations) -> None:
    assert code_of("queue", *words.split()) == os.EX_USAGE
    assert operations.asked == []


@pytest.mark.usefixtures("up")
def test_a_filter_lists_what_matches_sorted_and_cut(
    operations: FakeOperations, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("queue", "--json", "--sender", "@example.org", "--sort", "size", "--limit", "1") == 0

    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == message_to_json(operations.messages[FIRST])
    assert code_of("queue", "--user", "nobody-here") == 0
    assert capsys.readouterr().out == "no message in the queue matches\n"


@pytest.mark.usefixtures("up")
def test_a_summary_counts_by_age_as_qshape_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("queue", "--by", "sender") == 0

    assert capsys.readouterr().out.splitlines() == [
        "          sender  T  5  10  20  40  80  160  320  640  1280  1280+",
        "           TOTAL  3  3   0   0   0   0    0    0    0     0      0",
        "list@example.org  2  2   0   0   0   0    0    0    0     0      0",
        "              <>  1  1   0   0   0   0    0    0    0     0      0",
    ]
    assert code_of("queue", "--by", "domain", "--json", "--limit", "1") == 0
    total, most = map(json.loads, capsys.readouterr().out.splitlines())
    assert (total["key"], total["messages"], total["recipients"]) == (None, 3, 6)
    assert (most["key"], most["messages"], most["recipients"]) == ("example.com", 3, 3)
    assert most["messages_by_age"]["below_5m"] == 3


@pytest.mark.usefixtures("up")
def test_a_verb_with_filters_shows_and_changes_nothing(
    operations: FakeOperations, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("queue", "delete", "--sender", "@example.org") == 0

    assert operations.asked == []
    _, first, second, _, *would = capsys.readouterr().out.splitlines()
    assert first.startswith(FIRST)
    assert second.startswith(SECOND)
    assert would == [
        "Nothing was done.  With --yes:",
        "  1 messages, 2 recipients: deleted",
        "  1 messages, 2 recipients: it is in a transaction, try again later",
    ]


@pytest.mark.usefixtures("up")
def test_with_yes_a_verb_acts_on_what_its_filters_list(
    operations: FakeOperations, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["queue", "release", "--sender", "<>", "--state", "held", "--state", "waiting", "--yes"]
    assert code_of(*arguments) == 0

    assert operations.asked == [("release", (REPORT,))]
    assert operations.among == (QueueState.HELD, QueueState.WAITING)
    assert capsys.readouterr().out.startswith(f"{REPORT}: released")
    assert code_of("queue", "delete", "--user", "nobody-here", "--yes") == 0
    assert len(operations.asked) == 1


STEERING = b"Subject: \x1b[2Jhi\r\n\r\n\xff\tend\r\n.\r\nlast"


@pytest.mark.usefixtures("up")
def test_content_is_printed_byte_for_byte(
    operations: FakeOperations, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    operations.chunks = [STEERING, b"\r\n" * 100_000]

    assert code_of("queue", "content", FIRST) == 0
    assert capfdbinary.readouterr().out == STEERING + b"\r\n" * 100_000
    assert operations.asked == []


@pytest.mark.usefixtures("up")
def test_content_steers_no_terminal(operations: FakeOperations) -> None:
    operations.chunks = [STEERING[:12], STEERING[12:]]

    lines = on_a_terminal(80, "queue", "content", FIRST)
    assert lines == ["Subject: \\x1b[2Jhi", "", "\ufffd end", ".", "last"]


@pytest.mark.usefixtures("up")
def test_content_that_ends_too_early_is_not_taken_for_whole(operations: FakeOperations) -> None:
    operations.chunks, operations.content_ends = [b"Subject: half\r\n"], "its checksum is wrong"

    assert code_of("queue", "content", FIRST) == os.EX_TEMPFAIL


def test_what_goes_first_is_refused_while_the_relay_is_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("queue", "first", FIRST, "--policy", str(write_policy(tmp_path))) == 1

    assert f"{FIRST}: the relay is down: " in capsys.readouterr().err
