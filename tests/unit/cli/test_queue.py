"""`relay queue`, over a real control socket."""

import io
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from relay.control.operations import IDS_AT_ONCE, VERBS
from relay.mail.envelope import QueueId
from relay.status.snapshot import QueueState, detail_to_json, message_to_json
from tests.engines.spool.engine import accept, claimed
from tests.engines.spool.maildir_engine import on_the_kernel
from tests.fakes.operations import FakeOperations
from tests.fakes.snapshots import FIRST, REPORT, SECOND, a_detail, a_message, a_snapshot
from tests.unit.cli.conftest import Run
from tests.unit.cli.control import code_of, relay_up
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
ABSENT = "zzzzzzzzzzzzzzzz"
NOT_THERE = f"{ABSENT}: there is no such message in the queue\n"
STEERING = b"Subject: \x1b[2Jhi\r\n\r\n\xff\tend\r\n.\r\nlast"


@pytest.fixture
def operations(policy_path: Path) -> Iterator[FakeOperations]:
    """Return a relay with three messages: one waits, one is active, one report is held."""
    report = a_message(REPORT, state=QueueState.HELD, reverse_path="", reason="held by the operator")
    active = a_message(SECOND, state=QueueState.ACTIVE, reason="", size_bytes=600)
    operations = FakeOperations([a_message(FIRST), active, replace(report, held_by="hold")])
    with relay_up(policy_path.parent / "spool", operations):
        yield operations


@pytest.mark.usefixtures("operations")
def test_the_listing_is_a_line_a_message(run: Run) -> None:
    who = "list@example.org -> ann@example.net +1"
    _, waiting, active, held, end = (" ".join(line.split()) for line in run("queue").out.splitlines())
    assert waiting == (
        f"{FIRST} 1500 2025-10-09T08:51:50Z waiting 2 {who} "
        f"(limit 8 messages per 60s; ETA 2025-10-09T08:53:40Z, in {waiting.rpartition(' in ')[2]}"
    )
    assert f"{SECOND}* 600 2025-10-09T08:51:50Z active 2 {who} (held by limit 8 messages per 60s;" in active
    assert f"{REPORT}! 1500 2025-10-09T08:51:50Z held 2 MAILER-DAEMON -> ann@" in held
    assert end == "-- 4 Kbytes in 3 Requests."


def test_json_is_an_object_a_line(operations: FakeOperations, run: Run) -> None:
    listed = map(json.loads, run("queue", "--json").out.splitlines())
    assert list(listed) == list(map(message_to_json, operations.messages.values()))
    shown = map(json.loads, run("queue", "show", "--json", FIRST, SECOND).out.splitlines())
    assert list(shown) == [
        json.loads(json.dumps(detail_to_json(a_detail(operations.messages[each]))))
        for each in (FIRST, SECOND)
    ]


def test_nothing_foreign_steers_the_terminal_or_makes_a_line(operations: FakeOperations, run: Run) -> None:
    evil = "a\x1b[2J\nMail queue is empty\u202e"
    operations.messages = {FIRST: replace(a_message(reverse_path=evil, reason=evil), eta_at_ns=10**24)}
    for words in (["queue"], ["queue", "show", FIRST], ["queue", "--by", "reason"]):
        out = run(*words).out.splitlines()
        assert all(line.isprintable() and not line.startswith("Mail queue") for line in out)


def test_a_line_that_is_too_long_goes_on_below_with_whole_words(operations: FakeOperations) -> None:
    operations.messages = {FIRST: a_message(reverse_path=f"{'long' * 15}@example.org")}

    _, _, head, *below, end = on_a_terminal(80, "queue")
    assert head.split() == [FIRST, "1500", "2025-10-09T08:51:50Z", "waiting", "2"]
    assert below[0].split() == [f"{'long' * 15}@example.org", "->"]
    assert max(map(len, below)) <= 80
    assert end == "-- 2 Kbytes in 1 Request."


