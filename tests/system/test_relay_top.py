"""`relay top` on a relay that runs, towards a practice upstream: by its keys, and in a real terminal."""

import asyncio
import fcntl
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from relay.cli.top.looking import Looking
from relay.cli.top.screen import Top
from relay.clock import SystemClock
from relay.control.client import ControlClient
from relay.status.snapshot import Snapshot
from tests.system.practice import Practice
from tests.system.relay import PROJECT
from tests.system.waiting import HANG_S
from tests.system.warm import WarmRelay

pytestmark = pytest.mark.full

LIMITS = [{"messages": 1, "per": "1h"}]
SENDER = "list@lists.test"


@pytest.fixture
def practice(tmp_path: Path) -> Iterator[Practice]:
    with Practice(tmp_path, {"messages": 100, "per": "1m"}, seed=1) as practice:
        yield practice


@pytest.fixture
def relay(tmp_path: Path, practice: Practice) -> WarmRelay:
    return WarmRelay(tmp_path, {"isp": practice.upstream(limits=LIMITS)})


def hand_over(relay: WarmRelay, *recipients: str, sender: str = SENDER) -> None:
    with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
        for recipient in recipients:
            session.sendmail(sender, [recipient], "Subject: x\r\n\r\nx\r\n")


class Watching:
    """A `relay top` whose keys are pressed, and which is read, by a test."""

    def __init__(self, relay: WarmRelay, pilot: Pilot[None]) -> None:
        self._relay = relay
        self._pilot = pilot

    @property
    def picture(self) -> str:
        strips = self._pilot.app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)

    async def shows(self, *words: str) -> None:
        """Return once all of this is to be seen; blanks, line ends and borders count alike."""
        await self._until(lambda: all(word in self._in_one_line() for word in words))

    async def shows_no(self, word: str) -> None:
        await self._until(lambda: word not in self._in_one_line())

    def _in_one_line(self) -> str:
        return " ".join(self.picture.replace("|", " ").split())

    async def choose(self, word: str) -> None:
        """Move the cursor to the row with a word."""
        await self.press("home")
        while not re.search(rf"^> .*{re.escape(word)}", self.picture, re.MULTILINE):
            before = self.picture
            await self.press("down")
            await self._pilot.pause()
            assert self.picture != before, f"no row with {word}:\n{before}"

    async def asked(self) -> Snapshot:
        client = ControlClient(self._relay.folder / "spool")
        try:
            return await client.snapshot()
        finally:
            await client.close()

    async def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + HANG_S
        while not condition():
            assert time.monotonic() < deadline, self.picture
            await self._pilot.pause()


def watch(relay: WarmRelay, story: Callable[[Watching], Any]) -> None:
    app = Top(Looking(relay.folder / "spool", SystemClock()), "anna", every_seconds=0.2)

    async def tell() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            await story(Watching(relay, pilot))

    asyncio.run(tell())


def test_an_upstream_is_paused_and_used_again_by_keys(relay: WarmRelay) -> None:
    async def story(top: Watching) -> None:
        await top.choose("isp")
        await top.press("p")
        await top.shows("Pause upstream isp:", "until it is used again")
        await top.press(*"2x", "enter")
        await top.shows("expected a duration")
        assert (await top.asked()).upstreams[0].paused_by == ""
        await top.press("backspace", "h", "enter")
        await top.shows("isp: paused", "isp paused for", "by anna")
        upstream = (await top.asked()).upstreams[0]
        assert (upstream.paused_by, upstream.paused_until_ns is None) == ("anna", False)
        await top.press("u")
        await top.shows("Use upstream isp again")
        await top.press("n")
        await top.shows("nothing was done")
        assert (await top.asked()).upstreams[0].paused_by == "anna"
        await top.press("u", "y")
        await top.shows("isp: used again, one message first")
        assert (await top.asked()).upstreams[0].paused_by == ""

    with relay:
        watch(relay, story)


def test_it_says_that_the_relay_is_down_and_sees_it_again(relay: WarmRelay) -> None:
    async def story(top: Watching) -> None:
        await top.shows("running for", "queue: 1 waiting")
        await asyncio.to_thread(relay.kill)
        await top.shows(f"no relay runs on {relay.folder}"[:60], "as it was", "queue: 1 waiting")
        await top.choose("isp")
        await top.press("h")
        await top.shows("hold: nothing was answered: no relay runs on")
        await asyncio.to_thread(relay.start)
        await top.shows_no("as it was")
        await top.press("h")
        await top.shows("hold 1 messages")
        await top.press("y")
        await top.shows("1 messages: held")

    relay.policy["upstreams"]["isp"]["limits"] = [{"messages": 1, "per": "1h"}]
    with relay:
        hand_over(relay, "first@x.test")
        relay.wait_until_empty()
        hand_over(relay, "ann@x.test")
        watch(relay, story)


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

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def read_until(self, word: bytes) -> None:
        deadline = time.monotonic() + HANG_S
        while word not in self.written:
            assert time.monotonic() < deadline, self.written[-4000:]
            assert self.process.poll() is None, self.written[-4000:]
            if select.select([self._ours], [], [], 1)[0]:
                self.written += os.read(self._ours, 65536)

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


@pytest.mark.parametrize(("environment", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_key_ends_it_with_the_terminal_as_it_was(
    relay: WarmRelay, terminals: list[Terminal], environment: dict[str, str], *, is_coloured: bool
) -> None:
    """Started before the relay, it waits for it."""
    (relay.folder / "spool").mkdir(mode=0o700)
    terminals.append(top := Terminal(relay, **environment))
    top.read_until(b"no relay runs on")
    with relay:
        top.read_until(b"running for")
        top.press("q")
        assert top.end() == os.EX_OK

    assert LEFT in top.written
    assert top.is_as_before()
    assert bool(COLOURED.search(top.written)) is is_coloured


def test_a_signal_ends_it_with_the_terminal_as_it_was(relay: WarmRelay, terminals: list[Terminal]) -> None:
    with relay:
        terminals.append(top := Terminal(relay))
        top.read_until(b"isp")
        top.process.send_signal(signal.SIGTERM)
        assert top.end() == 128 + signal.SIGTERM

    assert LEFT in top.written
    assert top.is_as_before()
