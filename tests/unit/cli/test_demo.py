"""`relay demo` passes if all went well, ends on a signal, and leaves nothing behind."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HANG_S = 120


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a demo whose temporary files are in a folder."""
    with subprocess.Popen(
        [sys.executable, "-m", "relay", "demo", *arguments],
        env=os.environ | {"TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as demo:
        try:
            yield demo
        finally:
            # If the test failed, the demo still runs; SIGTERM ends it together with its relay.
            if demo.poll() is None:
                demo.terminate()


def end(demo: "subprocess.Popen[str]", folder: Path, code: int) -> str:
    """Check the exit code and that no file is left; return the output, white space as one blank."""
    out, _ = demo.communicate(timeout=HANG_S)
    assert (demo.returncode, list(folder.iterdir())) == (code, []), out
    return " ".join(out.split())


def wait_for_relay(demo: "subprocess.Popen[str]") -> int:
    """Return the pid of the relay once the demo shows what it relayed."""
    assert demo.stdout is not None
    next(line for line in demo.stdout if "relayed" in line)
    (pid,) = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
    return int(pid)


@pytest.mark.full
def test_demo_relays_everything_and_the_upstream_refuses_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "--messages", "5", "--limit", "3", "--per", "1s") as demo:
        said = end(demo, tmp_path, os.EX_OK)
    for each in (
        "A practice upstream allows 3 messages per 1s, and cuts off whoever sends more.",
        "got 5 of 5 messages, 0 of them twice. It refused 0. The most in any 1s: 3 of 3 allowed. PASSED",
        "# 5/5 ",
        "make run",
    ):
        assert each in said


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_demo_and_its_relay(number: signal.Signals, tmp_path: Path) -> None:
    with running(tmp_path, "--messages", "50", "--limit", "1", "--per", "10s") as demo:
        relay = wait_for_relay(demo)
        demo.send_signal(number)
        assert "Traceback" not in end(demo, tmp_path, 130)
    assert not Path(f"/proc/{relay}").exists()
