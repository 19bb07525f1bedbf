"""A verb as a person sees it: run as a process whose stdout is a terminal of some width."""

import os
import re
import subprocess
import sys

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def on_a_terminal(columns: int, *arguments: str) -> list[str]:
    """Return the lines that a verb shows, without colours and blanks at their ends."""
    terminal, its_end = os.openpty()
    command = [sys.executable, "-m", "relay", *arguments]
    surroundings = os.environ | {"COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen(command, stdout=its_end, env=surroundings) as verb:
        os.close(its_end)
        shown = b""
        try:
            while part := os.read(terminal, 65536):
                shown += part
        except OSError:  # EIO: nobody has its other end open any more
            pass
    os.close(terminal)
    assert verb.returncode == os.EX_OK
    return [line.rstrip() for line in _STYLE.sub("", shown.decode()).splitlines()]
