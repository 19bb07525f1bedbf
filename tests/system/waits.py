"""How long an honest client waits, in peace and meanwhile: medians of one run, compared as a ratio.

For tests of floods, whatever they flood.  No wait is judged by itself, since it says as
much of the machine as of the relay; and below `FLOOR_S` a ratio says most of the machine.
"""

import socket
import statistics
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.system.waiting import HANG_S

MOST = 5.0
"""How many times as long a client may wait in a flood."""
FLOOR_S = 0.01
"""A wait in peace counts as at least this: what a busy machine adds at times to anything at all."""
TIMES = 30

Ask = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Waits:
    """Median waits for one thing."""

    peace_s: float
    meanwhile_s: float

    @property
    def ratio(self) -> float:
        """Return how many times as long, both taken as at least the floor."""
        return max(self.meanwhile_s, FLOOR_S) / max(self.peace_s, FLOOR_S)

    def __str__(self) -> str:
        return f"{self.peace_s * 1000:.1f} ms in peace, {self.meanwhile_s * 1000:.1f} ms meanwhile"


def medians(asked: Mapping[str, Ask], times: int = TIMES) -> dict[str, float]:
    """Return the median seconds that each answer takes, asked in turn so many times."""
    waits: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(times):
        for name, ask in asked.items():
            began_s = time.perf_counter()
            ask()
            waits[name].append(time.perf_counter() - began_s)
    return {name: statistics.median(each) for name, each in waits.items()}


def compared(peace: Mapping[str, float], meanwhile: Mapping[str, float]) -> dict[str, Waits]:
    """Return two results of `medians` beside each other."""
    return {name: Waits(peace[name], meanwhile[name]) for name in peace}


def greeting(port: int) -> None:
    """Connect and wait for the greeting.  Raises AssertionError where it is a refusal."""
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as client:
        greeted = client.recv(512)
        assert greeted.startswith(b"220 "), greeted


def message(port: int) -> None:
    """Hand over one message on a connection of its own.  Raises AssertionError at any refusal."""
    commands = (
        b"EHLO here\r\n", b"MAIL FROM:<a@here.test>\r\n", b"RCPT TO:<b@there.test>\r\n", b"DATA\r\n",
        b"Subject: hello\r\n\r\nhello\r\n.\r\n",
    )  # fmt: skip
    with (
        socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as client,
        client.makefile("rb") as replies,
    ):
        for command in (b"", *commands):
            client.sendall(command)
            while (reply := replies.readline())[3:4] == b"-":
                pass
            assert reply[:1] in b"23" and reply, (command, reply)  # noqa: PT018 - one statement


def page(http_port: int, path: str = "/healthz") -> None:
    """Fetch a page of the status port.  Raises HTTPError for 4yz and 5yz."""
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port}{path}", timeout=HANG_S) as reply:
        reply.read()
