"""`relay top` on a relay that runs, in a real terminal."""

import fcntl
import json
import os
import re
import select
import signal
import smtplib
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.relay import PROJECT
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import HANG_S
from tests.system.warm import WarmRelay

pytestmark = pytest.mark.full

LIMITS = [{"messages": 1, "per": "1h"}]
SENDER = "list@lists.test"


@pytest.fixture
def practice(tmp_path: Path) -> Iterator[StrictSmarthost]:
    with StrictSmarthost(tmp_path, {"messages": 100, "per": "1m"}, seed=1) as practice:
        yield practice


@pytest.fixture
def relay(tmp_path: Path, practice: StrictSmarthost) -> WarmRelay:
    return WarmRelay(tmp_path, {"isp": practice.upstream(limits=LIMITS)})


def hand_over(relay: WarmRelay, *recipients: str, sender: str = SENDER) -> None:
    with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
        for recipient in recipients:
            session.sendmail(sender, [recipient], "Subject: x\r\n\r\nx\r\n")


class Terminal:
    """A `relay top` in a pseudo-terminal, as a person has it."""

    def __init__(self, relay: WarmRelay, **environment: str) -> None:
        self._ours, theirs = os.openpty()
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        command = [sys.executable, "-m", "relay", "top", "--policy", str(relay.policy_path)]
        surroundings = {
            key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "COLORTERM"}
        }
        surroundings |= {"TERM": "xterm"} | environment
        self.process = subprocess.Popen(
            command,
            cwd=PROJECT,
            env=surroundings,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        self.written = b""
        self._read = 0

    def press(self, *keys: bytes) -> None:
        for key in keys:
            os.write(self._ours, key)

    def read_until(self, word: bytes) -> None:
        """Return once this was written, behind all that was waited for before."""
        deadline = time.monotonic() + HANG_S
        while (at := self.written.find(word, self._read)) < 0:
            assert time.monotonic() < deadline, self.written[-4000:]
            assert self.process.poll() is None, self.written[-4000:]
            if select.select([self._ours], [], [], 1)[0]:
                self.written += os.read(self._ours, 65536)
        self._read = at + len(word)

    def end(self) -> int:
        """Return its exit code once it ended."""
        ended = os.pidfd_open(self.process.pid)
        try:
            while not select.select([ended], [], [], 0)[0]:
                if self._ours in select.select([ended, self._ours], [], [], HANG_S)[0]:
                    self.written += os.read(self._ours, 65536)
            while select.select([self._ours], [], [], 0)[0]:
                self.written += os.read(self._ours, 65536)
        finally:
            os.close(ended)
        return self.process.wait(HANG_S)

    def is_as_before(self) -> bool:
        return termios.tcgetattr(self._theirs) == self.before

    def close(self) -> None:
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        if terminal.process.poll() is None:
            terminal.process.kill()
        terminal.process.wait()
        terminal.close()


LEFT = b"\x1b[?1049l"
"""The screen from before is there again."""
COLOURED = re.compile(rb"\x1b\[(?:[0-9]+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")


@pytest.mark.parametrize("ends", ["key", "signal"])
def test_it_ends_with_the_terminal_as_it_was(relay: WarmRelay, terminals: list[Terminal], ends: str) -> None:
    """Started before the relay, it waits for it."""
    (relay.folder / "spool").mkdir(mode=0o700)
    terminals.append(top := Terminal(relay))
    top.read_until(b"no relay runs on")
    with relay:
        top.read_until(b"running for")
        if ends == "key":
            top.press(b"q")
        else:
            top.process.send_signal(signal.SIGTERM)
        assert top.end() == (os.EX_OK if ends == "key" else 128 + signal.SIGTERM)

    assert LEFT in top.written
    assert top.is_as_before()
    assert not COLOURED.search(top.written)


def upstream(relay: WarmRelay) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(relay.command("status", "--json").stdout)["upstreams"][0]
    return told


def test_an_upstream_is_paused_and_used_again_by_keys(relay: WarmRelay, terminals: list[Terminal]) -> None:
    with relay:
        terminals.append(top := Terminal(relay, USER="anna"))
        top.read_until(b"isp")
        top.press(b"p")
        top.read_until(b"Pause upstream isp")
        top.press(b"y")
        top.read_until(b"isp: paused")
        told = upstream(relay)
        assert (told["paused_by"], told["paused_until"]) == ("anna", None)
        top.press(b"u")
        top.read_until(b"Use upstream isp again")
        top.press(b"n")
        top.read_until(b"nothing was done")
        assert upstream(relay)["paused_by"]
        top.press(b"u")
        top.read_until(b"Use upstream isp again")
        top.press(b"y")
        top.read_until(b"isp: used again, one message first")
        assert upstream(relay)["paused_by"] is None


def test_it_says_that_the_relay_is_down_and_sees_it_again(
    relay: WarmRelay, terminals: list[Terminal]
) -> None:
    with relay:
        hand_over(relay, "first@x.test")
        relay.wait_until_empty()
        hand_over(relay, "ann@x.test")
        terminals.append(top := Terminal(relay))
        top.read_until(b"queue: 1 waiting")
        relay.kill()
        top.read_until(b"no relay runs on")
        top.read_until(b"isp")
        top.press(b"h")
        top.read_until(b"hold: no relay runs on")
        relay.start()
        top.read_until(b"running for")
        top.press(b"h")
        top.read_until(b"hold 1 messages")
        top.press(b"y")
        top.read_until(b"1 messages: held")
        assert [each["state"] for each in relay.queue()] == ["held"]
