"""A loop device over the recorder, which logs every write and every flush."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.engines.lab import kernel
from tests.system.relay import PROJECT
from tests.system.waiting import HANG_S


@contextmanager
def recorded_disk(base: Path, fuse: Path, log: Path) -> Iterator[kernel.Loop]:
    """Yield a disk with the content of `base`; the recorder is mounted on `fuse` meanwhile."""
    fuse.mkdir(exist_ok=True)
    program = [sys.executable, "-m", "tests.engines.lab.recorder"]
    command = kernel.ending_with_us(*program, str(fuse), str(base), str(log))
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE) as recorder:
        assert recorder.stdout is not None
        try:
            if recorder.stdout.readline() != b"ready\n":
                raise ChildProcessError(f"the recorder exited {recorder.wait()}")
            loop = kernel.Loop(fuse / "disk")
            try:
                loop.forget()
                yield loop
            finally:
                loop.close()
            kernel.unmount(fuse)
            recorder.wait(HANG_S)
        except BaseException:
            recorder.kill()
            with contextlib.suppress(OSError):
                kernel.unmount(fuse, detach=True)
            raise
