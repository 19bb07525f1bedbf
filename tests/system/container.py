"""The container image as buildah builds it, from a Debian of our own: no registry of images is asked.

The image's tree is run as its configuration says, in namespaces of its own: as process 1, without a right,
on a root that is read-only.  Where containers nest, podman would do no more than that.
"""

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.system.demand import missing_program
from tests.system.relay import PROJECT

CONTAINERFILE = PROJECT / "deploy" / "container" / "Containerfile"
_KEPT = Path("/var/cache/relay-peers/base.tar")
"""Made once: it is Debian's, and has nothing of the relay."""
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
    """Return why no image can be built and run, or None."""
    if os.geteuid() != 0:
        return "an image's tree is run by the superuser"
    return missing_program("buildah", "mmdebstrap", "setpriv", "unshare")


@dataclass(frozen=True, slots=True)
class Image:
    tree: Path
    """Its files."""
    config: Mapping[str, Any]
    """As the image has it: `User`, `Entrypoint`, `Healthcheck` and so on."""

    def start(self, volumes: Mapping[str, Path], *command: str, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        """Run it, or another command in it; `volumes` by where they are in it, `log` for its stderr."""
        command = command or (*self.config["Entrypoint"], *self.config["Cmd"])
        environment = dict(each.split("=", 1) for each in self.config["Env"])
        environment |= {"USER": self.config["User"], "WORKDIR": self.config["WorkingDir"]}
        environment["PATH"] += ":/usr/sbin:/sbin"
        pairs = [f"{outside}:{inside}" for inside, outside in volumes.items()]
        outer = ["unshare", "--mount", "--ipc", "sh", "-c", _IN_NAMESPACES, "container", str(self.tree)]
        return subprocess.Popen([*outer, *pairs, "--", *command], env=environment, stderr=log)


def process_1(started: "subprocess.Popen[bytes]") -> int:
    """Return the pid, as this host counts, of what is process 1 in it."""
    (child,) = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    return int(child)


@contextmanager
def built() -> Iterator[Image]:
    with tempfile.TemporaryDirectory(prefix="relay-image-") as folder:
        store = [f"--root={folder}/store", f"--runroot={folder}/run"]
        base, wheels = _base(Path(folder)), _wheels()
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


def _wheels() -> Path:
    """Return a folder with what the relay runs on, fetched once; pip compares hashes when it installs."""
    lock = PROJECT / "requirements.lock"
    wheels = _KEPT.with_name(f"wheels-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}")
    if not wheels.exists():
        wheels.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=wheels.parent) as partial:
            pip = ["-m", "pip", "--disable-pip-version-check", "download", "-q", "--require-hashes"]
            _run("/usr/bin/python3", *pip, "-r", str(lock), "-d", f"{partial}/wheels")
            Path(partial, "wheels").rename(wheels)
    return wheels


def _base(folder: Path) -> Path:
    if _KEPT.exists():
        return _KEPT
    made = folder / "base.tar"
    unread = ("doc", "man", "locale", "info")
    options = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in unread]
    _run(
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        "--include=python3,python3-pip",
        *options,
        "bookworm",
        str(made),
    )
    _KEPT.parent.mkdir(parents=True, exist_ok=True)
    partial = _KEPT.with_suffix(".partial")
    partial.write_bytes(made.read_bytes())
    partial.replace(_KEPT)
    return _KEPT


def _run(*command: str) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, check=False)
    if ran.returncode != 0:
        raise ChildProcessError(f"{' '.join(command[:4])}…: {ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return ran.stdout
