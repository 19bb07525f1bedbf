"""`relay demo`: it passes where all went well, fails where it did not, and leaves nothing behind."""

import contextlib
import os
import re
import signal
import smtplib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.unit.cli.control import code_of

HANG_S = 120
COLUMNS = 80


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a demo whose temporary files are in a folder."""
    command = [sys.executable, "-m", "relay", "demo", *arguments]
    with subprocess.Popen(
        command,
        env=os.environ | {"TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as demo:
        try:
            yield demo
        finally:
            # A demo that did not end as it should still takes its relay with it.
            if demo.poll() is None:
                demo.terminate()


def wait_for_frame(demo: "subprocess.Popen[str]", pattern: str = "^window ") -> None:
    """Return once the relay runs and a frame shows this."""
    assert demo.stdout is not None
    said = []
    for line in demo.stdout:
        said.append(line)
        if re.search(pattern, words(line)):
            return
    raise AssertionError("no such frame, but:\n" + "".join(said))


def relay_of(demo: "subprocess.Popen[str]") -> int:
    """Return the pid of the relay that a demo started."""
    (pid,) = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
    return int(pid)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def words(line: str) -> str:
    return " ".join(line.split())


@pytest.mark.full
def test_the_upstream_gets_everything_and_refuses_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "--messages", "5", "--limit", "3", "--per", "1s") as demo:
        out, _ = demo.communicate(timeout=HANG_S)

    lines = [words(line) for line in out.splitlines()]
    assert demo.returncode == 0, out
    assert "A practice upstream allows 3 messages per 1s, and cuts off whoever sends more." in lines
    assert "most in any 1s: 3 of 3 allowed ok" in lines
    assert "refused: 0 ok" in lines
    assert "relayed: 5 of 5 ok" in lines
    assert "relayed twice: 0 ok" in lines
    assert "PASSED" in lines
    assert "make run" in lines[-1]
    (taken_s,) = re.findall(r"(?m)^  time: ([0-9.]+)s from first to last; the ideal is 1\.0s$", out)
    assert float(taken_s) >= 1.0
    assert any(re.search(r"^window .* waiting 0 relayed 5/5$", line) for line in lines)
    assert all(len(line) <= COLUMNS for line in out.splitlines() if str(tmp_path) not in line)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_whoever_else_uses_up_the_account_makes_it_fail(tmp_path: Path) -> None:
    with running(tmp_path, "--messages", "50", "--limit", "1", "--per", "2s") as demo:
        wait_for_frame(demo)
        (folder,) = tmp_path.iterdir()
        account = yaml.safe_load((folder / "policy.yaml").read_text())["upstreams"]["practice"]
        password_path = folder / account["auth"]["password_file"]
        assert password_path.stat().st_mode & 0o777 == 0o600
        with smtplib.SMTP(account["host"], account["port"]) as rival:
            rival.login(account["auth"]["user"], password_path.read_text().rstrip("\n"))
            # Which of the two is one too many is up to the upstream.
            with contextlib.suppress(smtplib.SMTPResponseException, smtplib.SMTPServerDisconnected):
                for number in range(2):
                    rival.sendmail("rival@example.org", [f"{number}@example.net"], "Subject: me first\n\n")
        out, _ = demo.communicate(timeout=HANG_S)

    assert demo.returncode == 1, out
    assert re.search(r"(?m)^  most in any 2s: [2-9] of 1 allowed +NOT OK$", out), out
    assert re.search(r"(?m)^  refused: [1-9] +NOT OK$", out), out
    assert "FAILED: the upstream refused a message: 550 5.7.1" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_its_relay(number: signal.Signals, tmp_path: Path) -> None:
    with running(tmp_path, "--messages", "50", "--limit", "1", "--per", "10s") as demo:
        wait_for_frame(demo)
        relay = relay_of(demo)
        demo.send_signal(number)
        out, _ = demo.communicate(timeout=HANG_S)

    assert demo.returncode == 128 + number, out
    assert "Traceback" not in out
    assert not is_there(relay)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [["--per", "5"], ["--per", "0s"], ["--limit", "0"], ["--messages", "0"], ["extra"]]
)
def test_a_wrong_call_is_64(arguments: list[str]) -> None:
    assert code_of("demo", *arguments) == os.EX_USAGE
