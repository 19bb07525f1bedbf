"""A disk that takes what it has no room for: no message is accepted that is not there afterwards."""

import json
import subprocess
import sys

from tests.proofs.lab import kernel
from tests.proofs.lab.filesystems import FILE_SYSTEMS
from tests.proofs.peers.demand import demand
from tests.proofs.peers.relay import PROJECT


def test_a_disk_with_less_room_than_it_says_loses_nothing() -> None:
    demand(kernel.why_missing(), FILE_SYSTEMS["ext4"].why_missing())

    ran = subprocess.run(
        [sys.executable, "-m", "tests.proofs.lab.thin"], cwd=PROJECT, capture_output=True, check=True
    )

    found: dict[str, tuple[int, int]] = json.loads(ran.stdout)
    assert [lost for _, lost in found.values()] == [0] * len(found)
    # Some disks had no room for the batch, some had: both ways, and nothing was refused for another reason.
    assert {accepted for accepted, _ in found.values()} >= {0, 20}
