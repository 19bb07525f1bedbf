"""An overlay of this machine, for packages that conflict with those installed here.

Debian allows one mail transport agent at a time, and here that is Postfix.  So apt installs another, as an
operator would, in a mount namespace whose root is an overlay of this machine's.  Its changes are in memory:
nothing outside changes, and all is gone when the process that holds the namespace ends.  A pid namespace
keeps programs inside from reaching those outside.  The network is shared.  The host name inside is qualified,
because sendmail otherwise waits a minute each time.

The packages must be fetched before, by `FETCH` (`.ci/run` does that), so a test needs no network.
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

# In order: mount the overlay and what its root needs, let no package start a service (policy-rc.d), and skip
# pages, their index, syncs and compiled Python when packages are installed: nobody here reads or keeps them.
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
rm -f var/lib/man-db/auto-update
echo ready
exec cat
"""


def why_missing(*packages: str) -> str | None:
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


# Unpacks packages and all that they depend on, without running their scripts.
_UNPACK = f"""
set -e
simulated=$(apt-get -s --no-install-recommends install "$@")
for each in $(printf '%s\\n' "$simulated" | sed -n 's/^Inst \\([^ ]*\\).*/\\1/p'); do
  dpkg-deb --fsys-tarfile {PACKAGES}/"$each"_*.deb | tar -x --keep-directory-symlink -C /
done
"""


class Apart:
    def __init__(self, home: Path, holder: subprocess.Popen[bytes]) -> None:
        self._enter = [
            "nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", f"--pid=/proc/{holder.pid}/ns/pid_for_children",
            "chroot", str(home / "root"),
        ]  # fmt: skip

    def run(self, *command: str, stdin: bytes = b"") -> bytes:
        """Run a program there as root; return its stdout.  Raises AssertionError unless it exits with 0."""
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
        """Start a program there; it ends with the overlay at the latest."""
        return subprocess.Popen([*self._enter, *command], env=SURROUNDINGS, stdin=subprocess.DEVNULL)


@contextmanager
def apart(*packages: str, is_installed: bool = True) -> Iterator[Apart]:
    """Make an overlay with these packages; apt installs and removes others as they require.

    Without `is_installed` their files are only unpacked: a quarter of the time, and enough for libraries.
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
