"""System calls that Python does not have: mount, loop devices, a mount namespace of our own.

Everything here is undone by the kernel when the last process in the namespace is gone:
mounts go with the namespace, and a loop device clears itself when nobody has it open.
Numbers are those of linux/mount.h, linux/loop.h, linux/fs.h and linux/btrfs.h.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.system.demand import find

_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE, _LOOP_CLR_FD = 0x4C82, 0x4C0A, 0x4C01
_LO_FLAGS_AUTOCLEAR = 4
_BLKFLSBUF = 0x1261
_BTRFS_IOC_FORGET_DEV = 0x50009405
_ATTEMPTS = 50
_TRIAL = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.engines.lab import kernel
kernel.enter_private_namespace()
kernel.mount("relay-lab", Path("/mnt"), "tmpfs")
kernel.Loop.find()
"""

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def why_missing() -> str | None:
    """Return why no disk can be recorded here, or None."""
    if os.geteuid() != 0:
        return "only root may mount"
    absent = [path for path in ("/dev/fuse", "/dev/loop-control") if not os.access(path, os.R_OK | os.W_OK)]
    if absent:
        return f"there is no {' and no '.join(absent)}"
    tried = subprocess.run(
        [sys.executable, "-c", _TRIAL, str(Path(__file__).parents[3])],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"no mount is allowed: {tried.stderr.strip().splitlines()[-1]}" if tried.returncode else None


def enter_private_namespace() -> None:
    """Give this process, before it has threads, mounts that nobody else sees.  Raises OSError."""
    _checked(_libc.unshare(_CLONE_NEWNS), "unshare")
    _checked(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "make mounts private")


def die_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")


def ending_with_us(*command: str) -> list[str]:
    """Return a command that is this one, and that the kernel ends when this process ends."""
    # Who was started by one that ended before it asked for the signal has another parent by then.
    check = ["sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"', str(os.getpid())]
    return [str(find("setpriv")), "--pdeathsig", "KILL", *check, *command]


def mount(source: str, target: Path, kind: str, options: str = "") -> None:
    """Mount a file system (mount(2)).  Raises OSError."""
    result = _libc.mount(source.encode(), os.fsencode(target), kind.encode(), 0, options.encode())
    _checked(result, f"mount {kind}")


def unmount(target: Path, *, detach: bool = False) -> None:
    """Unmount it (umount2(2)); detached, also while it is in use.  Raises OSError."""
    _checked(_libc.umount2(os.fsencode(target), _MNT_DETACH if detach else 0), f"unmount {target}")


@contextmanager
def mounted(source: str, target: Path, kind: str, options: str = "") -> Iterator[None]:
    """Mount it for as long as the context lasts."""
    mount(source, target, kind, options)
    try:
        yield
    except BaseException:
        unmount(target, detach=True)
        raise
    unmount(target)


class Loop:
    """A loop device over a file.  Shared by the whole machine, so: one that is free, and only ours."""

    def __init__(self, path: Path) -> None:
        """Take a free device.  Raises OSError where there is none."""
        with (
            path.open("r+b", buffering=0) as file,
            Path("/dev/loop-control").open("r+b", buffering=0) as control,
        ):
            for attempt in range(_ATTEMPTS):
                self.device = self._free_device(control)
                self._fd = os.open(self.device, os.O_RDWR | os.O_CLOEXEC)
                try:
                    # struct loop_config: fd, block_size, loop_info64 with lo_flags at 52, reserved.
                    info = bytearray(232)
                    struct.pack_into("=I", info, 52, _LO_FLAGS_AUTOCLEAR)
                    config = struct.pack("=II232s64x", file.fileno(), 512, bytes(info))
                    fcntl.ioctl(self._fd, _LOOP_CONFIGURE, config)
                    return
                except OSError:
                    os.close(self._fd)
                    # Somebody else was quicker.
                    if attempt == _ATTEMPTS - 1:
                        raise

    @staticmethod
    def find() -> str:
        """Return the name of a device that is free now.  Raises OSError where there is none."""
        with Path("/dev/loop-control").open("r+b", buffering=0) as control:
            return Loop._free_device(control)

    @staticmethod
    def _free_device(control: IO[bytes]) -> str:
        device = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
        if not Path(device).exists():
            raise OSError(errno.ENODEV, f"the kernel offers {device}, which is not there")
        return device

    def forget(self) -> None:
        """Drop what the kernel remembers of the device's content, and of a btrfs on it."""
        fcntl.ioctl(self._fd, _BLKFLSBUF)
        if Path("/dev/btrfs-control").exists():
            with Path("/dev/btrfs-control").open("r+b", buffering=0) as control:
                # struct btrfs_ioctl_vol_args: fd, name.  ENOENT: it knows of none.
                asked = bytearray(struct.pack("=q4088s", 0, self.device.encode()))
                with contextlib.suppress(FileNotFoundError):
                    fcntl.ioctl(control, _BTRFS_IOC_FORGET_DEV, asked)

    def close(self) -> None:
        """Let go of the device: it clears itself."""
        os.close(self._fd)
