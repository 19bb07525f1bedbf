"""A verb as a person or a program runs it: in a process of its own, that starts no Python anew."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from relay.cli.main import main


def on_a_terminal(*arguments: str) -> list[str]:
    """Return the lines that a verb shows, without blanks at their ends."""
    terminal, its_end = os.openpty()
    command = [sys.executable, "-m", "relay", *arguments]
    with subprocess.Popen(command, stdout=its_end) as verb:
        os.close(its_end)
        shown = b""
        try:
            while part := os.read(terminal, 65536):
                shown += part
        except OSError:  # EIO: nobody has its other end open any more
            pass
    os.close(terminal)
    assert verb.returncode == os.EX_OK
    return [line.rstrip() for line in shown.decode().splitlines()]


def forked(
    *arguments: str, given: bytes = b"", called: str = "relay", **surroundings: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a verb in a fork of this process; a variable that is set to nothing is not there."""
    with tempfile.TemporaryDirectory() as folder:
        names = [Path(folder, name) for name in ("in", "out", "err")]
        names[0].write_bytes(given)
        pid = os.fork()
        if pid == 0:
            os.environ.update(surroundings)
            _run(names, [called, *arguments], [name for name, value in surroundings.items() if not value])
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return subprocess.CompletedProcess(arguments, code, names[1].read_bytes(), names[2].read_bytes())


def _run(names: list[Path], command: list[str], without: list[str]) -> None:
    code: object = os.EX_SOFTWARE
    try:
        for name in without:
            del os.environ[name]
        for number, path in enumerate(names):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), number)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "w" if n else "r", closefd=False) for n in range(3))
        sys.argv = command
        main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else os.EX_SOFTWARE)
