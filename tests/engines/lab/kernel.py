"""System calls that Python does not have: mount, loop devices, and a private mount namespace.

The kernel undoes all of it when the last process of the namespace ends: the namespace takes its mounts along,
and a loop device detaches itself when its last user closes it. The numbers come from linux/mount.h,
linux/fs.h and linux/btrfs.h.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.system.demand import find, missing_program

_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_BLKFLSBUF = 0x1261
_BTRFS_IOC_FORGET_DEV = 0x50009405

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def why_missing() -> str | None:
    """Return why no disk can be recorded here, or None."""
    if os.geteuid() != 0:
        return "only root may mount"
    if reason := missing_program("losetup", "unshare"):
        return reason
    absent = [path for path in ("/dev/fuse", "/dev/loop-control") if not os.access(path, os.R_OK | os.W_OK)]
    if absent:
        return f"there is no {' and no '.join(absent)}"
    # The laboratory mounts in the same way; here unshare(1), mount(8) and losetup(8) do it.
    trial = "mount -t tmpfs relay-lab /mnt && losetup --find"
    tried = subprocess.run(
        ["unshare", "--mount", "sh", "-c", trial], capture_output=True, text=True, check=False
    )
    return f"no mount is allowed: {tried.stderr.strip().splitlines()[-1]}" if tried.returncode else None


def enter_private_namespace() -> None:
    """Give this process a private mount namespace, before it has threads. Raises OSError."""
    _checked(_libc.unshare(_CLONE_NEWNS), "unshare")
    _checked(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "make mounts private")


def die_with_parent() -> None:
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")


def ending_with_us(*command: str) -> list[str]:
    # If this process dies before the child asks for the signal, the child has another parent: it ends.
    check = ["sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"', str(os.getpid())]
    return [str(find("setpriv")), "--pdeathsig", "KILL", *check, *command]


def mount(source: str, target: Path, kind: str, options: str = "") -> None:
    """Mount a file system (mount(2)). Raises OSError."""
    result = _libc.mount(source.encode(), os.fsencode(target), kind.encode(), 0, options.encode())
    _checked(result, f"mount {kind}")


def unmount(target: Path, *, detach: bool = False) -> None:
    """Unmount (umount2(2)). With `detach`, it works while the mount is in use. Raises OSError."""
    _checked(_libc.umount2(os.fsencode(target), _MNT_DETACH if detach else 0), f"unmount {target}")


@contextmanager
def mounted(source: str, target: Path, kind: str, options: str = "") -> Iterator[None]:
    mount(source, target, kind, options)
    try:
        yield
    except BaseException:
        unmount(target, detach=True)
        raise
    unmount(target)


class Loop:
    """A loop device over a file. The whole machine shares loop devices: this takes a free one."""

    def __init__(self, path: Path) -> None:
        """Take a free device. Raises CalledProcessError if there is none."""
        losetup = [str(find("losetup")), "--sector-size", "512"]
        made = subprocess.run(
            [*losetup, "--find", "--show", str(path)], stdout=subprocess.PIPE, text=True, check=True
        )
        self.device = made.stdout.strip()
        self._fd = os.open(self.device, os.O_RDWR | os.O_CLOEXEC)
        # The device detaches when its last user closes it.
        subprocess.run([losetup[0], "--detach", self.device], check=True)

    def forget(self) -> None:
        """Drop the kernel's cache of the device, and its knowledge of a btrfs there."""
        fcntl.ioctl(self._fd, _BLKFLSBUF)
        if Path("/dev/btrfs-control").exists():
            with Path("/dev/btrfs-control").open("r+b", buffering=0) as control:
                # struct btrfs_ioctl_vol_args: fd, name. ENOENT: the kernel knows no btrfs there.
                asked = bytearray(struct.pack("=q4088s", 0, self.device.encode()))
                with contextlib.suppress(FileNotFoundError):
                    fcntl.ioctl(control, _BTRFS_IOC_FORGET_DEV, asked)

    def close(self) -> None:
        os.close(self._fd)
