"""`relay queue` and its verbs, `relay export`, `relay pause` and `resume`: over a socket, and offline."""

import io
import json
import os
import pwd
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from relay.cli.output import detail_lines, queue_text
from relay.cli.queue import NOTHING_MATCHES, report_results
from relay.control.client import encode
from relay.control.operations import BUSY, IDS_AT_ONCE, OK, UNANSWERED, UNREAD
from relay.mail.envelope import QueueId
from relay.spool.interface import INLINE_BYTES
from relay.status.snapshot import message_to_json
from tests.engines.spool.engine import CONTENT, accept, on_the_kernel
from tests.fakes.snapshots import AT_NS, FIRST, a_detail, a_message, a_snapshot
from tests.unit.cli.conftest import Run
from tests.unit.cli.control import Up, answering, code_of, relay_up
from tests.unit.cli.terminal import on_a_terminal

ABSENT = "zzzzzzzzzzzzzzzz"
NOT_THERE = f"{ABSENT}: there is no such message in the queue; for a corrupt one see docs/operating.md\n"
SOME = ("--sender", "@x.example", "--sort", "size")
STEERING = b"Subject: \x1b[2Jhi\r\n\r\n\xff\tend\r\n.\r\nlast"


def said(*values: object, end: str = '{"end":""}\n') -> bytes:
    """Return a relay's answer with these values, as it is sent over the socket."""
    lines = b"".join(encode({"value": each}) + b"\n" for each in values)
    return b"HTTP/1.0 200 OK\r\n\r\n" + lines + end.encode()


def words(text: Iterable[str]) -> list[str]:
    return [" ".join(line.split()) for line in "\n".join(text).splitlines()]


@pytest.fixture
def ids(up: Up, run: Run) -> list[QueueId]:
    """Return the ids of a waiting message, one in a transaction, and a held one with the null sender."""
    senders = ("l@x.example", "b@x", "")
    ids = [up.accept("ann@x.example", "bob@y.example", sender=sender) for sender in senders]
    assert run("queue", "hold", ids[2]) == (0, f"{ids[2]}: held\n", "")
    up.relay.sender.queue.seize(ids[1])
    return ids


def test_a_listing_is_a_line_or_a_json_object_for_each_message(ids: list[QueueId], up: Up, run: Run) -> None:
    _, waiting, active, held, end = words([run("queue").out])
    assert re.match(rf"{ids[0]} 56 2025-10-09T\S+Z waiting 2 l@x.example -> ann@x.example \+1 ", waiting)
    assert f"{ids[1]}* " in active
    assert f"{ids[2]}! " in held
    assert " held 2 MAILER-DAEMON -> ann@" in held
    assert end == "-- 1 Kbytes in 3 Requests."
    listed = map(json.loads, run("queue", "--json").out.splitlines())
    assert list(listed) == list(map(message_to_json, up.client.queue()))
    (shown,) = map(json.loads, run("queue", "show", "--json", ids[0]).out.splitlines())
    assert shown == json.loads(json.dumps(message_to_json(up.client.show(ids[0]))))
    assert run("queue", "show", ids[0]).out.startswith(f"queue_id           {ids[0]}\n")


def test_text_escapes_foreign_text() -> None:
    evil = "a\x1b[2J\nMail queue is empty\u202e"
    message = replace(a_message(reverse_path=evil, reason=evil), eta_at_ns=10**24)
    for text in (queue_text([[message]], AT_NS), detail_lines(a_detail(message))):
        lines = "\n".join(text).splitlines()
        assert all(line.isprintable() and not line.startswith("Mail queue") for line in lines)


@pytest.mark.usefixtures("ids")
def test_a_listing_is_cut_by_limit(run: Run) -> None:
    for as_json in ([], ["--json"]):
        cut, whole = (run("queue", "--limit", limit, *as_json) for limit in "23")
        assert (cut.code, cut.out.count("ann@"), whole.out.count("ann@")) == (0, 2, 3)
        assert as_json or cut.out.endswith("in 2 Requests.\n")


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--sort", "size"]])
def test_a_listing_that_breaks_off_exits_75(arguments: list[str], policy_path: Path, run: Run) -> None:
    with answering(policy_path.parent / "spool", said(a_snapshot()), said([a_message()], end="")):
        code, out, err = run("queue", *arguments)
    assert (code, "Request" in out) == (os.EX_TEMPFAIL, False)
    assert "the answer is incomplete: " in err


