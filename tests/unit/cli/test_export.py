"""`relay export`: a message as a file that mail programs read, and its envelope beside it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.mail.envelope import QueueId
from tests.engines.spool.engine import CONTENT, ENVELOPE, accept
from tests.engines.spool.log_engine import log_on_the_kernel
from tests.engines.spool.maildir_engine import on_the_kernel
from tests.fakes.operations import FakeOperations
from tests.fakes.snapshots import a_message
from tests.unit.cli.control import code_of, relay_up, write_policy

FIRST, SECOND = QueueId("0000000000000001"), QueueId("0000000000000002")


@pytest.fixture
def operations() -> FakeOperations:
    return FakeOperations([a_message(queue_id=FIRST), a_message(queue_id=SECOND)])


@pytest.fixture
def out(tmp_path: Path, operations: FakeOperations, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("RELAY_POLICY", str(write_policy(tmp_path)))
    operations.chunks = [b"Subject: \xff\r\n", b"\r\n.\r\n" * 50_000]
    with relay_up(tmp_path / "spool", operations):
        yield tmp_path / "out"


def test_content_goes_to_stdout_as_it_is_stored(
    out: Path, operations: FakeOperations, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert code_of("export", FIRST) == os.EX_OK
    assert capfdbinary.readouterr().out == b"".join(operations.chunks)
    assert not out.exists()
    assert operations.asked == []


def test_files_hold_content_and_envelope_for_their_owner(
    out: Path, operations: FakeOperations, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("export", FIRST, SECOND, "--output", str(out)) == os.EX_OK
    assert capsys.readouterr().out.splitlines() == [f"{out}/{FIRST}.eml", f"{out}/{SECOND}.eml"]
    for queue_id in (FIRST, SECOND):
        assert (out / f"{queue_id}.eml").read_bytes() == b"".join(operations.chunks)
        envelope = json.loads((out / f"{queue_id}.json").read_text())
        assert (envelope["queue_id"], envelope["reverse_path"]) == (queue_id, "list@example.org")
        assert [each["address"] for each in envelope["recipient_statuses"]]
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {0o600}
    assert out.stat().st_mode & 0o777 == 0o700


def test_nothing_that_is_there_is_replaced(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out.mkdir()
    (out / f"{FIRST}.eml").write_text("mine")
    (out / f"{SECOND}.json").write_text("mine too")
    assert code_of("export", FIRST, SECOND, "--output", str(out)) == 1
    assert sorted(path.name for path in out.iterdir()) == [f"{FIRST}.eml", f"{SECOND}.json"]
    assert (out / f"{FIRST}.eml").read_text() == "mine"
    assert "File exists" in capsys.readouterr().err


def test_half_of_a_message_leaves_no_file(out: Path, operations: FakeOperations) -> None:
    operations.content_ends = "its checksum is wrong"
    assert code_of("export", FIRST, "--output", str(out)) == os.EX_TEMPFAIL
    assert list(out.iterdir()) == []
    out.rmdir()
    out.write_text("a file")
    assert code_of("export", FIRST, "--output", str(out)) == os.EX_CANTCREAT


@pytest.mark.usefixtures("out")
@pytest.mark.parametrize(
    "arguments",
    [[], ["not an id"], [FIRST, SECOND], ["../../etc/passwd"]],
)
def test_a_wrong_call_is_told(arguments: list[str]) -> None:
    assert code_of("export", *arguments) == os.EX_USAGE


@pytest.mark.parametrize("engine", ["maildir", "log"])
def test_a_relay_that_is_down_is_no_hindrance(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAY_POLICY", str(write_policy(tmp_path, engine=engine)))
    made = on_the_kernel(tmp_path) if engine == "maildir" else log_on_the_kernel(tmp_path)
    intake = made.intake()
    queue_id, long = accept(intake), accept(intake, content=b"Subject: l\r\n" + b"x" * 600_000)
    intake.close()

    assert code_of("export", queue_id, long, "--output", str(tmp_path / "out")) == os.EX_OK
    assert (tmp_path / "out" / f"{queue_id}.eml").read_bytes() == CONTENT
    assert (tmp_path / "out" / f"{long}.eml").stat().st_size == 600_012
    envelope = json.loads((tmp_path / "out" / f"{queue_id}.json").read_text())
    assert envelope["user"] == ENVELOPE.user
    assert [each["address"] for each in envelope["recipient_statuses"]] == list(ENVELOPE.recipients)
