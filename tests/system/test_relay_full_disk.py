"""A relay on a real ext4 that is full to the last block, and to 63 levels above (more: tests/unit/sender).

At each level mail is queued, another file fills the disk, more mail is offered, and only
then the upstream goes on.  At every eighth level the relay is killed on the full disk and
started on it.
"""

import os
import smtplib
import urllib.error
from pathlib import Path

import pytest

from tests.system import small_disk, smtp_tools
from tests.system.demand import demand
from tests.system.processes import halted
from tests.system.relay import RelayProcess, upstream_at
from tests.system.small_disk import MEGABYTE, ext4
from tests.system.smtp_tools import smtp_sink
from tests.system.waiting import HANG_S, wait_until

pytestmark = pytest.mark.full

LEVELS = [number * 4096 for number in range(24)] + [number * MEGABYTE // 2 for number in range(1, 41)]
"""Free bytes: each of the last 23 blocks, then steps of 512 KiB up to above the headroom."""
DISK_BYTES = 64 * MEGABYTE
STARTS_WITH_BYTES = {"maildir": 0, "log": 16 * 1024}
"""What an engine needs to go on after a start: each start of the log begins another segment."""
HEADROOM_BYTES = 16 * MEGABYTE
"""The space that new mail leaves free (docs/operating.md)."""


class Sending:
    """One client, and how many messages were accepted and refused."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.accepted = 0
        self.refused = 0

    def offer(self, size_bytes: int, *, declares: bool) -> bool:
        """Offer one message; return whether it got 250.  Fails at any reply but 250 and 452."""
        content = b"Subject: one more\r\n\r\n" + b"0123456789abcdef\r\n" * (size_bytes // 18)
        with smtplib.SMTP("127.0.0.1", self._port, timeout=HANG_S) as session:
            session.ehlo()
            code, text = session.mail("mjd@front.test", [f"size={len(content)}"] if declares else [])
            if code == 250:
                session.rcpt("r@list.test")
                code, text = session.data(content)
        assert code in (250, 452), (code, text)
        assert code == 250 or text.startswith(b"4.3.1"), text
        self.accepted += code == 250
        self.refused += code == 452
        return code == 250


@pytest.mark.parametrize("engine", STARTS_WITH_BYTES)
def test_64_levels_of_a_full_disk_lose_nothing_and_relaying_goes_on(tmp_path: Path, engine: str) -> None:
    demand(small_disk.why_missing(), smtp_tools.why_missing())
    assert len(LEVELS) == 64
    with ext4(tmp_path / "small", size_bytes=DISK_BYTES) as disk, smtp_sink() as sink:
        isp = upstream_at(sink.port, limits=[{"messages": 100_000, "per": "1h"}])
        relay = RelayProcess(tmp_path, {"isp": isp}, spool={"path": "./small/spool", "engine": engine})
        client = Sending(relay.port)
        with relay:
            # A new history needs room, and without it no mail goes; a history that exists needs none.
            wait_until(lambda: client.offer(1000, declares=True))
            sink.wait_for(client.accepted)
            for number, level in enumerate(LEVELS):
                disk.empty()
                restarts = number % 8 == 0
                if restarts:
                    # The sink counts before it replies: halted in between, it would get a message again.
                    relay.wait_until_empty()
                with halted(sink.pid):
                    # The relay reads the free space of a full disk again several times a second.
                    wait_until(lambda: client.offer(1000, declares=True))
                    wait_until(lambda: client.offer(300_000, declares=False))
                    disk.fill_to(level)
                    taken = [client.offer(size, declares=size > 10_000) for size in (2000, 200_000)]
                    if level < HEADROOM_BYTES - MEGABYTE:
                        assert taken == [False, False]
                    if restarts:
                        relay.kill()
                        relay.start()
                        if level < STARTS_WITH_BYTES[engine]:
                            disk.empty()
                sink.wait_for(client.accepted)
            disk.fill_to(0)
            wait_until(lambda: _ready(relay).startswith("503 no room on the disk"))
            disk.empty()
            wait_until(lambda: _ready(relay) == "ready\n")
            relay.wait_until_empty()
        assert sink.count == client.accepted, "relayed twice, or lost"
        assert client.refused >= 32
        assert relay.command("fsck").returncode == os.EX_OK


def _ready(relay: RelayProcess) -> str:
    try:
        return relay.get("/readyz")
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}"