def test_verbs_act_on_the_named_messages_and_print_one_result_for_each(
    ids: list[QueueId], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{ids[0]}\n  {ids[2]} {ids[0]}\n"))
    assert run("queue", "hold", "-").out == f"{ids[0]}: held\n{ids[2]}: was held already\n"
    for verb, which, what in (
        ("release", 0, "released"),
        ("release", 0, "was not held; nothing changed"),
        ("retry", 0, "has no back-off; nothing changed"),
        ("bounce", 2, "bounced"),
        ("delete", 0, "deleted"),
    ):
        assert run("queue", verb, ids[which], ids[which]) == (0, f"{ids[which]}: {what}\n", "")
        assert run("queue", verb, ABSENT) == (1, "", NOT_THERE)
        code, _, err = run("queue", verb, ABSENT, ids[1])
        is_busy = f"{NOT_THERE}{ids[1]}: it is in a transaction, try again later\n"
        assert (code, err) == (os.EX_TEMPFAIL, is_busy)


def test_filters_list_and_count_and_a_verb_acts_on_them_only_with_yes(ids: list[QueueId], run: Run) -> None:
    (line,) = run("queue", "--json", *SOME, "--limit", "1").out.splitlines()
    assert json.loads(line)["queue_id"] == ids[0]
    assert run("queue", "--user", "nobody-here").out == f"{NOTHING_MATCHES}\n"
    # The columns of qshape(1).
    young = " ".join(["3", "3", *"0" * 9])
    assert words([run("queue", "--by", "sender").out])[1] == f"TOTAL {young}"
    total, most = map(json.loads, run("queue", "--by", "domain", "--json", "--limit", "1").out.splitlines())
    assert (total["key"], total["messages"], total["recipients"]) == (None, 3, 6)
    assert (most["key"], most["messages_by_age"]["below_5m"]) == ("x.example", 3)

    some = ("--recipient", "ann@*", "--state", "waiting", "--state", "active")
    _, first, second, _, would = run("queue", "delete", *some).out.splitlines()
    assert (first.split()[0], second.split()[0]) == (ids[0], f"{ids[1]}*")
    assert would == "Nothing was done.  With --yes: 2 messages, 4 recipients: deleted"
    # No message came with a login.
    assert run("queue", "delete", "--user", "*", "--yes") == (0, f"{NOTHING_MATCHES}\n", "")
    assert len(run("queue", "--json").out.splitlines()) == 3
    done = run("queue", *["release", "--sender", "<>", "--state", "held", "--state", "waiting", "--yes"])
    assert done == (0, f"{ids[2]}: released\n", "")


def test_unread_messages_and_missing_answers_are_reported_and_exit_75(
    policy_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, snapshot = policy_path.parent / "spool", replace(a_snapshot(), recovering=7)
    not_read = "about 7 messages are not read yet after the start"
    with answering(spool, said(snapshot), *[said(snapshot), said()] * 2):
        assert not_read in run("status").out
        assert not_read in run("queue").err
        code, _, err = run("queue", "hold", "ALL", "--yes")
        assert (code, not_read in err) == (os.EX_TEMPFAIL, True)
    assert {report_results({FIRST: result}) for result in (UNREAD, BUSY, UNANSWERED)} == {os.EX_TEMPFAIL}

    queue_ids = [f"{number:016d}" for number in range(IDS_AT_ONCE + 9)]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(queue_ids)))
    with answering(spool, said(dict.fromkeys(queue_ids[:IDS_AT_ONCE], OK)), b""):
        code, out, err = run("queue", "delete", "-")
    assert (code, len(out.splitlines()), len(err.splitlines())) == (os.EX_TEMPFAIL, IDS_AT_ONCE, 9)


