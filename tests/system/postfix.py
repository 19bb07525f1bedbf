"""A private Postfix: an instance on loopback, in a folder that is removed with it.

`front()` is the MTA that a site already has: it takes mail by SMTP or by its sendmail, and
sends all of it to a smarthost.  `smarthost()` is an upstream: it demands STARTTLS and a
login, and delivers everything to one maildir.  `passwords()` is a Dovecot that checks these logins: only its
authentication server runs, and Postfix reaches it by a socket, as on a real site.

Nothing of the machine's own Postfix is read or touched: configuration, queue, data, log
and password are below `home`.  That lies in the system's folder for temporary files,
because Postfix's user must reach it, and pytest's folders are closed to others.
"""

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.fakes.certificates import make_certificates
from tests.system.demand import find, missing_program
from tests.system.waiting import HANG_S, ended, free_port, wait_for_answer, wait_until

NOBODY = 65534
"""The id of Debian's user `nobody` and group `nogroup`."""

MASTER_CF = """
127.0.0.1:{port} inet n - n - - smtpd
pickup unix n - n 60 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n 1 1 qmgr
tlsmgr unix - - n 1000? 1 tlsmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
smtp unix - - n - - smtp
showq unix n - n - - showq
error unix - - n - - error
retry unix - - n - - error
virtual unix - n n - - virtual
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
postlog unix-dgram n - n - 1 postlogd
"""

COMMON = {
    "compatibility_level": "3.6",
    "inet_interfaces": "127.0.0.1",
    "inet_protocols": "ipv4",
    "mynetworks": "127.0.0.0/8",
    "mydestination": "",
    "local_recipient_maps": "",
    "alias_maps": "",
    "alias_database": "",
    "smtp_dns_support_level": "disabled",
    "smtp_host_lookup": "native",
    "default_process_limit": "20",
    "message_size_limit": "0",
    "notify_classes": "",
    "biff": "no",
}

TRIES_SOON = {
    "queue_run_delay": "1s",
    "minimal_backoff_time": "1s",
    "maximal_backoff_time": "1s",
    # By default Postfix does not use a transport for a minute after one of its processes failed.
    "transport_retry_time": "1s",
}
"""Postfix tries deferred mail again each second.  A flush would miss mail that is deferred just after it.

master.cf wakes the queue manager each second too: mail that it takes up again may wait until then."""


def why_missing() -> str | None:
    if os.geteuid() != 0:
        return "Postfix needs root to start"
    return missing_program("postfix", "dovecot")


# What virtual(8) writes on top, and the upstream's Received: with its folded lines.
_ON_TOP = re.compile(
    rb"Return-Path: <(.*)>\nX-Original-To: (.*)\nDelivered-To: .*\nReceived: .*\n(?:[ \t].*\n)*"
)


@dataclass(frozen=True, slots=True)
class Arrived:
    """One message in one recipient's mailbox."""

    reverse_path: str
    recipient: str
    content: bytes
    """The content that the relay sent, with CRLF as on the wire."""


