"""A flood of large messages costs disk, not memory, on the way in and on the way out."""

import shutil
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.system import smtp_tools
from tests.system.demand import demand
from tests.system.processes import children_of, most_resident_bytes
from tests.system.relay import RelayProcess
from tests.system.smtp_tools import smtp_sink, smtp_source
from tests.system.waiting import free_port

pytestmark = pytest.mark.full

CLIENTS = 12
CONTENT_BYTES = 16_000_000
RELAYED = 6
"""How many of them go out again: more than there are connections."""
MOST_GROWTH_BYTES = 64 * 1024 * 1024

HEADER = b"Subject: large\r\nX-Client: %04d\r\n\r\n"
LINES = b"".join(b"line %06d of a large message, gr\xc3\xbc\xc3\x9fe\r\n" % n for n in range(1999)) + b".\r\n"
STUFFED_LINES = LINES[:-3] + b"..\r\n"
REPEATS = CONTENT_BYTES // len(LINES)


def _resident_bytes(relay: RelayProcess) -> int:
    return sum(most_resident_bytes(pid) for pid in [relay.pid, *children_of(relay.pid)])


def _hand_over(port: int, number: int, all_are_there: threading.Barrier) -> bytes:
    """Send one message the moment that all others begin too; return the last reply."""
    greeting = (b"", b"HELO here\r\n", b"MAIL FROM:<mjd@front.test>\r\n", b"RCPT TO:<r@list.test>\r\n")
    with (
        socket.create_connection(("127.0.0.1", port), timeout=120) as client,
        client.makefile("rb") as replies,
    ):
        for command in greeting:
            client.sendall(command)
            assert replies.readline()[:1] == b"2"
        client.sendall(b"DATA\r\n")
        assert replies.readline()[:3] == b"354"
        all_are_there.wait()
        client.sendall(HEADER % number)
        for _ in range(REPEATS):
            client.sendall(STUFFED_LINES)
        client.sendall(b".\r\n")
        return replies.readline()


def _clients_whose_mail_is_whole(relay: RelayProcess, queue_ids: list[str]) -> list[int]:
    numbers = []
    for queue_id in queue_ids:
        output = relay.folder / queue_id
        output.mkdir()
        assert relay.command("export", "--output", str(output), queue_id).returncode == 0
        content = (output / f"{queue_id}.eml").read_bytes()
        shutil.rmtree(output)
        start = content.index(b"Subject: large")
        number = int(content[start:].split(maxsplit=4)[3])
        if content[start:] == HEADER % number + LINES * REPEATS:
            numbers.append(number)
    return sorted(numbers)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder that is gone afterwards: pytest would keep gigabytes."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def test_twelve_clients_with_16_megabytes_each_need_little_memory(folder: Path) -> None:
    demand(smtp_tools.why_missing())
    down = {"host": "127.0.0.1", "port": free_port(), "tls": "none"}
    with RelayProcess(folder, {"isp": down}) as relay:
        # As many clients as later, so that what is measured is the size of their mail.
        smtp_source(relay.port, messages=CLIENTS, sessions=CLIENTS)
        assert relay.command("queue", "delete", "ALL", "--yes").returncode == 0
        before_bytes = _resident_bytes(relay)
        all_are_there = threading.Barrier(CLIENTS)
        with ThreadPoolExecutor(CLIENTS) as clients:
            replies = list(
                clients.map(lambda number: _hand_over(relay.port, number, all_are_there), range(CLIENTS))
            )

        assert [reply[:3] for reply in replies] == [b"250"] * CLIENTS
        assert _resident_bytes(relay) - before_bytes < MOST_GROWTH_BYTES
    every = [each["queue_id"] for each in relay.queue()]
    assert _clients_whose_mail_is_whole(relay, every) == list(range(CLIENTS))
    assert relay.command("queue", "delete", *every[RELAYED:]).returncode == 0
    with smtp_sink() as sink:
        relay.start()
        before_bytes = _resident_bytes(relay)
        relay.policy["upstreams"]["isp"]["port"] = sink.port
        relay.write_policy()
        sink.wait_for(RELAYED)
        relay.wait_until_empty()

        assert _resident_bytes(relay) - before_bytes < MOST_GROWTH_BYTES
        assert relay.stop() == 0
