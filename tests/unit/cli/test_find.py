"""`relay find` on what lies there, with no relay to ask: what it prints, and its exit codes."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from relay.clock import SECOND_NS, SystemClock
from relay.telemetry.outcomes import Outcome, outcomes_folder
from tests.unit.cli.control import code_of, write_policy

HOUR_NS = 3600 * SECOND_NS


def ending(number: int, ago_ns: int = 0, **others: Any) -> Outcome:
    at_ns = SystemClock().wall_ns() - ago_ns
    whole = Outcome(
        at_ns,
        f"{number:016}",
        "Ann@here.example",
        f"r{number}@there.example",
        "relayed",
        "isp",
        "smtp.test[192.0.2.1]:587",
        "2.0.0",
        "250 2.0.0 Ok: queued",
        f"<{number}@here.example>",
    )
    return whole._replace(**others)


@pytest.fixture
def policy_path(tmp_path: Path) -> Path:
    return write_policy(tmp_path)


def keep(policy_path: Path, *outcomes: Outcome) -> Path:
    """Write a database as the relay does; return its path."""
    path = Path(outcomes_folder(str(policy_path.parent / "spool")), "outcomes")
    path.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"CREATE TABLE IF NOT EXISTS outcome ({', '.join(Outcome._fields)})")
        marks = ", ".join("?" * len(Outcome._fields))
        database.executemany(f"INSERT INTO outcome VALUES ({marks})", outcomes)
    return path


def test_what_ended_is_shown_with_its_reply(policy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(policy_path, ending(1), ending(2, became="bounced", reply="550 5.1.1 no\x1b[2J", message_id=""))

    assert code_of("find", "ann@HERE", "--policy", str(policy_path)) == 0

    second, first = capsys.readouterr().out.splitlines()
    assert first.endswith(
        "relayed  0000000000000001 Ann@here.example -> r1@there.example <1@here.example> "
        "isp, smtp.test[192.0.2.1]:587: 250 2.0.0 Ok: queued"
    )
    assert second.endswith("r2@there.example isp, smtp.test[192.0.2.1]:587: 550 5.1.1 no\\x1b[2J")


def test_for_programs_it_is_an_object_a_line(policy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(policy_path, ending(1), ending(2, 3 * HOUR_NS))

    assert code_of("find", "@there.example", "--json", "--since", "2h", "--policy", str(policy_path)) == 0

    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found.pop("at").endswith("Z")
    assert found == {
        "found": "recent",
        "queue_id": "0000000000000001",
        "message_id": "<1@here.example>",
        "reverse_path": "Ann@here.example",
        "recipient": "r1@there.example",
        "became": "relayed",
        "upstream": "isp",
        "relay": "smtp.test[192.0.2.1]:587",
        "dsn": "2.0.0",
        "reply": "250 2.0.0 Ok: queued",
        "subject": "",
        "client_queue_id": "",
        "client": "",
        "lane": "",
        "size_bytes": 0,
    }


def test_what_is_not_there_is_exit_code_1(policy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("find", "eve@", "--policy", str(policy_path)) == 1
    assert capsys.readouterr().err == "not in the queue, and not among what ended\n"

    keep(policy_path, ending(1))
    assert code_of("find", "eve@", "--policy", str(policy_path)) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("not in the queue, and not among what ended since 20")


def test_of_several_words_all_are_looked_for(policy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mays: dict[str, Any] = {"subject": "Invoice 17 of May", "client_queue_id": "4XYZ"}
    keep(policy_path, ending(1, **mays), ending(2, subject="Invoice 18 of May"))

    for words in (["may", "invoice", "17"], ["4xyz"], ["invoice 17", "r1@there.example"]):
        assert code_of("find", *words, "--json", "--policy", str(policy_path)) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert json.loads(line)["queue_id"] == "0000000000000001"


@pytest.mark.parametrize("text", ["", "<>", "  "])
def test_a_text_of_nothing_is_a_wrong_call(
    text: str, policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("find", text, "--policy", str(policy_path)) == os.EX_USAGE

    assert (
        "expected an address, a Message-ID, a queue id or words of a Subject, or a part of one"
        in capsys.readouterr().err
    )
