"""A relay that runs, as far as the command line can tell: a real control socket on a thread of its own."""

import asyncio
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvloop

from relay.cli.main import main
from relay.control.client import ControlClient
from relay.control.operations import PolicyInForce
from relay.control.server import ControlServer
from relay.telemetry.events import Events
from tests.fakes.clock import FakeClock
from tests.fakes.operations import FakeOperations

POLICY = """\
spool: ./spool
listen:
  - address: 127.0.0.1:2525
    clients: [127.0.0.0/8]
upstreams:
  isp:
    host: smtp.example.net
    auth: {user: mjd, password_file: not-there}
    limits: []
"""


def write_policy(folder: Path, text: str = POLICY, engine: str = "maildir") -> Path:
    """Write a policy whose secret cannot be read, since nobody here has to read it."""
    (folder / "spool").mkdir(exist_ok=True)
    path = folder / "policy.yaml"
    path.write_text(text.replace("spool: ./spool", f"spool: {{path: ./spool, engine: {engine}}}"))
    return path


@contextmanager
def relay_up(
    spool: Path, operations: FakeOperations, text: str = POLICY, log: io.StringIO | None = None
) -> Iterator[ControlClient]:
    """Serve the control socket of a spool while the context lasts; `text` is the policy beside it."""
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    operations.in_force = PolicyInForce(spool.parent / "policy.yaml", text)
    server = ControlServer(spool, operations, Events(log or io.StringIO(), "text", FakeClock()))
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result()
        yield ControlClient(spool)
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def code_of(*arguments: str) -> int:
    """Run `relay` as its entry point does, and return its exit code."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code