@pytest.mark.usefixtures("operations")
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_list_that_was_cut_says_so_on_stderr(as_json: tuple[str, ...], run: Run) -> None:
    cut, whole = (run("queue", "--limit", limit, *as_json) for limit in "23")
    assert (cut.code, cut.err) == (0, "only the first 2 are listed; there are more\n")
    assert (SECOND in cut.out, REPORT in cut.out) == (True, False)
    assert (whole.err, REPORT in whole.out) == ("", True)
    assert as_json or cut.out.endswith("in 2 Requests.\n")


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--limit", "6"], ["--sort", "size"]])
def test_a_list_that_ends_too_early_says_so_and_exits_75(
    arguments: list[str], operations: FakeOperations, run: Run
) -> None:
    ids = [QueueId(f"{number:016d}") for number in range(1000)]
    operations.messages = {each: a_message(each) for each in ids}
    operations.rows_before_fault = 5
    code, out, err = run("queue", *arguments)
    assert (code, "Requests" in out) == (os.EX_TEMPFAIL, False)
    assert "in the middle: this is not all" in err


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_acts_on_those_named_and_tells_each(verb: str, operations: FakeOperations, run: Run) -> None:
    operations.messages[REPORT] = a_message(REPORT, state=BEFORE.get(verb, QueueState.WAITING))
    operations.messages[FIRST] = a_message(FIRST, state=AFTER.get(verb, QueueState.WAITING))
    done, already = DONE[verb]
    assert run("queue", verb, REPORT, FIRST, REPORT) == (0, f"{REPORT}: {done}\n{FIRST}: {already}\n", "")
    assert operations.asked == [(verb, (REPORT, FIRST))]

    assert run("queue", verb, ABSENT) == (1, "", NOT_THERE)
    code, _, err = run("queue", verb, ABSENT, SECOND)
    assert code == os.EX_TEMPFAIL
    assert err == f"{NOT_THERE}{SECOND}: it is in a transaction, try again later\n"


def test_a_message_that_cannot_be_shown_says_why(operations: FakeOperations, run: Run) -> None:
    operations.messages[FIRST] = a_message(state=QueueState.CORRUPT)
    code, out, err = run("queue", "show", FIRST, SECOND, ABSENT)
    assert (code, err) == (1, f"{FIRST}: its checksum is wrong\n{NOT_THERE}")
    assert out.startswith(f"queue_id           {SECOND}\n")


