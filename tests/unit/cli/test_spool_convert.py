"""`relay spool convert`: what it says, and what it refuses."""

import os
from pathlib import Path

import pytest

from relay.spool.interface import Settlement
from tests.engines.spool.engine import ENVELOPE, accept, claimed, settle
from tests.engines.spool.log_engine import log_on_the_kernel
from tests.engines.spool.maildir_engine import MaildirEngine, on_the_kernel
from tests.fakes.operations import FakeOperations
from tests.unit.cli.control import code_of, relay_up, write_policy

FORMATS = {"maildir": "relay spool 1 maildir\n", "log": "relay spool 1 log\n"}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MaildirEngine:
    """Return a spool with one message to three, held, and a policy that asks for a maildir."""
    monkeypatch.setenv("RELAY_POLICY", str(write_policy(tmp_path)))
    made = on_the_kernel(tmp_path)
    spool, intake = made.start(), made.intake()
    queue_id = accept(intake)
    claimed(spool)
    settle(spool, Settlement(queue_id, ENVELOPE, is_held=True))
    spool.close()
    intake.close()
    return made


def format_of(engine: MaildirEngine) -> str:
    return (Path(engine.root) / "format").read_text()


def test_it_says_what_it_did_and_what_the_policy_is_to_say(
    engine: MaildirEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("spool", "convert", "--to", "log") == os.EX_OK
    assert capsys.readouterr().out.splitlines() == [
        f"{engine.root}: maildir to log: 1 messages, 1 of them held, 3 recipients to do",
        f"now let the policy say  spool: {{path: {engine.root}, engine: log}}",
    ]
    assert format_of(engine) == FORMATS["log"]
    write_policy(tmp_path, engine="log")
    assert code_of("spool", "convert") == os.EX_OK
    assert capsys.readouterr().out == f"{engine.root}: is of the engine log\n"
    spool = log_on_the_kernel(tmp_path).start()
    assert [message.is_held for message in claimed(spool)] == [True]
    spool.close()
    write_policy(tmp_path, engine="maildir")
    assert code_of("spool", "convert") == os.EX_OK
    assert format_of(engine) == FORMATS["maildir"]


def test_a_relay_that_runs_is_not_disturbed(
    engine: MaildirEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with relay_up(tmp_path / "spool", FakeOperations()):
        assert code_of("spool", "convert", "--to", "log") == os.EX_TEMPFAIL
    assert "stop it first" in capsys.readouterr().err
    sender = engine.start()
    assert code_of("spool", "convert", "--to", "log") == os.EX_TEMPFAIL
    assert "is held by process" in capsys.readouterr().err
    sender.close()
    listener = engine.intake()
    assert code_of("spool", "convert", "--to", "log") == os.EX_TEMPFAIL
    assert "a listener takes mail" in capsys.readouterr().err
    listener.close()
    assert format_of(engine) == FORMATS["maildir"]


def test_no_spool_and_no_such_engine_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RELAY_POLICY", str(write_policy(tmp_path)))
    assert code_of("spool", "convert", "--to", "log") == os.EX_IOERR
    assert "no spool is here" in capsys.readouterr().err
    assert code_of("spool", "convert", "--to", "mbox") == os.EX_USAGE


@pytest.mark.parametrize("arguments", [["queue"], ["status"], ["queue", "hold", "0000000000000001"]])
def test_another_engine_than_the_policys_is_refused_with_the_way_out(
    engine: MaildirEngine, tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_policy(tmp_path, engine="log")
    before = sorted(Path(engine.root).iterdir())
    assert code_of(*arguments) == os.EX_CONFIG
    assert "relay spool convert --to log" in capsys.readouterr().err
    # Nothing of the other engine was made there.
    assert sorted(Path(engine.root).iterdir()) == before
