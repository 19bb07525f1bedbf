"""The relay of the demo: the real one, a program of its own, in a folder of its own.

It is what `relay run` starts, with a policy written here, its listener on a loopback port
and its account at the practice upstream.
"""

import asyncio
import contextlib
import os
import socket
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from relay.cli.demo.plan import Plan
from relay.cli.options import printable

USER = "demo"
STOP_SECONDS = 4.0
"""How long the relay may take to finish what is in flight, before it is ended."""
_LAST_LINES = 3
_LONGEST_LINE_BYTES = 1 << 20

_POLICY = """\
spool: spool
listen:
  - {{address: "127.0.0.1:{port}", clients: [127.0.0.0/8]}}
hostname: demo.invalid
upstreams:
  practice:
    host: 127.0.0.1
    port: {upstream_port}
    tls: none
    auth: {{user: {user}, password_file: password}}
    connections: 4
    limits:
      - {{messages: {count}, per: {per}}}
"""


class RelayEnded(Exception):  # noqa: N818 - a state, not an error of ours
    """The relay ended by itself; the text says how, and what it said last."""


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Keep a free loopback port for whoever listens on it first, while the context lasts.

    The kernel gives a bound port to nobody else, and lets a second socket with
    SO_REUSEADDR take it as long as the first does not listen (socket(7)).
    """
    with socket.socket() as reserving:
        reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserving.bind(("127.0.0.1", 0))
        port: int = reserving.getsockname()[1]
        yield port


class DemoRelay:
    """One relay.  Whoever called `start` calls `stop`, whatever became of it."""

    def __init__(self, folder: Path, plan: Plan, *, port: int, upstream_port: int, password: str) -> None:
        """Write the policy and the password into the folder.  Raises OSError."""
        self.policy_path = folder / "policy.yaml"
        self.spool = folder / "spool"
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """How it ended by itself, once it did."""
        self._port = port
        self._process: asyncio.subprocess.Process | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._said: deque[str] = deque(maxlen=_LAST_LINES)
        (folder / "password").touch(mode=0o600, exist_ok=False)
        (folder / "password").write_text(password + "\n")
        self.policy_path.write_text(
            _POLICY.format(
                port=port,
                upstream_port=upstream_port,
                user=USER,
                count=plan.limit.count,
                per=plan.per,
            )
        )

    async def start(self) -> None:
        """Return once it takes mail.  Raises RelayEnded, OSError."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "relay",
            "run",
            "--policy",
            str(self.policy_path),
            "--log",
            "text",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            # A service manager waits for the demo's own signs of life, if for any.
            env={name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"},
            # Ctrl-C reaches the demo alone, which then stops the relay as a service manager would.
            start_new_session=True,
            limit=_LONGEST_LINE_BYTES,
        )
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._hearing = asyncio.create_task(self._hear(self._process, listening))
        await asyncio.wait([listening, self.ended], return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            raise RelayEnded(self.ended.result())

    async def stop(self) -> None:
        """Have it finish what is in flight; it is gone on return."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if self._hearing is not None:
            await self._hearing

    async def _hear(self, process: asyncio.subprocess.Process, listening: "asyncio.Future[str]") -> None:
        """Read its log to the end: a relay whose log nobody reads would come to a halt."""
        if process.stderr is None:
            raise AssertionError("a process was started without its pipes")
        async for line in process.stderr:
            said = printable(line.decode("utf-8", "replace").rstrip())
            self._said.append(said)
            if f" listening on 127.0.0.1:{self._port} " in said:
                listening.set_result(said)
        code = await process.wait()
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        self.ended.set_result("\n  ".join([f"the relay ended {how}; it said last:", *self._said]))