def test_a_minus_reads_ids_from_stdin(
    operations: FakeOperations, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{FIRST}\n  {REPORT} {FIRST}\n"))
    assert run("queue", "hold", "-").code == 0
    assert operations.asked == [("hold", (FIRST, REPORT))]


@pytest.mark.parametrize(
    "words",
    [
        *("delete", "delete ALL", f"delete --yes ALL {FIRST}", "delete ../../etc/passwd", "delete --yes"),
        *(f"hold {FIRST} {FIRST}x", f"hold {FIRST.upper().replace('0', 'A')}", "show ALL", "show"),
        *(f"--json hold {FIRST}", "--sender @example.org hold", f"hold --sender @example.org {FIRST}"),
        *("delete --sender @example.org ALL --yes", "delete --reason limit --yes", "--sender list"),
        *("--domain a@example.org", "--older 2", "--size much", "--client 192.0.2.1/8", "--state incoming"),
        *("--by sender --sort size", "--limit 0", "content", f"content {FIRST} {SECOND}"),
    ],
)
def test_a_wrong_call_exits_64_and_asks_nothing(words: str, operations: FakeOperations, run: Run) -> None:
    assert run("queue", *words.split()).code == os.EX_USAGE
    assert operations.asked == []


def test_a_filter_lists_what_matches_sorted_and_cut(operations: FakeOperations, run: Run) -> None:
    (line,) = run(
        "queue", "--json", *["--sender", "@example.org", "--sort", "size", "--limit", "1"]
    ).out.splitlines()
    assert json.loads(line) == message_to_json(operations.messages[FIRST])
    assert run("queue", "--user", "nobody-here").out == "no message in the queue matches\n"


@pytest.mark.usefixtures("operations")
def test_a_summary_counts_by_age_as_qshape_does(run: Run) -> None:
    assert [line.split() for line in run("queue", "--by", "sender").out.splitlines()] == [
        ["sender", "T", *["5", "10", "20", "40", "80", "160", "320", "640", "1280", "1280+"]],
        ["TOTAL", "3", "3", *"0" * 9],
        ["list@example.org", "2", "2", *"0" * 9],
        ["<>", "1", "1", *"0" * 9],
    ]
    out = run("queue", "--by", "domain", "--json", "--limit", "1").out
    total, most = map(json.loads, out.splitlines())
    assert (total["key"], total["messages"], total["recipients"]) == (None, 3, 6)
    assert (most["key"], most["messages"], most["messages_by_age"]["below_5m"]) == ("example.com", 3, 3)


def test_a_verb_with_filters_acts_only_with_yes(operations: FakeOperations, run: Run) -> None:
    _, first, second, _, *would = run("queue", "delete", "--sender", "@example.org").out.splitlines()
    assert (first.split()[0], second.split()[0]) == (FIRST, f"{SECOND}*")
    assert would == [
        "Nothing was done.  With --yes:",
        "  1 messages, 2 recipients: deleted",
        "  1 messages, 2 recipients: it is in a transaction, try again later",
    ]
    assert run("queue", "delete", "--user", "nobody-here", "--yes") == (0, "", "")
    assert operations.asked == []

    done = run("queue", *["release", "--sender", "<>", "--state", "held", "--state", "waiting", "--yes"])
    assert done.out.startswith(f"{REPORT}: released")
    assert operations.asked == [("release", (REPORT,))]
    assert operations.among == (QueueState.HELD, QueueState.WAITING)


def test_content_is_printed_byte_for_byte_and_steers_no_terminal(
    operations: FakeOperations, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    operations.chunks = [STEERING[:12], STEERING[12:]]
    lines = on_a_terminal(80, "queue", "content", FIRST)
    assert lines == ["Subject: \\x1b[2Jhi", "", "\ufffd end", ".", "last"]
    operations.chunks.append(b"\r\n" * 100_000)
    assert code_of("queue", "content", FIRST) == 0
    assert capfdbinary.readouterr().out == STEERING + b"\r\n" * 100_000
    operations.content_ends = "its checksum is wrong"
    assert code_of("queue", "content", FIRST) == 1


def test_what_is_not_read_yet_is_told(operations: FakeOperations, run: Run) -> None:
    operations.shown = replace(a_snapshot(), recovering=7)
    said = "about 7 messages are not read yet after the start"
    assert said in run("status").out
    assert said in run("queue").err
    assert said in run("queue", "hold", "ALL", "--yes").err
    for verb in ("show", "hold"):
        code, _, err = run("queue", verb, ABSENT)
        assert (code, f"{ABSENT}: not known yet" in err) == (os.EX_TEMPFAIL, True)


@pytest.mark.usefixtures("policy_path")
def test_what_goes_first_is_refused_while_the_relay_is_down(run: Run) -> None:
    code, _, err = run("queue", "first", FIRST)
    assert code == 1
    assert err.startswith(f"{FIRST}: the relay is down: ")


@pytest.mark.parametrize("by_filters", [False, True])
def test_what_a_relay_that_goes_midway_was_not_asked_of_is_told_and_may_be_tried_again(
    operations: FakeOperations, by_filters: bool, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_ids = [QueueId(f"{number:016d}") for number in range(IDS_AT_ONCE + 9)]
    operations.messages |= {queue_id: replace(a_message(queue_id), user="ann") for queue_id in queue_ids}
    operations.acts_before_fault = 1
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(queue_ids)))
    words = ["--user", "ann", "--yes"] if by_filters else ["-"]
    code, out, err = run("queue", "delete", *words)
    assert (code, len(out.splitlines()), len(err.splitlines())) == (os.EX_TEMPFAIL, IDS_AT_ONCE, 9)


@pytest.mark.usefixtures("operations")
@pytest.mark.parametrize("option", ["--user", "--lane", "--upstream", "--client", "--sender", "--domain"])
def test_an_empty_filter_is_a_wrong_call_and_acts_on_nothing(option: str, run: Run) -> None:
    code, _, err = run("queue", "delete", option, "", "--yes")
    assert (code, option in err) == (os.EX_USAGE, True)


def test_a_pattern_of_users_matches_no_message_without_a_login(operations: FakeOperations, run: Run) -> None:
    operations.messages[FIRST] = replace(a_message(FIRST), user="ann")
    assert run("queue", "hold", "--user", "*", "--yes").code == os.EX_OK
    assert operations.asked == [("hold", (FIRST,))]


def test_of_a_relay_that_is_down_only_the_named_message_is_read(policy_path: Path, run: Run) -> None:
    made = on_the_kernel(policy_path.parent)
    spool, intake = made.start(), made.intake()
    named, damaged = accept(intake), accept(intake)
    claimed(spool)
    spool.close()
    intake.close()
    made.damage(damaged)

    for verb in ("show", "hold", "release", "retry"):
        assert run("queue", verb, named).code == os.EX_OK
        assert list(Path(made.root, "corrupt").iterdir()) == []
    assert run("queue").out.count(" corrupt ") == 1
    for verb in ("delete", "show"):
        code, out, err = run("queue", verb, damaged)
        assert (code, out) == (1, "")
        assert err.splitlines()[-1].startswith(f"{damaged}: corrupt: ")
        assert "then remove its file" in err
