"""Starts relays and verbs in milliseconds: forked from an interpreter that has imported the relay already.

Only the import of modules is left out, which comes before all else; everything else is as in a shell.
Each program leads a process group of its own, so that a relay can be killed together with its listeners.
"""

import atexit
import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.system.namespaces import enter
from tests.system.waiting import HANG_S

# The program of the first process, the only one that imports the relay.
_PROGRAM = """
import gc, importlib, pkgutil, sys
import relay
from relay.cli.main import main
from tests.system.warm import serve
for module in pkgutil.walk_packages(relay.__path__, "relay."):
    if not module.name.endswith("__main__") and not module.name.startswith("relay.cli.top"):
        importlib.import_module(module.name)
gc.freeze()
serve(int(sys.argv[1]), main)
"""


class Warm:
    """An interpreter that has imported the relay; the programs that it forks end with it."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-c", _PROGRAM, str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command,
                cwd=Path(__file__).parents[2],
                pass_fds=[theirs.fileno()],
                env=os.environ | (environment or {}),
            )

    def fork(
        self,
        words: list[str],
        fds: tuple[int, int, int],
        environment: Mapping[str, str],
        *,
        descriptors: tuple[int, int] | None = None,
        network: str | None = None,
    ) -> "Forked":
        """Start `relay WORDS` with these standard files.

        `descriptors` are its soft and hard limit of them; `network` is the path of its namespace.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order: dict[str, Any] = {"words": words, "environment": dict(environment)}
        order |= {"descriptors": descriptors, "network": network}
        with theirs:
            socket.send_fds(self._orders, [json.dumps(order).encode()], [*fds, theirs.fileno()])
        return Forked(ours)

    def close(self) -> None:
        self._orders.close()
        self._process.wait(HANG_S)


@cache
def shared() -> Warm:
    """Return the one interpreter of this process; it ends with the process."""
    warm = Warm()
    atexit.register(warm.close)
    return warm


class Forked:
    """One forked program, with the interface of subprocess.Popen."""

    def __init__(self, told: socket.socket) -> None:
        self.pid = int(told.recv(64))
        self.returncode: int | None = None
        self._told = told

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("relay", timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(int(self._told.recv(64)))
            self._told.close()
        return self.returncode

    def send_signal(self, sig: int, /) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)


def serve(orders_fd: int, main: Callable[[list[str]], object]) -> None:
    orders = socket.socket(fileno=orders_fd)
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for fd in select.select([orders.fileno(), *running], [], [])[0]:
            if fd == orders.fileno():
                order, fds, _, _ = socket.recv_fds(orders, 65536, 4)
                if not order:
                    # The tests' process is gone: nothing else would stop the programs.
                    for pid, _ in running.values():
                        with contextlib.suppress(ProcessLookupError):
                            os.killpg(pid, signal.SIGKILL)
                    return
                told = socket.socket(fileno=fds.pop())
                if (pid := os.fork()) == 0:
                    for pidfd, (_, others) in running.items():
                        os.close(pidfd)
                        others.close()
                    orders.close()
                    _become(json.loads(order), fds, told, main)
                    return
                for each in fds:
                    os.close(each)
                running[os.pidfd_open(pid)] = pid, told
            elif fd in running:
                pid, told = running.pop(fd)
                os.close(fd)
                _, status = os.waitpid(pid, 0)
                with told, contextlib.suppress(BrokenPipeError):
                    told.send(str(status).encode())


def _become(
    order: dict[str, Any], fds: list[int], told: socket.socket, main: Callable[[list[str]], object]
) -> None:
    # Before the pid is sent: its receiver may kill the group.  A session of its own, because the kernel
    # continues the stopped processes of a group whose leader dies within a larger session.
    os.setsid()
    os.environ.clear()
    os.environ.update(order["environment"])
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    if order["descriptors"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, tuple(order["descriptors"]))
    if order["network"]:
        enter(order["network"])
    told.send(str(os.getpid()).encode())
    told.close()
    sys.argv = ["relay", *order["words"]]
    main(order["words"])
