"""The entry point: exit codes are sysexits, and a verb is loaded when it is called."""

import importlib
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from relay.cli.main import COMMANDS, main
from tests.unit.cli.control import POLICY, write_policy
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
    for name, verb in COMMANDS.items():
        assert name in out
        assert verb.summary.split()[0] in out


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_of_the_table_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    verb = COMMANDS[name]
    assert isinstance(getattr(importlib.import_module(verb.module), verb.name), click.Command)
    assert code_of(name, "--help") == 0
    assert f"Usage: relay {name}" in capsys.readouterr().out


def test_python_m_relay_is_relay() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "relay", "nonsense"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == os.EX_USAGE
    assert "No such command 'nonsense'" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    "verb", [["hash-password", "ann"], ["find", "here.example"], ["status"], ["queue"], ["check"]]
)
def test_a_reader_who_has_seen_enough_is_no_error(verb: list[str], tmp_path: Path) -> None:
    policy = write_policy(tmp_path, POLICY.replace("    auth: {user: mjd, password_file: not-there}\n", ""))
    keep(policy, ending(1))
    read_end, write_end = os.pipe()
    os.close(read_end)
    with subprocess.Popen(
        [sys.executable, "-m", "relay", *verb],
        stdin=subprocess.PIPE,
        stdout=write_end,
        stderr=subprocess.PIPE,
        env=os.environ | {"RELAY_POLICY": str(policy)},
    ) as ran:
        os.close(write_end)
        _, err = ran.communicate(b"hunter2\n")
    assert (ran.returncode, err) == (0, b"")


@pytest.mark.parametrize(
    ("loads", "never"),
    [
        ("relay.cli.main", ("pydantic", "aiohttp", "rich", "relay.policy")),
        ("relay.cli.operate", ("relay.sender", "relay.upstream", "aiohttp", "oauthlib", "prometheus_client")),
        ("relay.cli.pause", ("relay.sender", "relay.upstream", "aiohttp", "oauthlib", "prometheus_client")),
    ],
)
def test_a_verb_loads_only_what_it_needs(loads: str, never: tuple[str, ...]) -> None:
    asked = f"import sys, {loads}; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True)

    assert [name for name in loaded.stdout.splitlines() if name.startswith(never)] == []
