"""The container: it builds, and runs without capabilities, on a read-only root, as process 1."""

import json
import os
import re
import signal
import smtplib
import urllib.request
from pathlib import Path

import pytest

from tests.system import container, smtp_tools
from tests.system.container import Image, process_1
from tests.system.demand import demand
from tests.system.relay import messages_in
from tests.system.smtp_tools import smtp_sink
from tests.system.waiting import HANG_S, free_port, wait_for_answer, wait_until

pytestmark = pytest.mark.full

UID = 10001


class Pod:
    """One container and its volumes; the group may read the secret, as Kubernetes mounts it."""

    def __init__(self, image: Image, folder: Path, upstream_port: int) -> None:
        self.image = image
        self.smtp, self.http, self.upstream_port = free_port(), free_port(), upstream_port
        self.spool, self.etc, self.secrets = (folder / name for name in ("spool", "etc", "secrets"))
        for each in (self.spool, self.etc, self.secrets):
            each.mkdir()
        os.chown(self.spool, UID, UID)
        (self.secrets / "isp").write_text("open sesame\n")
        os.chown(self.secrets / "isp", 0, UID)
        (self.secrets / "isp").chmod(0o440)
        self.log = folder / "log"
        self.put(messages=3)

    def put(self, *, messages: int) -> None:
        sink = {"host": "127.0.0.1", "port": self.upstream_port, "tls": "none"}
        policy = {
            "spool": "/var/lib/relay/spool",
            "listen": [{"address": f"127.0.0.1:{self.smtp}", "clients": ["127.0.0.0/8"], "processes": 1}],
            "http": f"127.0.0.1:{self.http}",
            "upstreams": {
                "isp": sink | {"limits": [{"messages": messages, "per": "1h"}]},
                # No mail goes there; its password is read at the start and at each edit.
                "account": sink | {"limits": [], "auth": {"user": "mjd", "password_credential": "isp"}},
            },
        }
        (self.etc / "new").write_text(json.dumps(policy) + "\n")
        (self.etc / "new").replace(self.etc / "policy.yaml")

    def start(self) -> None:
        volumes = {"/var/lib/relay": self.spool, "/etc/relay": self.etc, "/run/secrets": self.secrets}
        with self.log.open("ab") as log:
            self.started = self.image.start(volumes, log=log)
        wait_for_answer(lambda: self.get("/readyz"), self.started)

    def signal(self, number: int) -> int:
        """Send process 1 a signal from outside, as a runtime does; return the container's exit status."""
        os.kill(process_1(self.started), number)
        return self.started.wait(HANG_S)

    def hand_over(self, messages: int) -> None:
        with smtplib.SMTP("127.0.0.1", self.smtp, timeout=HANG_S) as client:
            for number in range(messages):
                client.sendmail("ann@example.org", ["bob@example.net"], f"Subject: {number}\r\n\r\nhello\r\n")

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}", timeout=HANG_S) as reply:
            body: bytes = reply.read()
        return body

    def limit(self) -> int:
        (limit,) = json.loads(self.get("/status.json"))["upstreams"][0]["limits"]
        count: int = limit["count"]
        return count


def test_a_pod_relays_takes_edits_and_stops_without_loss(tmp_path: Path) -> None:
    demand(container.why_missing(), smtp_tools.why_missing())
    tmp_path.chmod(0o755)
    with container.built() as image, smtp_sink() as sink:
        _is_of_the_relay_alone(image)
        pod = Pod(image, tmp_path, sink.port)
        pod.start()
        pid = process_1(pod.started)
        status = Path(f"/proc/{pid}/status").read_text()
        try:
            pod.hand_over(2)
            sink.wait_for(2)
            # A lower limit takes effect at once, without a signal or a restart.
            pod.put(messages=2)
            wait_until(lambda: pod.limit() == 2)
            pod.hand_over(1)
            code = pod.signal(signal.SIGTERM)
            pod.start()
            # The relay is ready before it has read its queue.
            wait_until(lambda: json.loads(pod.get("/status.json"))["recovering"] == 0)
            left, taken = messages_in(json.loads(pod.get("/status.json"))), sink.count
        finally:
            pod.signal(signal.SIGKILL)

    assert f"Uid:\t{UID}\t{UID}\t{UID}\t{UID}" in status
    assert "CapEff:\t0000000000000000" in status
    assert re.search(r"NSpid:\t\d+\t1\n", status)
    assert code == 0, pod.log.read_text()[-2000:]
    assert (left, taken) == (1, 2)


def _is_of_the_relay_alone(image: Image) -> None:
    """Fail unless the image is configured for the relay, and holds nothing of the checkout."""
    config = image.config
    assert (config["User"], config["StopSignal"]) == (f"{UID}:{UID}", "SIGTERM")
    assert config["Entrypoint"] == ["relay"]
    assert config["Healthcheck"]["Test"][:2] == ["CMD", "python3"]
    assert not (image.tree / "src").exists()
    assert not list((image.tree / "var" / "lib" / "relay").iterdir())
    folder = (image.tree / "var" / "lib" / "relay").stat()
    assert (folder.st_uid, folder.st_mode & 0o777) == (UID, 0o700)
