"""A PostgreSQL server for one test run, in its own folder, on a Unix socket and a loopback port."""

import contextlib
import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.fakes.certificates import Certificates
from tests.system.waiting import free_port

ENOUGH_BYTES = 1 << 30
USER = "postgres"
"""The system user of the server, which refuses to run as root."""


@dataclass
class Server:
    folder: Path
    port: int
    bin: Path
    databases: set[str] = field(default_factory=set)
    """The databases that `make_database` created."""
    addresses: str = "127.0.0.1"
    """The addresses on which the next start listens."""

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def control(self, *arguments: str) -> None:
        self.run("pg_ctl", "-D", str(self.folder / "data"), "-w", *arguments)

    def run(self, program: str, *arguments: str) -> bytes:
        command = [str(self.bin / program), *arguments]
        if os.geteuid() == 0:
            command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *command]
        return subprocess.run(command, check=True, capture_output=True, cwd=self.folder).stdout

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses={self.addresses}"
        self.control("-l", str(self.folder / "log"), "-o", f"{options} -c shared_buffers=16MB", "start")

    def stop(self, how: str = "fast") -> None:
        self.control("-m", how, "stop")

    def connect(self, database: str) -> "psycopg.Connection[Any]":
        """Connect by the socket as superuser, in autocommit."""
        return psycopg.connect(
            host=str(self.folder), port=self.port, user=USER, dbname=database, autocommit=True
        )

    def execute(self, *statements: str, database: str = "postgres") -> None:
        with self.connect(database) as connection:
            for each in statements:
                connection.execute(each.encode())

    def is_so(self, condition: str, *, database: str) -> bool:
        """Return whether the query has a row."""
        with self.connect(database) as connection:
            (is_there,) = connection.execute(f"SELECT EXISTS (SELECT {condition})".encode()).fetchall()[0]
        return bool(is_there)

    def make_database(self, name: str) -> str:
        """Return the URL of a database without tables and without connections."""
        if name in self.databases:
            others = f"FROM pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid()"
            self.execute(f"SELECT pg_terminate_backend(pid, 10000) {others}")
            self.execute("DROP SCHEMA IF EXISTS relay CASCADE", database=name)
        else:
            self.execute(f"CREATE DATABASE {name}")
            self.databases.add(name)
        return self.url.rpartition("/")[0] + f"/{name}"

    def ask_for_passwords_over_tls(self, certificates: Certificates) -> None:
        """Require a password and TLS over TCP. The tests' own connections use the socket."""
        for path in (certificates.cert, certificates.key):
            copy = self.folder / "data" / path.name
            copy.write_bytes(path.read_bytes())
            copy.chmod(0o600)
            if os.geteuid() == 0:
                os.chown(copy, pwd.getpwnam(USER).pw_uid, -1)
        hba = "local all all trust\nhostssl all all all scram-sha-256\n"
        (self.folder / "data" / "pg_hba.conf").write_text(hba)
        self.execute(
            f"ALTER SYSTEM SET ssl_cert_file = '{certificates.cert.name}'",
            f"ALTER SYSTEM SET ssl_key_file = '{certificates.key.name}'",
            "ALTER SYSTEM SET ssl = on",
            "SELECT pg_reload_conf()",
        )

    @contextlib.contextmanager
    def standby(self) -> Iterator["Server"]:
        """Start a standby of this server. `control("promote")` on it makes it the primary."""
        copy = Server(self.folder / "standby", free_port(), self.bin)
        copy.folder.mkdir()
        shutil.chown(copy.folder, self.folder.owner())
        at = ("-h", str(self.folder), "-p", str(self.port), "-U", USER, "-D", str(copy.folder / "data"))
        copy.run("pg_basebackup", *at, "-R", "-c", "fast", "--no-sync")
        copy.start()
        try:
            yield copy
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):
                copy.stop("immediate")
            shutil.rmtree(copy.folder)

    @property
    def pid(self) -> int:
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def kill(self) -> None:
        """Kill all processes of the server; the next start recovers."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        pids = [self.pid, *map(int, children)]
        with contextlib.ExitStack() as closing:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    ended = os.pidfd_open(pid)
                    closing.callback(os.close, ended)
                    os.kill(pid, signal.SIGKILL)
                    select.select([ended], [], [])
        # The dead server may remain a zombie until its parent reaps it, and a start would take it for alive.
        for name in ("data/postmaster.pid", f".s.PGSQL.{self.port}.lock"):
            (self.folder / name).unlink(missing_ok=True)


def missing() -> str | None:
    return None if programs() else "no PostgreSQL here: apt install postgresql"


def programs() -> Path | None:
    """Return the folder of the newest installed server's programs, or None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    if found:
        return found[-1]
    here = shutil.which("pg_ctl")
    return Path(here).parent if here else None


@contextlib.contextmanager
def started(folder: Path, *, in_memory: bool = True) -> Iterator[Server]:
    """Start a server, with its data in memory if there is room: no test cuts its power."""
    bin_folder = programs()
    assert bin_folder is not None
    memory = Path("/dev/shm")
    has_room = in_memory and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ENOUGH_BYTES
    with tempfile.TemporaryDirectory(dir=memory if has_room else folder) as made:
        server = Server(Path(made), free_port(), bin_folder)
        if os.geteuid() == 0:
            entry = pwd.getpwnam(USER)
            os.chown(made, entry.pw_uid, entry.pw_gid)
            for parent in server.folder.parents:
                if parent.stat().st_uid == 0 and parent != Path("/"):
                    parent.chmod(parent.stat().st_mode | 0o011)
        data = str(server.folder / "data")
        server.run("initdb", "-D", data, "-A", "trust", "-U", USER, "--no-sync", "--wal-segsize=1")
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):
                server.stop("immediate")
