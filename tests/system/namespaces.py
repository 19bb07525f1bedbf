"""Hosts of networks of their own: namespaces on a bridge of this machine; and clocks that are wrong.

Who is `inside` a host has its network, and so has each thread and program that is started there, for ever.
Its loopback is another one.  A namespace is gone with the last process in it.  A line is slow by a queue in
front of few octets a second (tc-tbf(8)), which also kernels without netem have.

Linux has no wall clock for each namespace: what runs under libfaketime is told another time, by clock_gettime
and its like; boottime and monotonic are true.
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
    """Return why there can be no such hosts, or no such clocks, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if reason := missing_program("ip", "tc", "unshare", "faketime"):
        return reason
    tried = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False)
    return tried.stderr.decode().strip() if tried.returncode else None


def clock_wrong_by(days: int) -> dict[str, str]:
    """Return the surroundings of a program whose wall clock is wrong, always by as much.

    A program that was forked from one has another clock by its own FAKETIME.
    """
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME": f"{days:+}d",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # Else each wait for the interpreter's lock spins.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        "FAKETIME_NO_CACHE": "1",
        "NO_FAKE_STAT": "1",
    }


@dataclass(frozen=True, slots=True)
class Place:
    """A host."""

    line: str
    """Its interface on this machine's side."""
    network: str
    """The path of its namespace, as long as this program has it open."""

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Let this thread be there meanwhile."""
        outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        enter(self.network)
        try:
            yield
        finally:
            enter(f"/proc/self/fd/{outside}")
            os.close(outside)

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Lose what is sent either way."""
        _do(f"ip link set {self.line} down")
        try:
            yield
        finally:
            _do(f"ip link set {self.line} up")

    @contextmanager
    def slowed(self) -> Iterator[None]:
        """Let what is sent either way be late by up to seconds."""
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
    """Have so many on one bridge.  Return its address too, which is this machine's, as they see it."""
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
    """Let this thread be in the network of that path.  Raises OSError."""
    with Path(network).open() as namespace:
        if _LIBC.setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def _do(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True, capture_output=True)
