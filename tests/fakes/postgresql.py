"""A PostgreSQL server of one test run: in a folder of its own, on a Unix socket and a port of loopback."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

USER = "postgres"
"""As which it runs: it refuses root."""


@dataclass
class Server:
    folder: Path
    port: int
    bin: Path

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def control(self, *arguments: str) -> None:
        """Call pg_ctl."""
        self.run("pg_ctl", "-D", str(self.folder / "data"), "-w", *arguments)

    def run(self, program: str, *arguments: str) -> None:
        command = [str(self.bin / program), *arguments]
        if os.geteuid() == 0:
            command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *command]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder)

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c shared_buffers=16MB"
        self.control("-l", str(self.folder / "log"), "-o", options, "start")

    def stop(self, how: str = "fast") -> None:
        self.control("-m", how, "stop")

    @property
    def pid(self) -> int:
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def kill(self) -> None:
        """As the kernel would: its processes end, and the next start recovers."""
        os.killpg(os.getpgid(self.pid), signal.SIGKILL)


def programs() -> Path | None:
    """Return where its programs are, the newest; None where there are none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    if found:
        return found[-1]
    here = shutil.which("pg_ctl")
    return Path(here).parent if here else None


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Server]:
    bin_folder = programs()
    assert bin_folder is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Server(folder, port, bin_folder)
    if os.geteuid() == 0:
        entry = pwd.getpwnam(USER)
        os.chown(folder, entry.pw_uid, entry.pw_gid)
        for parent in folder.parents:
            if parent.stat().st_uid == 0 and parent != Path("/"):
                parent.chmod(parent.stat().st_mode | 0o011)
    server.run("initdb", "-D", str(folder / "data"), "-A", "trust", "-U", USER, "--no-sync")
    server.start()
    try:
        yield server
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            server.stop("immediate")
