"""The entry point: exit codes are sysexits, and a verb is loaded when it is called."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from relay.cli.main import COMMANDS, main
from tests.fakes.operations import FakeOperations
from tests.fakes.snapshots import FIRST, a_message
from tests.unit.cli.control import POLICY, relay_up, write_policy
from tests.unit.cli.test_find import ending, keep


def code_of(*arguments: str) -> object:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


@pytest.mark.parametrize(
    "arguments", [[], ["no-such-verb"], ["--no-such-option"], ["check", "a", "b"], ["check", "--x"]]
)
def test_a_wrong_call_exits_64(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(*arguments) == os.EX_USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage: relay" in err


def test_help_and_version_exit_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("--version") == 0
    assert capsys.readouterr().out == f"relay {version('relay-smarthost')}\n"
    assert code_of("--help") == 0
    out = capsys.readouterr().out
    for name, (_, summary) in COMMANDS.items():
        assert name in out
        assert summary.split()[0] in out


def test_python_m_relay_is_relay() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "relay", "nonsense"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == os.EX_USAGE
    assert "No such command 'nonsense'" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("verb", [["find", "here.example"], ["check"]])
def test_a_reader_who_has_seen_enough_is_no_error_and_a_full_disk_is_one(
    verb: list[str], tmp_path: Path
) -> None:
    policy = write_policy(tmp_path, POLICY.replace("    auth: {user: mjd, password_file: not-there}\n", ""))
    keep(policy, ending(1))
    read_end, write_end = os.pipe()
    os.close(read_end)
    full = os.open("/dev/full", os.O_WRONLY)
    told = b"the output cannot be written: No space left on device\n"
    for stdout, outcome in ((write_end, (0, b"")), (full, (os.EX_IOERR, told))):
        with subprocess.Popen(
            [sys.executable, "-m", "relay", *verb],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=os.environ | {"RELAY_POLICY": str(policy)},
        ) as ran:
            os.close(stdout)
            _, err = ran.communicate(b"hunter2\n")
        assert (ran.returncode, err) == outcome


HEAVY = {"pydantic", "aiohttp", "rich", "textual", "jinja2", "prometheus_client", "aiosmtpd", "aiosmtplib"}
HEAVY |= {"oauthlib", "argon2", "uvloop", "watchfiles"}
OF_A_POLICY = {"relay.policy.model"}
OF_A_RELAY = {"relay.sender.sender", "relay.upstream.connection", "relay.queue.upstream_queue"}
RELAY_SCRIPT = """
import sys
from relay.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    print("loaded:", *sys.modules, "exit:", end.code)
"""


def loaded_by(*verb: str) -> set[str]:
    """Return the modules that a verb has loaded at its end, having done its work."""
    command = [sys.executable, "-c", RELAY_SCRIPT, *verb]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    modules, _, code = ran.stdout.splitlines()[-1].removeprefix("loaded: ").partition(" exit: ")
    assert code in ("0", "None"), ran
    return set(modules.split())


@pytest.mark.parametrize("verb", [["status", "--json"], ["queue", "hold", FIRST], ["pause", "isp"]])
def test_a_verb_that_asks_a_relay_loads_neither_a_policy_nor_a_sender(
    verb: list[str], tmp_path: Path
) -> None:
    policy = write_policy(tmp_path)
    with relay_up(tmp_path / "spool", FakeOperations([a_message()])):
        loaded = loaded_by(*verb, "--policy", str(policy))

    assert not loaded & (HEAVY | OF_A_POLICY | OF_A_RELAY)


def test_help_loads_no_verb() -> None:
    assert not loaded_by("--help") & (HEAVY | OF_A_POLICY | OF_A_RELAY | {"yaml", "asyncio"})
