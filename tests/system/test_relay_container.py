"""The container: it builds, and runs without capabilities, on a read-only root, as process 1.

buildah builds the image from the Debian installed here, without a registry.  `Image.start` runs it as its
configuration says, in namespaces of its own: as process 1, without capabilities, on a read-only root.  Inside
another container podman could do no more than that.
"""

import json
import os
import re
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import pytest

from tests.system import smtp_tools
from tests.system.demand import demand, missing_program
from tests.system.processes import children_of
from tests.system.relay import PROJECT, RelayProcess, messages_in, upstream_at
from tests.system.smtp_tools import smtp_sink
from tests.system.waiting import HANG_S, wait_for_answer, wait_until

pytestmark = pytest.mark.full

UID = 10001
CONTAINERFILE = PROJECT / "deploy" / "container" / "Containerfile"
_PACKAGES = ("base-files", "coreutils", "dash", "libc-bin", "util-linux", "python3", "python3-pip")
_DEPENDED_ON = (
    "apt-cache depends --recurse --installed --no-recommends --no-suggests --no-conflicts --no-breaks"
    " --no-replaces --no-enhances"
)
_LISTS = Path("/var/lib/dpkg/info")
_UNREAD = ("/usr/share/doc", "/usr/share/man", "/usr/share/locale", "/usr/share/info")
_LONGEST_S = 600

_IN_NAMESPACES = """
set -e
root=$1; shift
for pair in "$@"; do [ "$pair" != -- ] || break; mkdir -p "$root${pair#*:}"; done
# The tree may not be written; what is mounted on it may.
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
while [ "$1" != -- ]; do mount --bind "${1%:*}" "$root${1#*:}"; shift; done
shift
# The image's own setpriv: who has no right any more makes no namespace.
exec unshare --pid --fork --kill-child --root="$root" --wd="$WORKDIR" \\
  setpriv --no-new-privs --bounding-set=-all --clear-groups --regid="${USER#*:}" --reuid="${USER%:*}" "$@"
"""


def why_missing() -> str | None:
    if os.geteuid() != 0:
        return "an image's tree is run by the superuser"
    return missing_program("buildah", "setpriv", "unshare")


