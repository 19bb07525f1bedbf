"""`relay spool convert`: what it says, and what it refuses."""

import os
from pathlib import Path

import pytest

from relay.spool.disk.durable import RealDisk
from relay.spool.interface import Settlement
from tests.engines.spool.engine import ENVELOPE, LogOnModel, OnDisk, accept, claimed, on_the_kernel, settle
from tests.unit.cli.conftest import Run
from tests.unit.cli.control import answering, write_policy

FORMATS = {"maildir": "relay spool 1 maildir\n", "log": "relay spool 1 log\n"}
CONVERT = ("spool", "convert", "--to", "log")


@pytest.fixture
def engine(policy_path: Path) -> OnDisk:
    """Return a maildir spool with one held message to three recipients; the policy asks for a maildir."""
    made = on_the_kernel(policy_path.parent)
    spool, intake = made.start(), made.intake()
    queue_id = accept(intake)
    claimed(spool)
    settle(spool, Settlement(queue_id, ENVELOPE, is_held=True))
    spool.close()
    intake.close()
    return made


def format_of(engine: OnDisk) -> str:
    return (Path(engine.root) / "format").read_text()


def test_convert_reports_what_it_did_and_what_to_write_into_the_policy(
    engine: OnDisk, tmp_path: Path, run: Run
) -> None:
    assert run(*CONVERT).out.splitlines() == [
        f"{engine.root}: maildir to log: 1 messages, 1 of them held, 3 recipients to do",
        f"now write in the policy  spool: {{path: {engine.root}, engine: log}}",
    ]
    assert format_of(engine) == FORMATS["log"]
    write_policy(tmp_path, engine="log")
    assert run("spool", "convert") == (os.EX_OK, f"{engine.root}: already uses the engine log\n", "")
    spool = OnDisk(LogOnModel(f"{tmp_path}/spool"), RealDisk()).start()
    assert [message.is_held for message in claimed(spool)] == [True]
    spool.close()
    write_policy(tmp_path, engine="maildir")
    assert run("spool", "convert").code == os.EX_OK
    assert format_of(engine) == FORMATS["maildir"]


def test_convert_refuses_a_spool_that_is_in_use(engine: OnDisk, run: Run) -> None:
    said = []
    with answering(Path(engine.root)):
        said.append(run(*CONVERT))
    for held in (engine.start, engine.intake):
        opened = held()
        said.append(run(*CONVERT))
        opened.close()
    assert [ran.code for ran in said] == [os.EX_TEMPFAIL] * 3
    for ran, why in zip(said, ("a relay runs", "owns the queue", "a listener, `relay"), strict=True):
        assert why in ran.err
    assert format_of(engine) == FORMATS["maildir"]


@pytest.mark.usefixtures("policy_path")
def test_convert_and_fsck_exit_66_without_a_spool(run: Run) -> None:
    for verb in (CONVERT, ("fsck",)):
        code, _, err = run(*verb)
        assert (code, "there is no spool in this folder" in err) == (os.EX_NOINPUT, True)


@pytest.mark.parametrize("arguments", [["queue"], ["fsck"], ["queue", "hold", "0000000000000001"]])
def test_a_spool_of_another_engine_is_refused_and_the_converting_command_named(
    engine: OnDisk, tmp_path: Path, arguments: list[str], run: Run
) -> None:
    write_policy(tmp_path, engine="log")
    before = sorted(Path(engine.root).iterdir())
    code, _, err = run(*arguments)
    assert (code, "relay spool convert --to log" in err) == (os.EX_CONFIG, True)
    # The refused command created no file of the other engine.
    assert sorted(Path(engine.root).iterdir()) == before