class Mailbox:
    """A folder `new/` that Postfix's virtual(8) delivers to, one file per recipient and message."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def arrived(self) -> list[Arrived]:
        return [_read(path.read_bytes()) for path in self._paths()]

    def wait_for(self, count: int, *, within_s: float = HANG_S) -> list[Arrived]:
        """Return the messages once at least `count` arrived.  Raises TimeoutError."""
        wait_until(lambda: len(self._paths()) >= count, within_s=within_s)
        return self.arrived()

    def _paths(self) -> list[Path]:
        return list((self.folder / "new").iterdir())


def _read(text: bytes) -> Arrived:
    top = _ON_TOP.match(text)
    assert top is not None, f"not from virtual(8) and the upstream: {text[:400]!r}"
    return Arrived(top[1].decode(), top[2].decode(), text[top.end() :].replace(b"\n", b"\r\n"))


class Postfix:
    """One running instance.  Made by `front` and `smarthost`."""

    def __init__(self, home: Path, port: int, settings: Mapping[str, str]) -> None:
        self.home = home
        self.port = port
        self.mailbox = Mailbox(home / "mail" / "all")
        self._settings = settings

    @property
    def certificate(self) -> Path:
        """The authority that clients have to trust; only a `smarthost` has one."""
        return self.home / "ca.crt"

    def start(self) -> Self:
        """Write the configuration and start; on return it takes connections."""
        for folder in ("queue", "data"):
            (self.home / folder).mkdir(exist_ok=True)
        shutil.chown(self.home / "data", "postfix")
        paths = {
            "queue_directory": f"{self.home}/queue",
            "data_directory": f"{self.home}/data",
            "maillog_file": f"{self.home}/maillog",
            "maillog_file_prefixes": f"{self.home}",
        }
        lines = [f"{key} = {value}\n" for key, value in (COMMON | paths | dict(self._settings)).items()]
        (self.home / "main.cf").write_text("".join(lines))
        (self.home / "master.cf").write_text(MASTER_CF.format(port=self.port))
        self.run("postfix", "start")
        return self

    def stop(self) -> None:
        """Stop it, as `postfix stop` does, and wait until its master is gone."""
        try:
            master_pid = int((self.home / "queue" / "pid" / "master.pid").read_text())
            master = os.pidfd_open(master_pid)
        except (FileNotFoundError, ProcessLookupError):
            return
        try:
            # master(8) passes the signal on to its children; postfix(1) would sleep a second.
            signal.pidfd_send_signal(master, signal.SIGTERM)
            if not select.select([master], [], [], HANG_S)[0]:
                raise TimeoutError(f"Postfix master {master_pid} did not stop")
        finally:
            os.close(master)

    def run(self, program: str, *arguments: str, stdin: bytes = b"") -> bytes:
        flag = "-C" if program == "sendmail" else "-c"
        command = [str(find(program)), flag, str(self.home), *arguments]
        ran = subprocess.run(command, input=stdin, capture_output=True, timeout=HANG_S, check=False)
        if ran.returncode != 0:
            raise AssertionError(f"{command} exited {ran.returncode}: {ran.stderr.decode()}\n{self.log()}")
        return ran.stdout

    def queue(self) -> list[dict[str, Any]]:
        """Return the queue, one dictionary a message, as `postqueue -j` prints it."""
        return [json.loads(line) for line in self.run("postqueue", "-j").splitlines()]

    def log(self) -> str:
        path = self.home / "maillog"
        return path.read_text(errors="replace") if path.exists() else ""


@contextmanager
def _running(settings: Mapping[str, str], prepare: Callable[[Path], Mapping[str, str]]) -> Iterator[Postfix]:
    home = Path(tempfile.mkdtemp(prefix="relay-postfix-"))
    try:
        home.chmod(0o755)
        postfix = Postfix(home, free_port(), dict(prepare(home)) | dict(settings))
        try:
            yield postfix.start()
        finally:
            postfix.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def front(smarthost_port: int, **settings: str) -> AbstractContextManager[Postfix]:
    """Run an MTA that hands all mail to a smarthost on loopback: `deploy/postfix/main.cf` in use.

    `settings` are parameters of main.cf that override ours.
    """
    ours = {"myhostname": "front.test", "relayhost": f"[127.0.0.1]:{smarthost_port}"}
    return _running(ours | settings, lambda _home: {})


def smarthost(**settings: str) -> AbstractContextManager[Postfix]:
    """Run a smarthost that demands STARTTLS and AUTH and delivers everything to `mailbox`.

    `settings` are parameters of main.cf that override ours, and name the checker of logins (`passwords`).
    """
    return _running(settings, _smarthost)


def _smarthost(home: Path) -> dict[str, str]:
    made = make_certificates(home)
    for folder in ("", "new", "cur", "tmp"):
        path = home / "mail" / "all" / folder
        path.mkdir(parents=True)
        os.chown(path, NOBODY, NOBODY)
    return UPSTREAM | {
        "smtpd_tls_chain_files": f"{made.key}, {made.cert}",
        "virtual_mailbox_base": str(home / "mail"),
    }


UPSTREAM = {
    "myhostname": "upstream.test",
    "smtpd_tls_security_level": "encrypt",
    "smtpd_tls_auth_only": "yes",
    "smtpd_sasl_auth_enable": "yes",
    "smtpd_relay_restrictions": "permit_sasl_authenticated, reject",
    # Mail of all domains goes into one maildir.
    "virtual_mailbox_domains": "static:all",
    "virtual_mailbox_maps": "static:all/",
    "virtual_mailbox_limit": "0",
    "virtual_minimum_uid": "1",
    "virtual_uid_maps": f"static:{NOBODY}",
    "virtual_gid_maps": f"static:{NOBODY}",
    # Mail arrives byte for byte: Postfix adds or drops no header, also for clients on loopback.
    "local_header_rewrite_clients": "",
    "message_drop_headers": "",
}


DOVECOT_CONF = """
base_dir = {home}/run
state_dir = {home}/state
log_path = {home}/log
protocols =
ssl = no
auth_mechanisms = {mechanisms}
# Whoever is refused is told at once.
auth_failure_delay = 0
passdb {{
  driver = passwd-file
  args = {users}
}}
service anvil {{
  unix_listener anvil-auth-penalty {{
    mode = 0
  }}
}}
service auth {{
  unix_listener {home}/sasl {{
    mode = 0666
  }}
}}
"""


@contextmanager
def passwords(users: Mapping[str, str], mechanisms: str) -> Iterator[dict[str, str]]:
    """Run a Dovecot that checks these passwords; yield the settings of a `smarthost` that asks it."""
    home = Path(tempfile.mkdtemp(prefix="relay-dovecot-"))
    try:
        home.chmod(0o755)
        file = home / "users"
        file.touch(0o600)
        file.write_text("".join(f"{user}:{{PLAIN}}{password}\n" for user, password in users.items()))
        # Dovecot's workers read the file of passwords as that user.
        shutil.chown(file, "dovecot")
        text = DOVECOT_CONF.format(home=home, mechanisms=mechanisms, users=file)
        (home / "dovecot.conf").write_text(text)
        command = [str(find("dovecot")), "-F", "-c", str(home / "dovecot.conf")]

        def reach() -> None:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(home / "sasl"))

        with ended(subprocess.Popen(command, stdin=subprocess.DEVNULL)) as checker:
            wait_for_answer(reach, checker)
            yield {"smtpd_sasl_type": "dovecot", "smtpd_sasl_path": str(home / "sasl")}
    finally:
        shutil.rmtree(home, ignore_errors=True)