@dataclass(frozen=True, slots=True)
class Image:
    tree: Path
    """The folder that holds its files."""
    config: Mapping[str, Any]
    """The image's own: `User`, `Entrypoint`, `Healthcheck` and so on."""

    def start(self, volumes: Mapping[str, Path], *, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        """Start it; `volumes` maps paths in it to folders of this host, and its stderr goes to `log`."""
        command = (*self.config["Entrypoint"], *self.config["Cmd"])
        environment = dict(each.split("=", 1) for each in self.config["Env"])
        environment |= {"USER": self.config["User"], "WORKDIR": self.config["WorkingDir"]}
        environment["PATH"] += ":/usr/sbin:/sbin"
        pairs = [f"{outside}:{inside}" for inside, outside in volumes.items()]
        outer = ["unshare", "--mount", "--ipc", "sh", "-c", _IN_NAMESPACES, "container", str(self.tree)]
        return subprocess.Popen([*outer, *pairs, "--", *command], env=environment, stderr=log)


def process_1(pid: int) -> int:
    """Return the pid on this host of the container's process 1, the child of `unshare`."""
    (child,) = children_of(pid)
    return child


@contextmanager
def built() -> Iterator[Image]:
    with tempfile.TemporaryDirectory(prefix="relay-image-") as folder:
        store = [f"--root={folder}/store", f"--runroot={folder}/run"]
        base, wheels = _base(Path(folder)), _wheels(Path(folder))
        empty = _run("buildah", *store, "from", "scratch").strip()
        _run("buildah", *store, "add", "-q", empty, str(base), "/")
        _run("buildah", *store, "commit", "-q", "--rm", empty, "localhost/base")
        _run(
            "buildah", *store, "build", "-q", "--format=docker", "--isolation=chroot", "--pull-never",
            "--build-arg=BASE=localhost/base", "--build-arg=PIP_NO_INDEX=1",
            "--build-arg=PIP_FIND_LINKS=/wheels",
            f"--volume={wheels}:/wheels:ro", f"--file={CONTAINERFILE}", "--tag=localhost/relay", str(PROJECT),
        )  # fmt: skip
        told = json.loads(_run("buildah", *store, "inspect", "--type=image", "localhost/relay"))
        container = _run("buildah", *store, "from", "--pull-never", "localhost/relay").strip()
        try:
            tree = Path(_run("buildah", *store, "mount", container).strip())
            yield Image(tree, told["Docker"]["config"])
        finally:
            _run("buildah", *store, "umount", container)


def _wheels(folder: Path) -> Path:
    """Download the wheels of requirements.lock; return their folder.  pip checks their hashes."""
    pip = ["-m", "pip", "--disable-pip-version-check", "download", "-q", "--require-hashes"]
    lock = str(PROJECT / "requirements.lock")
    _run("/usr/bin/python3", *pip, "--no-deps", "-r", lock, "-d", str(folder / "wheels"))
    return folder / "wheels"


def _base(folder: Path) -> Path:
    """Return an archive of the files of `_PACKAGES` on this machine, and of all that they depend on."""
    depended_on = _run(*_DEPENDED_ON.split(), *_PACKAGES).splitlines()
    packages = [name for name in depended_on if not name.startswith((" ", "<"))]
    # A package that is not installed has no list (dpkg(1)).
    lists = [path for name in packages for kind in ("", ":*") for path in _LISTS.glob(f"{name}{kind}.list")]
    paths = [Path(line) for its in lists for line in its.read_text().splitlines()]
    # Paths are resolved, because /bin and others are links here (usrmerge); those links go first.
    files = {str(path.parent.resolve() / path.name) for path in paths if path.name}
    links = [path for path in ("/bin", "/sbin", "/lib", "/lib64") if Path(path).is_symlink()]
    made = folder / "base.tar"
    with tarfile.open(made, "w") as archive:
        for path in [*links, "/etc/passwd", "/etc/group", "/etc/ld.so.cache", *sorted(files)]:
            if os.path.lexists(path) and not path.startswith(_UNREAD):
                archive.add(path, recursive=False)
    return made


def _run(*command: str) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, check=False)
    if ran.returncode != 0:
        raise ChildProcessError(f"{' '.join(command[:4])}…: {ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return ran.stdout


class Pod(RelayProcess):
    """One container and its volumes; the group may read the secret, as Kubernetes mounts it."""

    def __init__(self, image: Image, folder: Path, upstream_port: int) -> None:
        self.image = image
        spool, etc, secrets = (folder / name for name in ("spool", "etc", "secrets"))
        for each in (spool, etc, secrets):
            each.mkdir()
        os.chown(spool, UID, UID)
        (secrets / "isp").write_text("open sesame\n")
        os.chown(secrets / "isp", 0, UID)
        (secrets / "isp").chmod(0o440)
        self.volumes = {"/var/lib/relay": spool, "/etc/relay": etc, "/run/secrets": secrets}
        isp = upstream_at(upstream_port, limits=[{"messages": 3, "per": "1h"}])
        # No mail goes to the account; its password is read at the start and at each edit.
        account = upstream_at(upstream_port, auth={"user": "mjd", "password_credential": "isp"})
        super().__init__(
            etc, {"isp": isp, "account": account}, listen={"processes": 1}, spool="/var/lib/relay/spool"
        )

    def start(self, **_: str) -> Self:
        with self._log_path.open("ab") as log:
            self._relay = started = self.image.start(self.volumes, log=log)
        wait_for_answer(lambda: self.get("/readyz"), started)
        return self

    def stop(self, *, signal_number: int = signal.SIGTERM, within_s: float = HANG_S) -> int:
        """Send process 1 a signal from outside, as a runtime does; return the container's exit status."""
        os.kill(process_1(self.pid), signal_number)
        return self.wait(within_s=within_s)

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.get("/status.json")))


def test_a_pod_relays_takes_edits_and_stops_without_loss(tmp_path: Path) -> None:
    demand(why_missing(), smtp_tools.why_missing())
    tmp_path.chmod(0o755)
    with built() as image, smtp_sink() as sink:
        _is_of_the_relay_alone(image)
        pod = Pod(image, tmp_path, sink.port).start()
        status = Path(f"/proc/{process_1(pod.pid)}/status").read_text()
        try:
            pod.send("bob@example.net", "bob@example.net")
            sink.wait_for(2)
            # A lower limit takes effect at once, without a signal or a restart.
            pod.policy["upstreams"]["isp"]["limits"][0]["messages"] = 2
            pod.write_policy()
            wait_until(lambda: pod.status()["upstreams"][0]["limits"][0]["count"] == 2)
            pod.send("bob@example.net")
            code = pod.stop()
            pod.start()
            # The relay is ready before it has read its queue.
            wait_until(lambda: pod.status()["recovering"] == 0)
            left, taken = messages_in(pod.status()), sink.count
        finally:
            pod.kill()

    assert f"Uid:\t{UID}\t{UID}\t{UID}\t{UID}" in status
    assert "CapEff:\t0000000000000000" in status
    assert re.search(r"NSpid:\t\d+\t1\n", status)
    assert code == 0, pod.log()[-20:]
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
