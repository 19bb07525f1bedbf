"""Hosts with networks of their own (namespaces on a bridge of this machine), and programs with wrong clocks.

A thread `inside` a host has its network; so has each thread and program that it starts there, until its end.
Each host has its own loopback.  A namespace ends with the last process in it.  A line is slowed by a queue
with a low rate (tc-tbf(8)), which kernels without netem have too.

Linux has no wall clock for each namespace.  A program under libfaketime gets another time from clock_gettime
and the like; its boottime and monotonic clocks are true.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.system.demand import missing_program

_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_SLOW = "tbf rate 128kbit burst 2kb latency 3s"


def why_missing() -> str | None:
    if os.geteuid() != 0:
        return "network namespaces need root"
    if reason := missing_program("ip", "tc", "unshare", "faketime"):
        return reason
    tried = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False)
    return tried.stderr.decode().strip() if tried.returncode else None


def clock_wrong_by(days: int) -> dict[str, str]:
    """Return the environment of a program whose wall clock is wrong by so many days, all the time.

    A program forked from it gets another clock by another FAKETIME.
    """
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME": f"{days:+}d",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # Without this, each wait for the interpreter's lock spins.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        "FAKETIME_NO_CACHE": "1",
        "NO_FAKE_STAT": "1",
    }


@dataclass(frozen=True, slots=True)
class Place:
    line: str
    """The name of its interface on this machine's side."""
    network: str
    """The path of its namespace; valid while this process has it open."""

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Put this thread into the host's network while the context lasts."""
        outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        enter(self.network)
        try:
            yield
        finally:
            enter(f"/proc/self/fd/{outside}")
            os.close(outside)

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Lose all packets in both directions."""
        _do(f"ip link set {self.line} down")
        try:
            yield
        finally:
            _do(f"ip link set {self.line} up")

    @contextmanager
    def slowed(self) -> Iterator[None]:
        """Delay packets in both directions by up to 3 s."""
        _do(f"tc qdisc replace dev {self.line} root {_SLOW}")
        with self.inside():
            _do(f"tc qdisc replace dev there root {_SLOW}")
        try:
            yield
        finally:
            _do(f"tc qdisc del dev {self.line} root")
            with self.inside():
                _do("tc qdisc del dev there root")


@contextmanager
def places(count: int) -> Iterator[tuple[str, list[Place]]]:
    """Make so many hosts on one bridge; yield this machine's address, as they see it, and the hosts."""
    own, found, opened = os.getpid(), list[Place](), list[int]()
    bridge, net = f"relay{own}", f"198.18.{own % 256}"
    _do(f"ip link add {bridge} type bridge")
    try:
        _do(f"ip address add {net}.1/24 dev {bridge}", f"ip link set {bridge} up")
        for number in range(count):
            name, line = f"relay-{own}-{number}", f"r{own}.{number}"
            _do(f"ip netns add {name}")
            opened.append(os.open(f"/run/netns/{name}", os.O_RDONLY))
            found.append(Place(line, f"/proc/{own}/fd/{opened[-1]}"))
            _do(f"ip netns delete {name}")
            _do(f"ip link add {line} type veth peer there netns {found[-1].network}")
            _do(f"ip link set {line} master {bridge} up")
            with found[-1].inside():
                _do(f"ip address add {net}.{number + 2}/24 dev there", "ip link set there up")
                _do("ip link set lo up")
        yield f"{net}.1", found
    finally:
        for each in opened:
            os.close(each)
        _do(f"ip link delete {bridge}")


def enter(network: str) -> None:
    """Move this thread into the network namespace of that path.  Raises OSError."""
    with Path(network).open() as namespace:
        if _LIBC.setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def _do(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True, capture_output=True)
