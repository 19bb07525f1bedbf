"""A relay accepts mail before it has read its queue; here the disk withholds the queue."""

import asyncio
import os
import signal
import smtplib
import threading
from pathlib import Path

from relay.clock import SystemClock
from relay.control.client import ControlClient
from relay.daemon.daemon import Daemon
from relay.daemon.listening import Start
from relay.policy.source import parse_policy
from relay.sender.host import Host
from relay.telemetry.events import Level
from tests.fakes.smarthost import Smarthost
from tests.fakes.unsynced import Unsynced
from tests.system.waiting import free_port
from tests.unit.sender.in_process_relay import CONTENT, PATIENCE_SECONDS


def _offer(port: int) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=PATIENCE_SECONDS) as client:
        client.sendmail("a@here.example", ["b@there.example"], CONTENT)


async def test_a_250_comes_before_the_queue_is_read(tmp_path: Path) -> None:
    gate, is_asked, port = threading.Event(), threading.Event(), free_port()

    def withhold(name: str, path: str) -> None:
        # A start reads nothing before this folder.
        if name == "names" and path.endswith("/hold"):
            is_asked.set()
            assert gate.wait(PATIENCE_SECONDS)

    async with Smarthost() as host:
        path = tmp_path / "policy.yaml"
        text = (
            "spool: ./spool\nhostname: relay.test\n"
            f'listen: [{{address: "127.0.0.1:{port}", clients: [127.0.0.0/8], processes: 0}}]\n'
            f"upstreams: {{isp: {{host: 127.0.0.1, port: {host.port}, tls: none, limits: []}}}}\n"
        )
        policy = parse_policy(text.encode(), path)
        start = Start(path, text.encode(), policy, "relay.test", "text", Level.INFO)
        path.write_text(text)
        relay = Daemon(start, Host(SystemClock(), Unsynced(withhold)))
        running = asyncio.create_task(relay.run())
        assert await asyncio.to_thread(is_asked.wait, PATIENCE_SECONDS)

        await asyncio.to_thread(_offer, port)

        assert not ControlClient(start.policy.spool).is_up()
        assert host.transactions == []
        gate.set()
        await host.until(lambda: host.transactions)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == os.EX_OK
