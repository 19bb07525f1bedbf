"""Waiting for another program without guessing how long it takes.

The time limits only end a wait for a peer that hangs: no result depends on how long anything took.
"""

import os
import random
import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_CLAIMS: list[socket.socket] = []
"""UDP sockets that claim the ports given to this process; nothing here speaks UDP."""

HANG_S = 180.0
"""How long a peer may take before it counts as hung."""


def free_port() -> int:
    """Return a loopback port that nobody listens on, and that no outgoing connection will get.

    No other process gets it from this function while this process lives.
    """
    for _ in range(1000):
        port = random.randrange(10_240, 32_768)  # below Linux's ip_local_port_range
        claim = socket.socket(type=socket.SOCK_DGRAM)
        try:
            claim.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _CLAIMS.append(claim)
        return port
    raise AssertionError("no free port on 127.0.0.1")


def wait_until(condition: Callable[[], object], *, within_s: float = HANG_S) -> None:
    """Return once the condition is true.  Raises TimeoutError.

    It is asked every 10 ms; less often if to ask takes long, since that may be the start of a program.
    """
    asked_at = time.monotonic()
    deadline = asked_at + within_s
    while not condition():
        now = time.monotonic()
        if now > deadline:
            raise TimeoutError(f"still not so after {within_s:g} s")
        time.sleep(min(max(0.01, 3 * (now - asked_at)), 0.3))
        asked_at = time.monotonic()


@contextmanager
def ended(peer: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    """End a started program with the context (SIGTERM)."""
    with peer:
        try:
            yield peer
        finally:
            peer.terminate()


def wait_for_port(port: int, peer: subprocess.Popen[bytes]) -> None:
    """Return once the peer accepts a connection.  Raises as `wait_for_answer` does."""
    wait_for_answer(lambda: socket.create_connection(("127.0.0.1", port), timeout=1).close(), peer)


def wait_for_answer(ask: Callable[[], object], peer: subprocess.Popen[bytes]) -> None:
    """Return once `ask` no longer raises OSError.

    Raises TimeoutError, and ChildProcessError if the peer ended instead.
    """
    deadline = time.monotonic() + HANG_S
    peer_ended = os.pidfd_open(peer.pid)
    try:
        while time.monotonic() < deadline:
            try:
                ask()
            except OSError:
                if select.select([peer_ended], [], [], 0.02)[0]:
                    raise ChildProcessError(f"{peer.args!r} ended with {peer.wait()}") from None
            else:
                return
    finally:
        os.close(peer_ended)
    raise TimeoutError(f"{peer.args!r} did not answer within {HANG_S:g} s")
