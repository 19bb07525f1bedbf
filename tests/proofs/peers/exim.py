"""Debian's Exim, installed apart, with the settings of docs/clients.md."""

import smtplib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.proofs.peers import apart
from tests.proofs.peers.apart import Apart
from tests.proofs.peers.snippets import snippet
from tests.proofs.peers.waiting import HANG_S, free_port, wait_for_port, wait_until

PACKAGE = "exim4-daemon-light"


def why_missing() -> str | None:
    """Return why no Exim can run here, or None."""
    return apart.why_missing(PACKAGE)


class Exim:
    """A running daemon."""

    def __init__(self, machine: Apart, port: int) -> None:
        self.port = port
        self._machine = machine

    def connect(self) -> smtplib.SMTP:
        """Return a session as a client of this host has it."""
        return smtplib.SMTP("127.0.0.1", self.port, timeout=HANG_S)

    def submit(self, content: bytes, *recipients: str) -> None:
        """Hand a message over as a local program does."""
        self._machine.run("sendmail", "-i", "--", *recipients, stdin=content)

    def queued(self) -> int:
        """Return how many messages it has, frozen ones too."""
        return int(self._machine.run("exim4", "-bpc"))

    def frozen(self) -> list[str]:
        """Return the ids of messages that it has given up."""
        return self._machine.run("exiqgrep", "-z", "-i").decode().split()

    def wait_until_empty(self) -> None:
        """Have it try everything now, again and again, until nothing is left.  Raises TimeoutError."""

        def is_empty() -> bool:
            self._machine.run("exim4", "-qff")
            return self.queued() == 0

        try:
            wait_until(is_empty)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.log()}") from None

    def log(self) -> str:
        """Return its main log."""
        return self._machine.run("cat", "/var/log/exim4/mainlog").decode(errors="replace")


@contextmanager
def exim(smarthost_port: int) -> Iterator[Exim]:
    """Run an Exim whose smarthost is a relay at this port."""
    port = free_port()
    with apart.apart(PACKAGE) as machine:
        machine.run("sh", "-e", stdin=snippet("exim", port=smarthost_port).encode())
        daemon: subprocess.Popen[bytes]
        with machine.start("exim4", "-bdf", "-oX", f"<; [127.0.0.1]:{port}") as daemon:
            try:
                wait_for_port(port, daemon)
                yield Exim(machine, port)
            finally:
                daemon.terminate()
