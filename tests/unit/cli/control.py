"""A real running relay with its control socket, for tests of the command line.  It sends no mail."""

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from relay.cli.main import main
from relay.clock import SECOND_NS, SystemClock
from relay.control.client import SOCKET_NAME, ControlClient
from relay.control.server import ControlServer
from relay.mail.envelope import QueueId
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from relay.spool.disk.durable import RealDisk
from relay.status.snapshot import Condition
from relay.throttle.admission import Request
from relay.throttle.file_history import FileHistory
from relay.throttle.limit import with_ceilings
from relay.throttle.throttle import Throttle
from tests.fakes.clock import FakeClock
from tests.unit.policy.examples import with_upstream
from tests.unit.sender.in_process_relay import Relay

POLICY = with_upstream("host: smtp.example.net", "auth: {user: mjd, password_file: not-there}")


def write_policy(folder: Path, text: str = POLICY, engine: str = "maildir") -> Path:
    """Write a policy and return its path.  Its password file does not exist: no test here reads it."""
    (folder / "spool").mkdir(exist_ok=True)
    path = folder / "policy.yaml"
    path.write_text(text.replace("spool: spool", f"spool: {{path: ./spool, engine: {engine}}}"))
    return path


def charged(policy: Policy, recipients: Sequence[int], connections: int = 0) -> Path:
    """Charge `connections` and a message for each of `recipients`; return the path of `isp`'s history."""
    clock, path = SystemClock(), policy.history_path("isp")
    limits = with_ceilings(policy.upstreams["isp"], {})
    history = FileHistory(path, RealDisk(), clock)
    throttle = Throttle(history, limits, clock, transaction_ns=policy.upstreams["isp"].max_transaction_ns)
    connected = [throttle.reserve_connection(SECOND_NS) for _ in range(connections)]
    for answer in [*connected, *throttle.reserve([Request(each) for each in recipients])]:
        throttle.settle(answer, clock.boottime_ns())  # type: ignore[arg-type]  # all have room
    throttle.flush()
    throttle.close()
    return path


class LoopThread:
    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def do(self, asked: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Up:
    """A relay on a loop of its own, and a control client of that relay."""

    def __init__(self, folder: Path, text: str) -> None:
        self._loop = LoopThread()
        self.do = self._loop.do
        (folder / "spool").mkdir(exist_ok=True)
        self.do(self._begin(folder, text))
        self.client = ControlClient(folder / "spool")

    async def _begin(self, folder: Path, text: str) -> None:
        policy = parse_policy(text.encode(), folder / "policy.yaml")
        self.relay = Relay(policy, clock=FakeClock())
        self.relay.status_view.condition, self.relay.status_view.refusing_because = Condition.RUNNING, ""
        await self.relay.sender.start()
        self.relay.sender.halt()
        self._server = ControlServer(policy.spool, self.relay.operator, self.relay.events)
        await self._server.start()

    async def _end(self) -> None:
        await self._server.stop()
        await self.relay.sender.stop()
        self.relay.trigger.close()

    async def _accept(self, sender: str, recipients: tuple[str, ...]) -> QueueId:
        queue_id = self.relay.accept(*recipients, sender=sender)
        await self.relay.sender.read()
        return queue_id

    def accept(self, *recipients: str, sender: str = "a@here.example") -> QueueId:
        queue_id: QueueId = self.do(self._accept(sender, recipients))
        return queue_id

    def close(self) -> None:
        try:
            self.do(self._end())
        finally:
            self._loop.close()


@contextmanager
def relay_up(folder: Path, text: str = POLICY) -> Iterator[Up]:
    """Run a relay with the policy `text` on the spool in `folder` while the context lasts."""
    up = Up(folder, text)
    try:
        yield up
    finally:
        up.close()


@contextmanager
def answering(spool: Path, *answers: bytes) -> Iterator[None]:
    """Send the next of `answers` to each question, like a relay that dies or has another version."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(spool / SOCKET_NAME))
        listening.listen()

        def answer() -> None:
            for content in answers:
                asking, _ = listening.accept()
                with asking:
                    # A client that only checks whether a relay listens sends nothing.
                    while not asking.recv(1 << 20) and (asked := listening.accept()):
                        asking.close()
                        asking, _ = asked
                    asking.sendall(content)
                    asking.close()

        thread = threading.Thread(target=answer)
        thread.start()
        yield
        thread.join()
    (spool / SOCKET_NAME).unlink()


def code_of(*arguments: str) -> int:
    """Run `relay` as its entry point does, and return its exit code."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code
