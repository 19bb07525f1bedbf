"""The entry point: exit codes are sysexits, and a verb is loaded when it is called."""

import json
import os
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from relay.cli.main import COMMANDS, ENDS
from tests.fakes.snapshots import FIRST, SECOND
from tests.unit.cli.conftest import Run
from tests.unit.cli.control import Up
from tests.unit.cli.terminal import forked
from tests.unit.policy.examples import with_upstream

FILTER = "--sender @example.org"
WRONG_CALLS = [
    *("", "no-such-verb", "--no-such-option", "check a b", "check --x"),
    *("demo --per 5", "demo --per 0s", "demo --limit 0", "demo --messages 0", "demo extra"),
    *("find ''", "find '<>'", "find '  '", "find \udcff"),
    *("explain-reply", "explain-reply mail", "explain-reply nowhere '550 no'"),
    *(f"explain-reply mail '{reply}'" for reply in ("", "hello", "999 no")),
    *("spool convert --to mbox", "drain maildir --prefix x -t", "pause \udcff", "resume \udcff"),
    *(f"pause isp --for '{length}'" for length in ("0h", "2", "-1h", "367d", "")),
    *("export", "export 'not an id'", "export ../../etc/passwd", f"export {FIRST} {SECOND}"),
    *("queue content", f"queue content {FIRST} {SECOND}", "queue show ALL", "queue show"),
    *("queue delete", "queue delete ALL", f"queue delete --yes ALL {FIRST}", "queue delete --yes"),
    *(f"queue hold {FIRST} {FIRST}x", f"queue hold {FIRST.replace('0', 'A')}", f"queue --json hold {FIRST}"),
    *(f"queue {FILTER} hold", f"queue hold {FILTER} {FIRST}", f"queue delete {FILTER} ALL --yes"),
    *("queue delete --reason limit --yes", "queue delete --user \udcff --yes"),
    # An unset shell variable gives an empty value, which would match every message that has none.
    *(f"queue delete --{key}= --yes" for key in ("user", "lane", "client", "sender")),
    *("queue --sender list", "queue --domain a@example.org", "queue --client 192.0.2.1/8"),
    *("queue --older 2", "queue --size much", "queue --state incoming", "queue --limit 0"),
    "queue --by sender --sort size",
]


@pytest.mark.usefixtures("policy_path")
@pytest.mark.parametrize("call", WRONG_CALLS)
def test_a_wrong_call_exits_64_and_prints_only_an_error(call: str, run: Run) -> None:
    code, out, err = run(*shlex.split(call))
    assert (code, out, bool(err)) == (os.EX_USAGE, "", True)


def test_help_and_version_exit_0(run: Run) -> None:
    assert run("--version") == (0, f"relay {version('relay-smarthost')}\n", "")
    code, out, _ = run("--help")
    assert code == 0
    assert [name for name in COMMANDS if f"\n  {name} " not in out] == []


@pytest.mark.parametrize("name", ENDS)
def test_every_exception_in_the_table_of_exit_codes_exists(name: str) -> None:
    module, _, kind = name.rpartition(".")
    assert getattr(import_module(module), kind).__module__ == module


def test_a_closed_pipe_exits_0_and_a_full_disk_exits_74(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(with_upstream("host: smtp.example.net"))
    read_end, write_end = os.pipe()
    os.close(read_end)
    full = os.open("/dev/full", os.O_WRONLY)
    told = b"the output cannot be written: No space left on device\n"
    for out, code, err in ((write_end, 0, b""), (full, os.EX_IOERR, told)):
        ran = forked("check", str(policy), out=out)
        os.close(out)
        assert (ran.returncode, ran.stderr) == (code, err)


HEAVY = {"pydantic", "aiohttp", "rich", "textual", "jinja2", "prometheus_client", "aiosmtpd", "aiosmtplib"}
HEAVY |= {"cryptography", "argon2", "uvloop", "watchfiles", "asyncio", "http.client", "psycopg"}
OF_A_POLICY = {"relay.policy.model"}
OF_A_RELAY = {"relay.sender.sender", "relay.upstream.connection", "relay.queue.upstream_queue"}
VERBS = [["--help"], ["status", "--json"], ["queue", "hold", "--yes", "ALL"], ["pause", "isp"]]
PROGRAM = """
import json, sys
from relay.cli.main import main
for verb in json.load(sys.stdin):
    try:
        main(verb)
    except SystemExit as end:
        assert not end.code, verb
print(*sys.modules)
"""


def test_verbs_that_ask_a_relay_load_neither_a_policy_nor_a_sender(up: Up) -> None:
    up.accept()
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(VERBS), check=True, capture_output=True, text=True
    )
    assert not {*ran.stdout.splitlines()[-1].split()} & (HEAVY | OF_A_POLICY | OF_A_RELAY)
