"""Debian's mail servers and sendmail(1) programs, installed apart, with the settings of docs/clients.md.

Each context manager yields a function that hands one message over, by SMTP or by the host's sendmail(1).
"""

import smtplib
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from tests.system.apart import Apart, apart
from tests.system.snippets import snippet
from tests.system.waiting import HANG_S, free_port, wait_for_port

OPENSMTPD = ("opensmtpd",)
SENDMAIL = ("sendmail-bin", "sendmail-cf")
NULLMAILER = ("nullmailer",)
DMA = ("dma",)
MSMTP = ("msmtp",)
ESMTP = ("esmtp",)
EXIM = ("exim4-daemon-light",)

Submit = Callable[[str, str, bytes], None]
"""Takes sender, recipient and content.  Raises if the message is not taken."""


def over_smtp(port: int, sender: str, recipient: str, content: bytes) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=HANG_S) as session:
        session.sendmail(sender, [recipient], content, mail_options=["BODY=8BITMIME"])


def by_program(machine: Apart, program: str, sender: str, recipient: str, content: bytes) -> None:
    """Hand a message over, with LF at the end of its lines."""
    machine.run(program, "-i", "-f", sender, "--", recipient, stdin=content.replace(b"\r\n", b"\n"))


@contextmanager
def opensmtpd(smarthost_port: int) -> Iterator[Submit]:
    port = free_port()
    # Port 25 may be in use here.
    lines = snippet("opensmtpd", port=smarthost_port).replace("listen on lo", f"listen on lo port {port}")
    with apart(*OPENSMTPD) as machine:
        machine.run("tee", "/etc/smtpd.conf", stdin=lines.encode())
        with _running(machine, port, "smtpd", "-d"):
            yield partial(over_smtp, port)


@contextmanager
def sendmail(smarthost_port: int) -> Iterator[Submit]:
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
        # sendmail takes mail and sends it at once, however busy this machine is.
        at_once = ("-OQueueLA=1000", "-ORefuseLA=1000")
        with _running(machine, port, "/usr/libexec/sendmail/sendmail", "-bD", door, *at_once):
            yield partial(over_smtp, port)


@contextmanager
def exim(smarthost_port: int) -> Iterator[Submit]:
    port = free_port()
    with apart(*EXIM) as machine:
        machine.run("sh", "-e", stdin=snippet("exim", port=smarthost_port).encode())
        with _running(machine, port, "exim4", "-bdf", "-oX", f"<; [127.0.0.1]:{port}"):
            yield partial(over_smtp, port)


@contextmanager
def nullmailer(smarthost_port: int) -> Iterator[Submit]:
    with apart(*NULLMAILER) as machine:
        machine.run("sh", "-e", stdin=snippet("nullmailer", port=smarthost_port).encode())
        sender = machine.start("setpriv", "--reuid=mail", "--regid=mail", "--clear-groups", "nullmailer-send")
        with _ended(sender):
            yield partial(by_program, machine, "/usr/sbin/sendmail")


@contextmanager
def dma(smarthost_port: int) -> Iterator[Submit]:
    with apart(*DMA) as machine:
        machine.run("tee", "/etc/dma/dma.conf", stdin=snippet("dma", port=smarthost_port).encode())
        yield partial(by_program, machine, "/usr/sbin/sendmail")


def without_queue(machine: Apart, name: str, smarthost_port: int) -> Submit:
    """Configure msmtp or esmtp, which the machine has: it hands its message over, or fails."""
    machine.run("tee", f"/etc/{name}rc", stdin=snippet(name, port=smarthost_port).encode())
    return partial(by_program, machine, f"/usr/bin/{name}")


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
