"""The container image: buildah builds it from the Debian installed here, without a registry.

`Image.start` runs it as its configuration says, in namespaces of its own: as process 1, without capabilities,
on a read-only root.  Inside another container podman could do no more than that.
"""

import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.system.demand import missing_program
from tests.system.relay import PROJECT

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


def process_1(started: "subprocess.Popen[bytes]") -> int:
    """Return the pid on this host of the container's process 1."""
    (child,) = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    return int(child)


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
