"""A relay that starts in milliseconds: forked from an interpreter that has imported it already.

What is left out is the importing of modules, before which nothing is done; all else is
`relay run` as `RelayProcess` starts it.  Each relay leads a process group of its own, so
that it can be killed together with its listeners.  `begin_watched` holds it ahead of each
system call that changes something, for as long as the watcher likes.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from tests.proofs.peers.processes import children_of
from tests.proofs.peers.relay import PROJECT, RelayProcess
from tests.proofs.peers.syscalls import Call, Watcher, install
from tests.proofs.peers.waiting import HANG_S


class Warm:
    """An interpreter with the relay in it.  A context manager: what it forked ends with it."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.proofs.peers.warm", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(command, cwd=PROJECT, pass_fds=[theirs.fileno()])

    def fork(self, order: dict[str, Any], log_fd: int) -> tuple[int, list[int]]:
        """Start a relay; return its pid, and the watcher's descriptor if one was ordered."""
        socket.send_fds(self._ours, [json.dumps(order).encode()], [log_fd])
        answer, fds, _, _ = socket.recv_fds(self._ours, 64, 1)
        return int(answer), fds

    def status(self) -> int:
        """Wait for the end of the one that was forked last; return its status as wait(2) has it."""
        return int(self._ours.recv(64))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ours.close()
        self._process.wait(HANG_S)


class Forked:
    """One forked relay, in the words of subprocess.Popen."""

    def __init__(self, warm: Warm, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._warm = warm
        self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return its exit status, or None while it runs."""
        if self.returncode is None and select.select([self._pidfd], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status once it ended; raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._pidfd], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("relay", timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(self._warm.status())
            os.close(self._pidfd)
        return self.returncode

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, sig)


class WarmRelay(RelayProcess):
    """A `RelayProcess` that is forked; only one of a `Warm` runs at a time."""

    def __init__(self, warm: Warm, *arguments: Any, **policy: Any) -> None:
        super().__init__(*arguments, **policy)
        self._warm = warm

    def spawn(self, **environment: str) -> None:
        """Start it without waiting for anything."""
        self._fork(environment, is_watched=False)

    def begin_watched(self, before: Callable[[Call], bool], **environment: str) -> Watcher:
        """Start it; it goes on while the watcher is entered, which calls `before` (see `Watcher`)."""
        (fd,) = self._fork(environment, is_watched=True)
        return Watcher(fd, before)

    def kill_all(self) -> None:
        """End it and its listeners, if it has any, at one instant (SIGKILL)."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def listeners(self) -> list[int]:
        """Return the pids of its listener processes."""
        return children_of(self.pid)

    def _fork(self, environment: dict[str, str], *, is_watched: bool) -> list[int]:
        order = {"policy": str(self.policy_path), "environment": environment, "is_watched": is_watched}
        with self._log_path.open("ab") as log:
            pid, fds = self._warm.fork(order, log.fileno())
        self._relay = Forked(self._warm, pid)
        return fds


def _serve(orders: socket.socket) -> None:
    """Fork a relay for each order, and tell how it ended before the next."""
    while True:
        order, (log_fd,), _, _ = (
            socket.recv_fds(orders, 65536, 1) if _has_order(orders) else (b"", (-1,), 0, 0)
        )
        if not order:
            return
        pid = os.fork()
        if pid == 0:
            _become_relay(json.loads(order), orders, log_fd)
        os.close(log_fd)
        with contextlib.suppress(PermissionError, ProcessLookupError):
            # Before anybody knows the pid, for who knows it may kill the group; also done by itself.
            os.setpgid(pid, pid)
        ended = os.pidfd_open(pid)
        # Its orders end when the test does, and then nobody is left to stop it.
        if not json.loads(order)["is_watched"]:
            orders.send(str(pid).encode())
        if orders.fileno() in select.select([ended, orders.fileno()], [], [])[0]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        os.close(ended)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(BrokenPipeError):
            orders.send(str(status).encode())


def _has_order(orders: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return bool(orders.recv(1, socket.MSG_PEEK))
    return False


def _become_relay(order: dict[str, Any], orders: socket.socket, log_fd: int) -> None:
    os.setpgid(0, 0)
    os.environ.update(order["environment"])
    os.dup2(log_fd, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if order["is_watched"]:
        watcher_fd = install()
        # sendmsg(2) is not watched: nobody could let it go on yet.
        socket.send_fds(orders, [str(os.getpid()).encode()], [watcher_fd])
        os.close(watcher_fd)
    orders.close()
    from relay.cli.main import main

    main(["run", "--policy", order["policy"]])


if __name__ == "__main__":
    importlib.import_module("relay.cli.run")
    _serve(socket.socket(fileno=int(sys.argv[1])))
