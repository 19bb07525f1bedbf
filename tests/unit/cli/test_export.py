"""`relay export`: a message as a file that mail programs read, and its envelope beside it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.spool.engine import CONTENT, ENVELOPE, accept
from tests.engines.spool.log_engine import log_on_the_kernel
from tests.engines.spool.maildir_engine import on_the_kernel
from tests.fakes.operations import FakeOperations
from tests.fakes.snapshots import FIRST, SECOND, a_message
from tests.unit.cli.conftest import Run
from tests.unit.cli.control import code_of, relay_up, write_policy


@pytest.fixture
def operations(policy_path: Path) -> Iterator[FakeOperations]:
    operations = FakeOperations([a_message(FIRST), a_message(SECOND)])
    operations.chunks = [b"Subject: \xff\r\n", b"\r\n.\r\n" * 50_000]
    with relay_up(policy_path.parent / "spool", operations):
        yield operations


def test_content_goes_to_stdout_as_it_is_stored(
    operations: FakeOperations, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert code_of("export", FIRST) == os.EX_OK
    assert capfdbinary.readouterr().out == b"".join(operations.chunks)
    assert operations.asked == []


def test_files_hold_content_and_envelope_for_their_owner(
    operations: FakeOperations, tmp_path: Path, run: Run
) -> None:
    folder = tmp_path / "out"
    told = "".join(f"{folder}/{each}.eml\n" for each in (FIRST, SECOND))
    assert run("export", FIRST, SECOND, "--output", str(folder)) == (os.EX_OK, told, "")
    for queue_id in (FIRST, SECOND):
        assert (folder / f"{queue_id}.eml").read_bytes() == b"".join(operations.chunks)
        envelope = json.loads((folder / f"{queue_id}.json").read_text())
        assert (envelope["queue_id"], envelope["reverse_path"]) == (queue_id, "list@example.org")
        assert [each["address"] for each in envelope["recipient_statuses"]]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("operations")
def test_nothing_that_is_there_is_replaced(tmp_path: Path, run: Run) -> None:
    (folder := tmp_path / "out").mkdir()
    mine = {folder / f"{FIRST}.eml", folder / f"{SECOND}.json"}
    for path in mine:
        path.write_text("mine")
    code, _, err = run("export", FIRST, SECOND, "--output", str(folder))
    assert (code, "File exists" in err) == (1, True)
    assert {path: path.read_text() for path in folder.iterdir()} == dict.fromkeys(mine, "mine")


def test_half_of_a_message_leaves_no_file(operations: FakeOperations, tmp_path: Path, run: Run) -> None:
    operations.content_ends = "its checksum is wrong"
    folder = tmp_path / "out"
    assert run("export", FIRST, "--output", str(folder)).code == 1
    assert list(folder.iterdir()) == []
    folder.rmdir()
    folder.write_text("a file")
    assert run("export", FIRST, "--output", str(folder)).code == os.EX_CANTCREAT


@pytest.mark.usefixtures("operations")
@pytest.mark.parametrize("arguments", [[], ["not an id"], [FIRST, SECOND], ["../../etc/passwd"]])
def test_a_wrong_call_is_told(arguments: list[str], run: Run) -> None:
    assert run("export", *arguments).code == os.EX_USAGE


@pytest.mark.parametrize("engine", ["maildir", "log"])
def test_a_relay_that_is_down_is_no_hindrance(engine: str, policy_path: Path, run: Run) -> None:
    folder = write_policy(policy_path.parent, engine=engine).parent
    intake = (on_the_kernel if engine == "maildir" else log_on_the_kernel)(folder).intake()
    queue_id, long = accept(intake), accept(intake, content=b"Subject: l\r\n" + b"x" * 600_000)
    intake.close()

    assert run("export", queue_id, long, "--output", str(folder / "out")).code == os.EX_OK
    assert (folder / "out" / f"{queue_id}.eml").read_bytes() == CONTENT
    assert (folder / "out" / f"{long}.eml").stat().st_size == 600_012
    envelope = json.loads((folder / "out" / f"{queue_id}.json").read_text())
    assert envelope["user"] == ENVELOPE.user
    assert [each["address"] for each in envelope["recipient_statuses"]] == list(ENVELOPE.recipients)
