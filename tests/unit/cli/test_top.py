"""`relay top` and `relay status --watch` as commands: what they need, and what they cost the others."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from relay.cli.main import COMMANDS
from relay.cli.top.looking import Looking
from relay.cli.top.picture import TopView
from relay.cli.watch_status import redrawn
from relay.clock import SECOND_NS
from relay.status.snapshot import to_json
from tests.fakes.clock import FakeClock
from tests.fakes.operations import FakeOperations
from tests.fakes.snapshots import AT_NS, FIRST, a_message, a_snapshot
from tests.unit.cli.control import code_of, relay_up, write_policy


@pytest.fixture
def policy_path(tmp_path: Path) -> Path:
    return write_policy(tmp_path)


def test_top_needs_a_terminal_and_says_what_does_not(
    policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("top", "--policy", str(policy_path)) == os.EX_USAGE
    assert "`relay status --watch` prints to anything" in capsys.readouterr().err


def test_no_command_waits_for_the_library_of_terminals() -> None:
    modules = ", ".join(dict.fromkeys(command.module for command in COMMANDS.values()))
    program = f"import sys, {modules}; sys.exit('textual' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("seconds", ["0", "-1", "x", "nan", "86401"])
def test_no_such_interval_is_taken(seconds: str, policy_path: Path) -> None:
    assert code_of("status", f"--watch={seconds}", "--policy", str(policy_path)) == os.EX_USAGE


def watched(policy_path: Path, *options: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "relay",
        "status",
        "--watch",
        "1",
        "--policy",
        str(policy_path),
        *options,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_watched_status_is_a_line_of_json_each_time(policy_path: Path) -> None:
    with relay_up(policy_path.parent / "spool", FakeOperations()), watched(policy_path, "--json") as watching:
        assert watching.stdout is not None
        lines = [watching.stdout.readline() for _ in range(2)]
        watching.send_signal(2)
        assert watching.wait() == os.EX_OK

    assert [json.loads(line) for line in lines] == [to_json(a_snapshot())] * 2


def test_watched_status_says_that_no_relay_runs_and_goes_on(policy_path: Path) -> None:
    with watched(policy_path) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline().startswith(f"no relay runs on {policy_path.parent}/spool")
        assert watching.stdout.readline() == "\n"
        with relay_up(policy_path.parent / "spool", FakeOperations()):
            while not watching.stdout.readline().startswith("relay 0.1.0 on relay.example.org: running"):
                pass
        watching.send_signal(2)
        assert watching.wait() == os.EX_OK
        # Down, it reads no spool: its lock is for the relay.
        assert not (policy_path.parent / "spool" / "lock").exists()


@pytest.mark.parametrize("height", [2, 10, 100])
def test_a_picture_takes_the_place_of_the_last_and_fits(height: int) -> None:
    out = Console(file=io.StringIO(), force_terminal=True, width=80, height=height, legacy_windows=False)

    drawn = redrawn(TopView("/spool", AT_NS, a_snapshot(), trouble="no relay runs \x1b[2J"), out)

    assert drawn.startswith("\x1b[H")
    assert "\x1b[2J" not in drawn
    lines = drawn.splitlines()[:-1]
    assert len(lines) <= height - 1
    assert all(line.endswith("\x1b[K") for line in lines)
    assert ("more lines: a taller terminal shows them" in drawn) == (height < 100)


async def test_a_look_knows_the_relay_and_how_long_ago(tmp_path: Path) -> None:
    clock = FakeClock()
    looking = Looking(tmp_path, clock)
    await looking.look()
    await looking.count()
    assert (looking.seen().trouble, looking.seen().snapshot) == (f"no relay runs on {tmp_path}", None)

    operations = FakeOperations([a_message(FIRST)])
    with relay_up(tmp_path, operations):
        await looking.look()
        await looking.count()
        clock.advance(3 * SECOND_NS)
        seen = looking.seen()
        assert (seen.trouble, seen.snapshot, seen.age_ns) == ("", a_snapshot(), 3 * SECOND_NS)
        assert seen.now_ns == a_snapshot().at_ns + 3 * SECOND_NS
        assert seen.breakdown is not None
        assert seen.breakdown.senders[0].reverse_path == "list@example.org"
        operations.raises = RuntimeError("odd")
        await looking.look()
        assert looking.seen().trouble.startswith("the relay says: 500")
    await looking.look()
    assert looking.seen().trouble == f"no relay runs on {tmp_path}"
    assert looking.seen().snapshot == a_snapshot()
    await looking.close()


async def test_a_spool_that_is_made_anew_is_found_again(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    looking = Looking(spool, FakeClock())
    with relay_up(spool, FakeOperations()):
        await looking.look()
    spool.rename(tmp_path / "old")
    await looking.look()
    assert looking.seen().trouble == f"no relay runs on {spool}"
    spool.mkdir()
    with relay_up(spool, FakeOperations()):
        await looking.look()
        assert looking.seen().trouble == ""
    await looking.close()
