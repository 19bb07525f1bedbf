"""A flood of large messages takes disk space, not memory, on the way in and on the way out."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system import smtp_tools
from tests.system.demand import demand
from tests.system.processes import most_resident_bytes
from tests.system.relay import RelayProcess
from tests.system.smtp_tools import smtp_sink, smtp_source
from tests.system.waiting import free_port

pytestmark = pytest.mark.full

CLIENTS = 12
CONTENT_BYTES = 16_000_000
RELAYED = 6
"""How many of them go out again: more than there are connections."""
MOST_GROWTH_BYTES = 64 * 1024 * 1024


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder that is removed after the test: pytest would keep the mail."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def test_twelve_clients_with_16_megabytes_each_need_little_memory(folder: Path) -> None:
    demand(smtp_tools.why_missing())
    down = {"host": "127.0.0.1", "port": free_port(), "tls": "none"}
    with RelayProcess(folder, {"isp": down}) as relay:
        # As many clients as later, so that only the size of their mail is measured.
        smtp_source(relay.port, messages=CLIENTS, sessions=CLIENTS)
        assert relay.command("queue", "delete", "ALL", "--yes").returncode == 0
        before_bytes = most_resident_bytes(relay.pid)
        smtp_source(relay.port, messages=CLIENTS, sessions=CLIENTS, size_bytes=CONTENT_BYTES)
        assert most_resident_bytes(relay.pid) - before_bytes < MOST_GROWTH_BYTES
    every = [each["queue_id"] for each in relay.queue()]
    assert relay.command("queue", "delete", *every[RELAYED:]).returncode == 0
    with smtp_sink() as sink:
        relay.start()
        before_bytes = most_resident_bytes(relay.pid)
        relay.policy["upstreams"]["isp"]["port"] = sink.port
        relay.write_policy()
        sink.wait_for(RELAYED)
        relay.wait_until_empty()

        assert most_resident_bytes(relay.pid) - before_bytes < MOST_GROWTH_BYTES
        assert relay.stop() == 0
