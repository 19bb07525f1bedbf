"""Runs a verb in a process of its own, for a terminal or for a program.  A fork starts no new Python."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from relay.cli.main import main


def on_a_terminal(*arguments: str) -> list[str]:
    """Return the lines that a verb prints on a terminal, without trailing blanks."""
    terminal, its_end = os.openpty()
    forked(*arguments, out=its_end)
    os.close(its_end)
    shown = b""
    try:
        while part := os.read(terminal, 65536):
            shown += part
    except OSError:  # EIO: every process has closed the other end
        pass
    os.close(terminal)
    return [line.rstrip() for line in shown.decode().splitlines()]


def forked(
    *arguments: str, given: bytes = b"", called: str = "relay", out: int | None = None, **surroundings: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a verb in a fork of this process.  An empty value in `surroundings` unsets the variable.

    Standard output goes to the descriptor `out`, if one is given.
    """
    with tempfile.TemporaryDirectory() as folder:
        names = [Path(folder, name) for name in ("in", "out", "err")]
        names[0].write_bytes(given)
        pid = os.fork()
        if pid == 0:
            os.environ.update(surroundings)
            for name in [name for name, value in surroundings.items() if not value]:
                del os.environ[name]
            _run(names, [called, *arguments], out)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return subprocess.CompletedProcess(arguments, code, names[1].read_bytes(), names[2].read_bytes())


def _run(names: list[Path], command: list[str], out: int | None) -> None:
    code: object = os.EX_SOFTWARE
    try:
        for number, path in enumerate(names):
            opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.dup2(out if out is not None and number == 1 else opened, number)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "w" if n else "r", closefd=False) for n in range(3))
        sys.argv = command
        main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else os.EX_SOFTWARE)
