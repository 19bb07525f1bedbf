"""A private Dovecot that checks logins for a private Postfix, by password or by access token.

    with passwords({"mjd": "secret"}, "plain") as dovecot, postfix.smarthost(**dovecot.settings) as upstream:

Only its authentication server runs (no IMAP); Postfix reaches it by a socket, as on a real site.  For each
login by token Dovecot asks a token server (RFC 7662); nothing is cached.

Nothing of the machine's own Dovecot is read or touched: configuration, sockets, log and passwords are below
`home`, which is removed at the end.
"""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.system.demand import find, missing_program
from tests.system.waiting import HANG_S, wait_for_answer

CONFIGURATION = """
base_dir = {home}/run
state_dir = {home}/state
log_path = {home}/log
protocols =
ssl = no
auth_mechanisms = {mechanisms}
# Whoever is refused is told at once.
auth_failure_delay = 0
passdb {{
  driver = {driver}
  args = {arguments}
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
TOKENS = """
introspection_mode = post
introspection_url = {url}
username_attribute = username
active_attribute = active
active_value = true
"""
TOKEN_MECHANISMS = "xoauth2 oauthbearer"


def why_missing() -> str | None:
    if os.geteuid() != 0:
        return "Dovecot needs root to start"
    return missing_program("dovecot")


class Dovecot:
    def __init__(self, home: Path) -> None:
        self.home = home

    @property
    def settings(self) -> dict[str, str]:
        return {"smtpd_sasl_type": "dovecot", "smtpd_sasl_path": str(self.home / "sasl")}

    def log(self) -> str:
        return (self.home / "log").read_text(errors="replace")

    def reach(self) -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.home / "sasl"))


@contextmanager
def passwords(users: Mapping[str, str], mechanisms: str) -> Iterator[Dovecot]:
    lines = "".join(f"{user}:{{PLAIN}}{password}\n" for user, password in users.items())
    with _running(lines, mechanisms, "passwd-file") as dovecot:
        yield dovecot


@contextmanager
def tokens(introspection_url: str) -> Iterator[Dovecot]:
    """Run a Dovecot that asks this URL about each token; the URL holds Dovecot's login as `NAME:SECRET@`."""
    with _running(TOKENS.format(url=introspection_url), TOKEN_MECHANISMS, "oauth2") as dovecot:
        yield dovecot


@contextmanager
def _running(secrets: str, mechanisms: str, driver: str) -> Iterator[Dovecot]:
    home = Path(tempfile.mkdtemp(prefix="relay-dovecot-"))
    try:
        home.chmod(0o755)
        arguments = home / "secrets"
        arguments.touch(0o600)
        arguments.write_text(secrets)
        # Dovecot's workers read the file of passwords as that user.
        shutil.chown(arguments, "dovecot")
        text = CONFIGURATION.format(home=home, mechanisms=mechanisms, driver=driver, arguments=arguments)
        (home / "dovecot.conf").write_text(text)
        command = [str(find("dovecot")), "-F", "-c", str(home / "dovecot.conf")]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        dovecot = Dovecot(home)
        try:
            wait_for_answer(dovecot.reach, process)
            yield dovecot
        finally:
            process.terminate()
            process.wait(HANG_S)
    finally:
        shutil.rmtree(home, ignore_errors=True)
