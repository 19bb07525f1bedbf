"""A process that rotates its refresh token and is killed: what it had sent is on disk, or was before."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from relay.sender.oauth.refresh_token_file import RefreshTokenFile
from relay.spool.disk.durable import RealDisk

ROOT = Path(__file__).parents[4]
ROTATING = """
import sys
from pathlib import Path
from relay.sender.oauth.refresh_token_file import RefreshTokenFile
from relay.spool.disk.durable import RealDisk
file = RefreshTokenFile(Path(sys.argv[1]), RealDisk())
while True:
    token = file.read()
    print(token, flush=True)  # as it is sent to the token server
    assert file.rotate(token, f"token-{int(token[6:]) + 1}")
"""


@pytest.mark.parametrize("seed", range(8))
def test_a_kill_at_any_moment_loses_no_token_that_was_sent(tmp_path: Path, seed: int) -> None:
    file, rng = RefreshTokenFile(tmp_path / "refresh", RealDisk()), random.Random(seed)
    file.write("token-0")
    last = 0
    with subprocess.Popen(
        [sys.executable, "-c", ROTATING, str(tmp_path / "refresh")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as rotating:
        assert rotating.stdout is not None
        for _ in range(rng.randrange(1, 60)):
            last = int(rotating.stdout.readline()[6:])
        os.kill(rotating.pid, signal.SIGKILL)
        # What it sent until the kill arrived is in the pipe.
        sent = [
            int(line[6:]) for line in rotating.stdout.read().splitlines(keepends=True) if line.endswith("\n")
        ]
    last = max([last, *sent])

    token = file.read()
    assert token in {f"token-{last}", f"token-{last + 1}"}
    assert (tmp_path / "refresh").stat().st_mode & 0o777 == 0o600
    assert file.rotate(str(token), "the next")
