"""A machine apart: this one's files under a layer of its own, for a package that conflicts with others here.

Debian has one mail transport agent at a time, and here that is Postfix.  So another is installed by apt, as
an operator would, in a mount namespace whose root is an overlay of this machine's, with its changes in
memory.  Nothing outside changes, and all of it is gone when the process that holds it ends; a pid namespace
sees to it that no program inside reaches one outside.  The network is shared.  Inside, the name of the
machine is qualified: sendmail waits a minute each time where it is not.

The packages were fetched before, by `FETCH`: `.ci/run` does, and a test needs no network.
"""

import os
import select
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.system.demand import missing_program
from tests.system.waiting import HANG_S

PACKAGES = Path("/var/cache/relay-peers")
FETCH = f"apt-get install -d --no-install-recommends -o Dir::Cache::archives={PACKAGES}"
INSTALL = "apt-get install -q -y --no-download --no-install-recommends"
SURROUNDINGS = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

# In order: the layer, what a root needs beside it, that no package starts a service (policy-rc.d), and what
# installing leaves out, since nobody here reads it, nor keeps it.
_SETUP = """
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs tmpfs run
rm -f etc/hosts
printf '127.0.0.1 localhost\\n127.0.1.1 front.test %s\\n' "$(hostname)" >etc/hosts
printf '#!/bin/sh\\nexit 101\\n' >usr/sbin/policy-rc.d
chmod 755 usr/sbin/policy-rc.d
printf 'path-exclude=/usr/share/%s/*\\n' doc man locale >etc/dpkg/dpkg.cfg.d/apart
printf 'force-unsafe-io\\n' >>etc/dpkg/dpkg.cfg.d/apart
if [ -e usr/bin/py3compile ]; then ln -sf /bin/true usr/bin/py3compile; fi
echo ready
exec cat
"""


def why_missing(*packages: str) -> str | None:
    """Return why these packages cannot be installed apart, or None."""
    if os.geteuid() != 0:
        return "a machine apart needs root"
    if reason := missing_program("unshare", "nsenter"):
        return reason
    absent = [each for each in packages if not (any(PACKAGES.glob(f"{each}_*.deb")) or _is_installed(each))]
    if absent:
        names = " ".join(absent)
        return f"no {names} in {PACKAGES}: mkdir -p {PACKAGES}/partial, {FETCH} {names}"
    return None


def _is_installed(package: str) -> bool:
    asked = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status}", package], capture_output=True, check=False
    )
    return asked.stdout == b"installed"


# The files of packages and of all they need, without their scripts.
_UNPACK = f"""
set -e
simulated=$(apt-get -s --no-install-recommends install "$@")
for each in $(printf '%s\\n' "$simulated" | sed -n 's/^Inst \\([^ ]*\\).*/\\1/p'); do
  dpkg-deb --fsys-tarfile {PACKAGES}/"$each"_*.deb | tar -x --keep-directory-symlink -C /
done
"""


class Apart:
    """One such machine."""

    def __init__(self, home: Path, holder: subprocess.Popen[bytes]) -> None:
        self._enter = [
            "nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", f"--pid=/proc/{holder.pid}/ns/pid_for_children",
            "chroot", str(home / "root"),
        ]  # fmt: skip

    def run(self, *command: str, stdin: bytes = b"") -> bytes:
        """Run a program there as root and return what it printed.  Raises AssertionError."""
        ran = subprocess.run(
            [*self._enter, *command],
            input=stdin,
            capture_output=True,
            env=SURROUNDINGS,
            timeout=HANG_S,
            check=False,
        )
        assert ran.returncode == 0, f"{command}: {ran.returncode}\n{ran.stdout.decode()}{ran.stderr.decode()}"
        return ran.stdout

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a program there; it ends with the machine, or earlier."""
        return subprocess.Popen([*self._enter, *command], env=SURROUNDINGS, stdin=subprocess.DEVNULL)


@contextmanager
def apart(*packages: str, is_installed: bool = True) -> Iterator[Apart]:
    """Have a machine with these packages, and whatever apt installs and removes for them.

    Not `is_installed`: with their files alone.  That takes a quarter of the seconds and does for libraries.
    """
    with tempfile.TemporaryDirectory(prefix="relay-apart-") as folder:
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _SETUP, "sh", folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            try:
                assert select.select([holder.stdout], [], [], HANG_S)[0], "no machine apart"
                assert holder.stdout.readline() == b"ready\n", "no machine apart: see above"
                machine = Apart(Path(folder), holder)
                if is_installed:
                    machine.run(*INSTALL.split(), "-o", f"Dir::Cache::archives={PACKAGES}", *packages)
                else:
                    machine.run("sh", "-c", _UNPACK, "sh", *packages)
                yield machine
            finally:
                holder.kill()
