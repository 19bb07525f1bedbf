"""What is said and answered while a start has yet to read some of the queue."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from relay.mail.envelope import QueueId
from tests.fakes.operations import FakeOperations
from tests.fakes.snapshots import a_message, a_snapshot
from tests.unit.cli.control import code_of, relay_up, write_policy

SAID = "about 7 messages are not read yet after the start"
KNOWN, NOT_KNOWN = QueueId("0" * 16), QueueId("1" * 16)


@pytest.fixture
def policy_path(tmp_path: Path) -> Path:
    return write_policy(tmp_path)


def _reading() -> FakeOperations:
    operations = FakeOperations([a_message(KNOWN)])
    operations.shown = replace(a_snapshot(), recovering=7)
    return operations


def test_status_and_listing_say_that_they_are_not_whole(
    policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with relay_up(policy_path.parent / "spool", _reading()):
        assert code_of("status", "--policy", str(policy_path)) == 0
        assert SAID in capsys.readouterr().out
        assert code_of("status", "--json", "--policy", str(policy_path)) == 0
        assert json.loads(capsys.readouterr().out)["recovering"] == 7
        assert code_of("queue", "--policy", str(policy_path)) == 0
        listed = capsys.readouterr()
        assert KNOWN in listed.out
        assert SAID in listed.err


@pytest.mark.parametrize("words", [["show"], ["hold"]])
def test_a_message_that_is_not_read_yet_is_to_be_tried_later(
    policy_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with relay_up(policy_path.parent / "spool", _reading()):
        code = code_of("queue", *words, NOT_KNOWN, "--policy", str(policy_path))

    assert code == os.EX_TEMPFAIL
    assert f"{NOT_KNOWN}: not known yet" in capsys.readouterr().err
