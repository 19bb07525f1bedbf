"""The relay as an operator runs it: a policy on disk, `relay run`, signals, its log and its metrics.

The relay announces that it is ready, as to a service manager (`READY=1`, sd_notify(3)), so
no test polls or guesses.  Its log is a file; each run in the same folder appends to it.
A relay and its verbs are forked from a warm interpreter; a `ColdRelay` starts as from a shell.
"""

import contextlib
import json
import os
import select
import signal
import smtplib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from tests.system.processes import children_of, command_of
from tests.system.waiting import HANG_S, free_port, wait_until
from tests.system.warm import Forked, Warm, shared

PROJECT = Path(__file__).parents[2]
LISTENER = {"clients": ["127.0.0.0/8"], "processes": 0}
"""One process, also on a machine with many processors: tests kill it and count its children."""
SENDER = "mjd@front.test"
CONTENT = "Subject: x\r\n\r\nx\r\n"


class RelayProcess:
    """One relay in a folder of its own.  Inside its context the relay runs and is ready."""

    options: tuple[str, ...] = ()
    """Of `relay run`."""
    descriptors: tuple[int, int] | None = None
    """Its soft and hard limit of file descriptors."""
    warm: Warm | None = None
    """The interpreter that it is forked from, if not `shared()`."""
    network: str | None = None
    """The path of its network namespace, if that is not the test's."""

    def __init__(
        self,
        folder: Path,
        upstreams: Mapping[str, Any],
        *,
        listen: Mapping[str, Any] | None = None,
        **policy: Any,
    ) -> None:
        """Write the policy: `upstreams` as in YAML, `listen` of its one listener, and any other section.

        They override the defaults here.  An upstream without `limits` gets an empty list of them.
        """
        for each in upstreams.values():
            each.setdefault("limits", [])
        self.folder = folder
        self.port = free_port()
        self.http_port = free_port()
        self.policy: dict[str, Any] = {
            "spool": "./spool",
            "listen": [LISTENER | {"address": f"127.0.0.1:{self.port}"} | dict(listen or {})],
            "http": f"127.0.0.1:{self.http_port}",
            "hostname": "relay.test",
            "upstreams": dict(upstreams),
            "retry": {"min": "1s", "max": "2s", "lifetime": "5d"},
        } | policy
        self.policy_path = folder / "policy.yaml"
        self.write_policy()
        self._relay: Forked | subprocess.Popen[bytes] | None = None
        self._log_path = folder / "log" / "relay.log"
        self._log_path.parent.mkdir(exist_ok=True)
        self._log_path.touch()

    def write_policy(self) -> None:
        """Replace the policy file by `policy` in one rename, as a careful editor does."""
        edited = self.policy_path.with_suffix(".new")
        # JSON is YAML, in which every string stays a string.
        edited.write_text(json.dumps(self.policy, indent=1) + "\n")
        edited.replace(self.policy_path)

    @property
    def pid(self) -> int:
        return self._started().pid

    def start(self, **environment: str) -> Self:
        """Start it and return once it is ready.  Raises ChildProcessError if it ends instead."""
        ready_path = self.folder / "notify"
        ready_path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            ready.bind(str(ready_path))
            self.spawn(NOTIFY_SOCKET=str(ready_path), **environment)
            self._wait_until_ready(ready)
        return self

    def spawn(self, **environment: str) -> None:
        with self._log_path.open("ab") as log, Path(os.devnull).open("r+b") as nothing:
            fds = nothing.fileno(), nothing.fileno(), log.fileno()
            self._relay = (self.warm or shared()).fork(
                self._words, fds, os.environ | environment, descriptors=self.descriptors, network=self.network
            )

    def stop(self, *, signal_number: int = signal.SIGTERM, within_s: float = HANG_S) -> int:
        """Send it a signal and return its exit status once it is gone."""
        relay = self._started()
        if relay.poll() is None:
            relay.send_signal(signal_number)
        return self.wait(within_s=within_s)

    def wait(self, *, within_s: float = HANG_S) -> int:
        """Return its exit status once it ends by itself."""
        return self._started().wait(within_s)

    def live(self, for_s: float) -> None:
        """Wait for so many seconds; fail if the relay ends by itself meanwhile."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(within_s=for_s)
            raise AssertionError("it ended by itself:\n" + "\n".join(self.log()[-20:]))

    def kill(self) -> None:
        self.stop(signal_number=signal.SIGKILL)

    def kill_all(self) -> None:
        """Kill it and its listeners, if any, at one instant (SIGKILL)."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def listeners(self) -> list[int]:
        wanted = "relay.daemon.listener_process"
        return [pid for pid in children_of(self.pid) if wanted in command_of(pid)]

    def reload(self) -> None:
        """Tell it to read its policy again (SIGHUP)."""
        self._started().send_signal(signal.SIGHUP)

    def send(self, *recipients: str, sender: str = SENDER, content: str | bytes = CONTENT) -> None:
        """Hand over a message for each recipient, on one connection."""
        with smtplib.SMTP("127.0.0.1", self.port, timeout=HANG_S) as session:
            for recipient in recipients:
                session.sendmail(sender, [recipient], content)

    def log(self) -> list[str]:
        return self._log_path.read_text(errors="replace").splitlines()

    def wait_for_log(self, condition: Callable[[str], object]) -> str:
        """Return the first line that meets the condition, now or later.  Raises TimeoutError."""
        try:
            wait_until(lambda: any(map(condition, self.log())))
        except TimeoutError as error:
            raise TimeoutError("\n".join([f"{error}, after:", *self.log()])) from None
        return next(filter(condition, self.log()))

    def wait_until_empty(self, *, within_s: float = HANG_S) -> None:
        """Return once the relay has no message, accepted or queued.  Raises TimeoutError."""
        wait_until(self.is_empty, within_s=within_s)

    def get(self, path: str) -> str:
        """Return the answer of its HTTP server.  Raises urllib.error.HTTPError for 4xx and 5xx."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=HANG_S) as reply:
            text: str = reply.read().decode()
        return text

    def metrics(self) -> dict[str, float]:
        """Return its metrics by name and sorted labels: `relay_x_total`, `relay_y{a="1",b="2"}`."""
        return {
            _series(sample.name, sample.labels): sample.value
            for family in text_string_to_metric_families(self.get("/metrics"))
            for sample in family.samples
        }

    def command(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        """Run another verb on the same policy, e.g. `command("queue", "--json")`."""
        with ExitStack() as files:
            given, out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            given.write(stdin)
            given.seek(0)
            fds = given.fileno(), out.fileno(), err.fileno()
            surroundings = os.environ | {"RELAY_POLICY": str(self.policy_path)}
            code = shared().fork(list(arguments), fds, surroundings).wait(HANG_S)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(arguments, code, out.read().decode(), err.read().decode())

    def queue(self) -> list[dict[str, Any]]:
        ran = self.command("queue", "--json")
        assert ran.returncode == 0, ran.stderr
        return [json.loads(line) for line in ran.stdout.splitlines()]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Stop it, by SIGKILL if it does not end."""
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def is_empty(self) -> bool:
        """Return whether the relay has no message.  Raises OSError and others while it does not answer.

        The memory is read first, and only then the mail that is yet to be claimed.  In the other order the
        report about the last message could be published, and that message leave the memory, in between.
        """
        if messages_in(json.loads(self.get("/status.json"))):
            return False
        ran = self.command("status", "--json")
        if ran.returncode != os.EX_OK:
            raise ConnectionError(ran.stderr)
        return messages_in(json.loads(ran.stdout)) == 0

    @property
    def _words(self) -> list[str]:
        return ["run", *self.options, "--policy", str(self.policy_path)]

    def _started(self) -> Forked | subprocess.Popen[bytes]:
        assert self._relay is not None, "no relay was started here"
        return self._relay

    def _wait_until_ready(self, ready: socket.socket) -> None:
        deadline = time.monotonic() + HANG_S
        while not (select.select([ready], [], [], 0.05)[0] and b"READY=1" in ready.recv(4096).split(b"\n")):
            if self._started().poll() is not None:
                raise ChildProcessError(f"relay run exited {self.wait()}:\n" + "\n".join(self.log()))
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"relay run not ready in {HANG_S:g} s:\n" + "\n".join(self.log()))


class ColdRelay(RelayProcess):
    """A relay in an interpreter of its own, whose memory and start are as in production."""

    def spawn(self, **environment: str) -> None:
        command = [sys.executable, "-m", "relay", *self._words]
        with self._log_path.open("ab") as log:
            self._relay = subprocess.Popen(
                command, cwd=PROJECT, env=os.environ | environment, stdin=subprocess.DEVNULL, stderr=log
            )


def upstream_at(port: int, **more: Any) -> dict[str, Any]:
    """Return the section of a policy for an upstream on loopback without TLS and login, with `more` keys."""
    return {"host": "127.0.0.1", "port": port, "tls": "none"} | more


def messages_in(status: Mapping[str, Any]) -> int:
    counted = sum(its["messages"] for state, its in status["queue"].items() if state != "corrupt")
    return int(counted + status["recovering"])


def _series(name: str, labels: Mapping[str, str]) -> str:
    if not labels:
        return name
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in sorted(labels.items())) + "}"
