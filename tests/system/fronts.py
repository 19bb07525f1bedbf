"""Debian's mail servers and other sendmail(1)s, installed apart, with the settings of docs/clients.md."""

import smtplib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.system.apart import Apart, apart
from tests.system.snippets import snippet
from tests.system.waiting import HANG_S, free_port, wait_for_port, wait_until

OPENSMTPD = ("opensmtpd",)
SENDMAIL = ("sendmail-bin", "sendmail-cf")
NULLMAILER = ("nullmailer",)
DMA = ("dma",)
MSMTP = ("msmtp",)
ESMTP = ("esmtp",)
EXIM = ("exim4-daemon-light",)


class Front:
    """A mail server that hands everything to the relay."""

    def __init__(
        self, machine: Apart, flush: str, queued: str, port: int = 0, *, sendmail: str = "/usr/sbin/sendmail"
    ) -> None:
        """`flush` and `queued` are of sh: try everything now, and print how many messages there are."""
        self.statuses: set[int] = set()
        """What its sendmail(1) ended with so far."""
        self._sendmail = sendmail
        self._machine = machine
        self._flush = flush
        self._queued = queued
        self._port = port

    def connect(self) -> smtplib.SMTP:
        return smtplib.SMTP("127.0.0.1", self._port, timeout=HANG_S)

    def submit(self, content: bytes, *, sender: str, recipient: str) -> bool:
        """Hand a message over as a local program does, its lines ending in LF; return whether it took it."""
        words = ("-i", "-f", sender, "--", recipient)
        ran = self._machine.attempt(self._sendmail, *words, stdin=content.replace(b"\r\n", b"\n"))
        self.statuses.add(ran.returncode)
        return ran.returncode == 0

    def wait_until_empty(self) -> None:
        """Have it try everything now, again and again, until nothing is left.  Raises TimeoutError."""

        def is_empty() -> bool:
            self._machine.run("sh", "-c", self._flush)
            return self.queued() == 0

        wait_until(is_empty)

    def queued(self) -> int:
        return int(self._machine.run("sh", "-c", self._queued))


@contextmanager
def opensmtpd(smarthost_port: int) -> Iterator[Front]:
    port = free_port()
    # Not at 25, which may be taken here.
    lines = snippet("opensmtpd", port=smarthost_port).replace("listen on lo", f"listen on lo port {port}")
    with apart(*OPENSMTPD) as machine:
        machine.run("tee", "/etc/smtpd.conf", stdin=lines.encode())
        with _running(machine, port, "smtpd", "-d"):
            yield Front(machine, "smtpctl schedule all", "smtpctl show queue | wc -l", port)


@contextmanager
def sendmail(smarthost_port: int) -> Iterator[Front]:
    port = free_port()
    above = snippet("sendmail", port=smarthost_port)
    with apart(*SENDMAIL) as machine:
        macros = machine.run("cat", "/etc/mail/sendmail.mc").decode()
        assert macros.count("\nMAILER_DEFINITIONS\n") == 1
        macros = macros.replace("\nMAILER_DEFINITIONS\n", f"\n{above}MAILER_DEFINITIONS\n")
        machine.run("tee", "/etc/mail/sendmail.mc", stdin=macros.encode())
        machine.run("make", "-s", "-C", "/etc/mail", "sendmail.cf")
        machine.run("mkdir", "-p", "/run/sendmail/mta")
        door = f"-ODaemonPortOptions=Addr=127.0.0.1,Port={port}"
        with _running(machine, port, "/usr/libexec/sendmail/sendmail", "-bD", door):
            queued = "find /var/spool/mqueue -name '[qQ]f*' | wc -l"
            yield Front(machine, "/usr/libexec/sendmail/sendmail -q -Am", queued, port)


@contextmanager
def exim(smarthost_port: int) -> Iterator[Front]:
    port = free_port()
    with apart(*EXIM) as machine:
        machine.run("sh", "-e", stdin=snippet("exim", port=smarthost_port).encode())
        with _running(machine, port, "exim4", "-bdf", "-oX", f"<; [127.0.0.1]:{port}"):
            yield Front(machine, "exim4 -qff", "exim4 -bpc", port)


@contextmanager
def nullmailer(smarthost_port: int) -> Iterator[Front]:
    with apart(*NULLMAILER) as machine:
        machine.run("sh", "-e", stdin=snippet("nullmailer", port=smarthost_port).encode())
        sender = machine.start("setpriv", "--reuid=mail", "--regid=mail", "--clear-groups", "nullmailer-send")
        with _ended(sender):
            # Whoever writes there wakes nullmailer-send.
            wake = "echo >/var/spool/nullmailer/trigger"
            yield Front(machine, wake, "ls /var/spool/nullmailer/queue | wc -l")


@contextmanager
def dma(smarthost_port: int) -> Iterator[Front]:
    """Have a dma: a process a message, which tries again while its machine is there."""
    with apart(*DMA) as machine:
        machine.run("tee", "/etc/dma/dma.conf", stdin=snippet("dma", port=smarthost_port).encode())
        # A sleeping process looks every 30 s whether `-q` came.  A signal wakes it; it would end a session.
        wake = "grep -q nanosleep /proc/$each/wchan && kill -HUP $each || true"
        flush = f"sendmail -q; for each in $(pgrep -x sendmail); do {wake}; done"
        yield Front(machine, flush, "ls /var/spool/dma | grep -c ^Q || true")


def without_queue(machine: Apart, name: str, smarthost_port: int) -> Front:
    """Return msmtp or esmtp, which are on the machine: each hands its message over or fails."""
    machine.run("tee", f"/etc/{name}rc", stdin=snippet(name, port=smarthost_port).encode())
    return Front(machine, "true", "echo 0", sendmail=f"/usr/bin/{name}")


@contextmanager
def _running(machine: Apart, port: int, *command: str) -> Iterator[None]:
    daemon = machine.start(*command)
    with _ended(daemon):
        wait_for_port(port, daemon)
        yield


@contextmanager
def _ended(daemon: subprocess.Popen[bytes]) -> Iterator[None]:
    with daemon:
        try:
            yield
        finally:
            daemon.terminate()
