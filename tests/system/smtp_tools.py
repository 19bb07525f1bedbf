"""Runs smtp-source and smtp-sink, Postfix's own load generator and drain, and swaks."""

import fcntl
import os
import re
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.system.demand import find, missing_program
from tests.system.waiting import HANG_S, ended, free_port, wait_for_port

# smtp-sink -c writes `sess=1 quit=1 mesg=1\r` after every event.
_COUNTERS = re.compile(rb"mesg=([0-9]+)\r")


def why_missing() -> str | None:
    return missing_program("smtp-source", "smtp-sink")


def why_swaks_missing() -> str | None:
    """Return why swaks cannot be used, or None.  Debian only recommends its library for TLS."""
    if reason := missing_program("swaks"):
        return reason
    supported = subprocess.run(
        ["swaks", "--support"], capture_output=True, text=True, timeout=30, check=False
    )
    if "TLS supported" in supported.stdout:
        return None
    return "swaks has no TLS here: apt install libnet-ssleay-perl"


class SmtpSink:
    """A running smtp-sink: takes everything at once, counts, keeps nothing."""

    def __init__(self, port: int, sink: subprocess.Popen[bytes]) -> None:
        self.port = port
        self._sink = sink
        self._count = 0
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._sink.pid

    @property
    def count(self) -> int:
        while self._read(0):
            pass
        return self._count

    def wait_for(self, count: int, *, within_s: float = HANG_S) -> None:
        """Return once it took so many messages in all.  Raises TimeoutError."""
        deadline = time.monotonic() + within_s
        while self._count < count:
            if not self._read(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"{self._count} of {count} messages reached smtp-sink in {within_s:g} s")

    def _read(self, within_s: float) -> bool:
        assert self._sink.stdout is not None
        if not select.select([self._sink.stdout], [], [], within_s)[0]:
            return False
        self._unread += os.read(self._sink.stdout.fileno(), 65536)
        for counters in _COUNTERS.finditer(self._unread):
            self._count = int(counters[1])
        self._unread = self._unread[-64:]
        return True


@contextmanager
def smtp_sink(*options: str) -> Iterator[SmtpSink]:
    """Run smtp-sink on a free port, with options as on its command line, e.g. `-w 1` for a slow upstream."""
    port = free_port()
    command = [str(find("smtp-sink")), "-c", *options]
    if os.geteuid() == 0:
        command += ["-u", "nobody"]
    command += [f"127.0.0.1:{port}", "1000"]
    with ended(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)) as sink:
        assert sink.stdout is not None
        # smtp-sink writes some 80 octets a message, and takes no mail while nobody reads them.
        fcntl.fcntl(sink.stdout, fcntl.F_SETPIPE_SZ, 1 << 20)
        wait_for_port(port, sink)
        yield SmtpSink(port, sink)


def smtp_source(
    port: int,
    *,
    messages: int,
    sessions: int = 1,
    size_bytes: int = 4096,
    keep_connection: bool = False,
) -> None:
    """Hand over so many messages; on return each got its 250.

    Raises AssertionError if one did not: smtp-source gives up at the first wrong reply.
    """
    command = [str(find("smtp-source")), "-s", str(sessions), "-m", str(messages), "-l", str(size_bytes)]
    command += ["-f", "mjd@front.test", "-t", "r@list.test"] + ["-d"] * keep_connection
    command += [f"127.0.0.1:{port}"]
    ran = subprocess.run(command, capture_output=True, timeout=600, check=False)
    assert ran.returncode == 0, f"{command} exited {ran.returncode}: {ran.stderr.decode(errors='replace')}"


def swaks(port: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run swaks against a loopback port; its transcript is in `stdout`, its verdict in `returncode`."""
    command = [str(find("swaks")), "--server", "127.0.0.1", "--port", str(port), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
