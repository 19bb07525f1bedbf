"""`relay top` on a relay that runs, in a real terminal."""

import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.relay import PROJECT, RelayProcess
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import HANG_S

pytestmark = pytest.mark.full

LEFT = b"\x1b[?1049l"
"""What restores the screen from before."""
COLOURED = re.compile(rb"\x1b\[(?:[0-9]+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")


@pytest.fixture
def relay(tmp_path: Path, upstream: StrictSmarthost) -> RelayProcess:
    """Return a relay that is not started, and may relay one message an hour."""
    return RelayProcess(tmp_path, {"isp": upstream.upstream(limits=[{"messages": 1, "per": "1h"}])})


class Terminal:
    """A `relay top` in a pseudo-terminal, as a person has it."""

    def __init__(self, relay: RelayProcess) -> None:
        self._ours, self._theirs = os.openpty()
        self._before = termios.tcgetattr(self._theirs)
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        command = [sys.executable, "-m", "relay", "top", "--policy", str(relay.policy_path)]
        surroundings = {
            key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "COLORTERM"}
        }
        self.process = subprocess.Popen(
            command,
            cwd=PROJECT,
            env=surroundings | {"TERM": "xterm", "SUDO_USER": "anna"},
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
        )
        self.written = b""
        self._read = 0

    def press(self, key: bytes, until: bytes = b"") -> None:
        os.write(self._ours, key)
        self.read_until(until)

    def read_until(self, word: bytes) -> None:
        """Return once this was written, after all texts that were waited for before."""
        deadline = time.monotonic() + HANG_S
        while (at := self.written.find(word, self._read)) < 0:
            assert time.monotonic() < deadline, self.written[-4000:]
            assert self.process.poll() is None, self.written[-4000:]
            if select.select([self._ours], [], [], 1)[0]:
                self.written += os.read(self._ours, 65536)
        self._read = at + len(word)

    def end(self) -> int:
        """Return its exit code once it ended; fail unless it restored the terminal."""
        while self.process.poll() is None or select.select([self._ours], [], [], 0)[0]:
            if select.select([self._ours], [], [], 0.1)[0]:
                self.written += os.read(self._ours, 65536)
        assert LEFT in self.written
        assert termios.tcgetattr(self._theirs) == self._before
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@contextmanager
def top_of(relay: RelayProcess) -> Iterator[Terminal]:
    terminal = Terminal(relay)
    try:
        yield terminal
    finally:
        terminal.close()


def test_top_waits_for_a_relay_ends_on_sigterm_and_writes_no_colours(relay: RelayProcess) -> None:
    (relay.folder / "spool").mkdir(mode=0o700)
    with top_of(relay) as top:
        top.read_until(b"no relay runs on")
        with relay:
            top.read_until(b"running for")
            top.process.send_signal(signal.SIGTERM)
            assert top.end() == 128 + signal.SIGTERM
        assert not COLOURED.search(top.written)


def test_keys_pause_resume_hold_and_quit_through_a_restart_of_the_relay(relay: RelayProcess) -> None:
    def paused_by() -> object:
        return json.loads(relay.command("status", "--json").stdout)["upstreams"][0]["paused_by"]

    with relay:
        relay.send("ann@x.test", "bob@x.test")
        with top_of(relay) as top:
            top.read_until(b"queue: 1 waiting")
            top.press(b"p", b"Pause upstream isp")
            top.press(b"y", b"isp: paused")
            assert paused_by() == "anna"
            top.press(b"u", b"Use upstream isp again")
            top.press(b"n", b"nothing was done")
            assert paused_by() == "anna"
            top.press(b"u", b"Use upstream isp again")
            top.press(b"y", b"isp: resumed; one message goes first")
            assert paused_by() == ""

            relay.kill()
            top.read_until(b"no relay runs on")
            top.read_until(b"isp")
            top.press(b"h", b"hold: no relay runs on")
            relay.start()
            top.read_until(b"running for")
            top.press(b"h", b"hold 1 messages")
            top.press(b"y", b"1 messages: held")
            assert [each["state"] for each in relay.queue()] == ["held"]
            top.press(b"q")
            assert top.end() == os.EX_OK
