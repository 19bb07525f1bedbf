"""The entry point: exit codes are sysexits, and a verb is loaded when it is called."""

import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from relay.cli.main import COMMANDS, ENDS
from tests.unit.cli.conftest import Run
from tests.unit.cli.control import POLICY, Up, write_policy
from tests.unit.cli.test_find import ending, keep


@pytest.mark.usefixtures("policy_path")
@pytest.mark.parametrize("words", ["", "no-such-verb", "--no-such-option", "check a b", "check --x", "top"])
def test_a_wrong_call_exits_64(words: str, run: Run) -> None:
    """`relay top` needs a terminal."""
    code, out, err = run(*words.split())
    assert (code, out, "Usage: relay" in err) == (os.EX_USAGE, "", True)


def test_help_and_version_exit_0(run: Run) -> None:
    assert run("--version") == (0, f"relay {version('relay-smarthost')}\n", "")
    code, out, _ = run("--help")
    assert code == 0
    assert [name for name in COMMANDS if f"\n  {name} " not in out] == []


@pytest.mark.parametrize("name", ENDS)
def test_an_end_is_known_by_the_name_of_a_class(name: str) -> None:
    module, _, kind = name.rpartition(".")
    assert getattr(import_module(module), kind).__module__ == module


@pytest.mark.parametrize("verb", [["find", "here.example"], ["check"]])
def test_a_reader_who_has_seen_enough_is_no_error_and_a_full_disk_is_one(
    verb: list[str], policy_path: Path
) -> None:
    without_auth = POLICY.replace("    auth: {user: mjd, password_file: not-there}\n", "")
    policy = write_policy(policy_path.parent, without_auth)
    keep(policy, ending(1))
    read_end, write_end = os.pipe()
    os.close(read_end)
    full = os.open("/dev/full", os.O_WRONLY)
    told = b"the output cannot be written: No space left on device\n"
    for stdout, outcome in ((write_end, (0, b"")), (full, (os.EX_IOERR, told))):
        with subprocess.Popen(
            [sys.executable, "-m", "relay", *verb], stdout=stdout, stderr=subprocess.PIPE
        ) as ran:
            os.close(stdout)
            _, err = ran.communicate()
        assert (ran.returncode, err) == outcome


HEAVY = {"pydantic", "aiohttp", "rich", "textual", "jinja2", "prometheus_client", "aiosmtpd", "aiosmtplib"}
HEAVY |= {"cryptography", "argon2", "uvloop", "watchfiles", "asyncio", "http.client"}
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


@pytest.mark.parametrize("verb", [["status", "--json"], ["queue", "hold", "--yes", "ALL"], ["pause", "isp"]])
def test_a_verb_that_asks_a_relay_loads_neither_a_policy_nor_a_sender(verb: list[str], up: Up) -> None:
    up.accept()
    assert not loaded_by(*verb) & (HEAVY | OF_A_POLICY | OF_A_RELAY)


def test_help_loads_no_verb() -> None:
    assert not loaded_by("--help") & (HEAVY | OF_A_POLICY | OF_A_RELAY)