def test_content_is_escaped_on_a_terminal_and_byte_for_byte_elsewhere(
    policy_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    intake = on_the_kernel(policy_path.parent).intake()
    short, long = (accept(intake, content=STEERING + end) for end in (b"", b"\r\n" * INLINE_BYTES))
    intake.close()
    lines = on_a_terminal("queue", "content", short)
    assert lines == ["Subject: \\x1b[2Jhi", "", "\ufffd end", ".", "last"]
    assert code_of("queue", "content", long) == 0
    assert capfdbinary.readouterr().out == STEERING + b"\r\n" * INLINE_BYTES


def test_export_writes_files_that_only_their_owner_reads_and_replaces_none(
    policy_path: Path, tmp_path: Path, run: Run
) -> None:
    made, folder = on_the_kernel(policy_path.parent), tmp_path / "out"
    intake = made.intake()
    ids = [accept(intake, content=CONTENT + bytes(size)) for size in (0, INLINE_BYTES, INLINE_BYTES)]
    intake.close()
    written = "".join(f"{folder}/{each}.eml\n" for each in ids[:2])
    assert run("export", *ids[:2], "--output", str(folder)) == (os.EX_OK, written, "")
    assert (folder / f"{ids[0]}.eml").read_bytes() == CONTENT
    assert (folder / f"{ids[1]}.eml").stat().st_size == len(CONTENT) + INLINE_BYTES
    envelope = json.loads((folder / f"{ids[1]}.json").read_text())
    assert (envelope["queue_id"], len(envelope["recipient_statuses"])) == (ids[1], 3)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700

    (folder / f"{ids[0]}.eml").unlink()
    (folder / f"{ids[1]}.json").unlink()
    made.damage(ids[2])
    code, _, err = run("export", *ids, "--output", str(folder))
    assert (code, err.count("File exists"), f"{ids[2]}: corrupt" in err) == (1, 2, True)
    # If one of a message's two files cannot be written, the other one is not left.
    assert {path.name for path in folder.iterdir()} == {f"{ids[0]}.json", f"{ids[1]}.eml"}
    assert run("export", ids[0], "--output", str(policy_path)).code == os.EX_CANTCREAT


def test_pause_tells_a_relay_how_long_and_by_whom(up: Up, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "anna")
    assert re.match(r"isp: paused until 20\d\d-\S+Z\n$", run("pause", "isp", "--for", "2h").out)
    (upstream,) = up.client.snapshot().upstreams
    assert upstream.paused_until_ns == up.relay.clock.wall_ns() + 7200 * 10**9
    assert run("pause", "isp").out == "isp: paused until `relay resume isp`\n"
    (upstream,) = up.client.snapshot().upstreams
    assert (upstream.paused_by, upstream.paused_until_ns) == ("anna", None)
    for verb in ("pause", "resume"):
        assert run(verb, "no/../such") == (1, "", "no/../such: there is no such upstream\n")
    monkeypatch.delenv("SUDO_USER")
    monkeypatch.setenv("USER", "anybody")
    run("pause", "isp")
    assert up.client.snapshot().upstreams[0].paused_by == pwd.getpwuid(os.getuid()).pw_name
    assert run("resume", "isp").out == "isp: resumed; one message goes first\n"


def test_the_policy_and_the_spool_may_stand_before_the_verb(
    up: Up, run: Run, policy_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAY_POLICY", "/nowhere.yaml")
    held = up.accept()
    for option in (("--policy", policy_path), ("--spool", policy_path.parent / "spool")):
        assert run("queue", *map(str, option), "show", ABSENT, held).out.startswith("queue_id")


def test_an_upstream_is_paused_and_used_again_only_by_a_running_relay(policy_path: Path, run: Run) -> None:
    for verb in ("pause", "resume"):
        code, out, err = run(verb, "isp")
        assert (code, out) == (os.EX_UNAVAILABLE, "")
        assert err == f"Error: no relay runs on {policy_path.parent}/spool: start it first\n"
    with relay_up(policy_path.parent):
        assert run("resume", "isp").out == "isp: neither paused nor stopped; nothing changed\n"
