"""`relay find`: what it prints of the queue and of recent outcomes, and its exit codes."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from relay.clock import SystemClock
from relay.mail.formats import rfc3339
from relay.status.snapshot import message_to_json
from relay.telemetry.outcomes import PastOutcome, outcomes_folder
from tests.unit.cli.conftest import Run
from tests.unit.cli.control import relay_up


def ending(number: int, ago_ns: int = 0, **others: Any) -> PastOutcome:
    whole = PastOutcome(
        SystemClock().wall_ns() - ago_ns,
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


def database_of(policy_path: Path) -> Path:
    return Path(outcomes_folder(str(policy_path.parent / "spool")), "outcomes")


def keep(policy_path: Path, *outcomes: PastOutcome) -> None:
    path = database_of(policy_path)
    path.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"CREATE TABLE IF NOT EXISTS outcome ({', '.join(PastOutcome._fields)})")
        marks = ", ".join("?" * len(PastOutcome._fields))
        database.executemany(f"INSERT INTO outcome VALUES ({marks})", outcomes)


def test_a_past_outcome_is_shown_with_its_reply(policy_path: Path, run: Run) -> None:
    keep(policy_path, ending(1), ending(2, became="bounced", reply="550 5.1.1 no\x1b[2J", message_id=""))

    code, out, _ = run("find", "ann@HERE")
    _, second, first = (" ".join(line.split()) for line in out.splitlines())
    assert code == 0
    assert first.endswith(
        "relayed 0000000000000001 Ann@here.example -> r1@there.example <1@here.example>; "
        "isp, smtp.test[192.0.2.1]:587: 250 2.0.0 Ok: queued"
    )
    assert second.endswith("r2@there.example; isp, smtp.test[192.0.2.1]:587: 550 5.1.1 no\\x1b[2J")


def test_queued_messages_come_first(policy_path: Path, run: Run) -> None:
    keep(policy_path, ending(1, reverse_path="list@example.org"), ending(2))
    with relay_up(policy_path.parent) as up:
        queue_id = up.accept(sender="list@example.org")
        _, queued, _, _, ended = run("find", "LIST@example.org").out.splitlines()
        first, second = map(json.loads, run("find", "LIST@example.org", "--json").out.splitlines())
        assert len(run("find", "list@", "--limit", "1", "--json").out.splitlines()) == 1

        view = message_to_json(up.client.queue()[0])
    assert queued.startswith(queue_id)
    assert "r1@there.example" in ended
    assert first == json.loads(json.dumps({"found": "queue", **view}))
    assert second["found"] == "recent"


def test_all_words_must_match_and_json_is_one_object_a_line(policy_path: Path, run: Run) -> None:
    outcome = ending(1, subject="Invoice 17 of May")
    keep(policy_path, outcome, ending(2, subject="Invoice 18 of May"), outcome._replace(at_ns=0))

    (line,) = run("find", "may", "invoice", "17", "--json", "--since", "2h").out.splitlines()
    told = outcome._asdict()
    assert json.loads(line) == {"found": "recent", "at": rfc3339(told.pop("at_ns")), **told}
    assert len(run("find", "invoice", "--limit", "1", "--json").out.splitlines()) == 1


def test_find_exits_1_if_nothing_matches_and_75_if_the_store_is_unreadable(
    policy_path: Path, run: Run
) -> None:
    assert run("find", "eve@") == (1, "", "no such message in the queue or among those that ended\n")
    keep(policy_path, ending(1))
    code, _, err = run("find", "eve@")
    assert (code, "among those that ended since 20" in err) == (1, True)

    database_of(policy_path).write_bytes(b"no database" * 1000)
    with relay_up(policy_path.parent):
        code, _, err = run("find", "r1@")
    assert (code, err) == (
        os.EX_TEMPFAIL,
        "the database of ended messages cannot be read: file is not a database\n",
    )
