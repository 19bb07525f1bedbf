"""A private Dovecot that checks the passwords of logins for a private Postfix.

    with passwords({"mjd": "secret"}, "plain") as dovecot, postfix.smarthost(**dovecot.settings) as upstream:

Only its authentication server runs (no IMAP); Postfix reaches it by a socket, as on a real site.

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
    home = Path(tempfile.mkdtemp(prefix="relay-dovecot-"))
    try:
        home.chmod(0o755)
        file = home / "users"
        file.touch(0o600)
        file.write_text("".join(f"{user}:{{PLAIN}}{password}\n" for user, password in users.items()))
        # Dovecot's workers read the file of passwords as that user.
        shutil.chown(file, "dovecot")
        text = CONFIGURATION.format(home=home, mechanisms=mechanisms, users=file)
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
