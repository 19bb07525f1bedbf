"""A relay that lacks something: descriptors, or anybody who reads its log.  And clients that do nothing."""

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.proofs.peers.relay import PROJECT, RelayProcess

SMALL_PIPE_BYTES = 4096


class ScarceRelay(RelayProcess):
    """Runs under `limits` of a shell's `ulimit`, say `-n 256`; its log goes to `log_fd` if that is given."""

    def __init__(
        self, folder: Path, upstreams: Mapping[str, Any], *, limits: tuple[str, ...] = (), **policy: Any
    ) -> None:
        super().__init__(folder, upstreams, **policy)
        self.limits = limits
        self.options: tuple[str, ...] = ()
        """Further ones of `relay run`."""
        self.log_fd: int | None = None

    def spawn(self, **environment: str) -> None:
        """Start it without waiting for anything."""
        script = "".join(f"ulimit {limit} && " for limit in self.limits) + 'exec "$@"'
        relay = [sys.executable, "-m", "relay", "run", "--policy", str(self.policy_path), *self.options]
        with self._log_path.open("ab") as log:
            self._relay = subprocess.Popen(
                ["sh", "-c", script, "sh", *relay],
                cwd=PROJECT,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stderr=log if self.log_fd is None else self.log_fd,
            )


class Reader:
    """Whoever should read the log: a pipe, as small as pipes can be."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, SMALL_PIPE_BYTES)

    @property
    def unread_bytes(self) -> int:
        """Return how much waits to be read."""
        with open(self._reading, "rb", closefd=False) as pipe:
            return int.from_bytes(fcntl.ioctl(pipe, 0x541B, bytes(4)), sys.byteorder)  # FIONREAD

    def fill(self) -> None:
        """Leave no room for a single octet."""
        os.set_blocking(self.writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(self.writing, b"\n" * SMALL_PIPE_BYTES)
        os.set_blocking(self.writing, True)

    def read_to_the_end(self) -> list[str]:
        """Read until nobody can write any more, and return the lines."""
        self.let_go_of_writing()
        with open(self._reading, encoding="utf-8", closefd=False) as pipe:
            return pipe.read().split("\n")

    def let_go_of_writing(self) -> None:
        """Leave the writing end to the relay alone."""
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1

    def close(self) -> None:
        """Be gone."""
        self.let_go_of_writing()
        if self._reading >= 0:
            os.close(self._reading)
            self._reading = -1


@contextlib.contextmanager
def reader() -> Iterator[Reader]:
    """Give a relay's log a pipe while the context lasts."""
    pipe = Reader()
    try:
        yield pipe
    finally:
        pipe.close()


@contextlib.contextmanager
def silent_clients(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Have so many connections to a port that never say anything."""
    with contextlib.ExitStack() as stack:
        silent = []
        for _ in range(count):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
            silent.append(client)
        yield silent
