"""The file of a refresh token.  tests/engines/spool/test_durable cuts the power of its replacement."""

import errno
import random
from pathlib import Path

import pytest

from relay.sender.connections import read_refresh_token, write_refresh_token
from relay.spool.disk.durable import RealDisk
from tests.fakes.disk import Fault, ModelDisk

PATH = Path("/secrets/m365")
OLD, NEW, OTHERS = "old-refresh-token", "a-new-and-longer-refresh-token", "by-hand"


@pytest.mark.parametrize("kind", ["sync", "rename", "sync_directory"])
def test_a_failed_write_leaves_a_whole_token_and_can_be_repeated(kind: str) -> None:
    disk = ModelDisk()
    disk.make_directory("/secrets")
    write_refresh_token(PATH, disk, OLD)
    disk.fail(Fault(1, errno.ENOSPC, kinds=frozenset({kind})))
    try:
        write_refresh_token(PATH, disk, NEW, old=OLD)
    except OSError:
        assert read_refresh_token(PATH, disk) in {OLD, NEW}
    disk.fault = None

    assert write_refresh_token(PATH, disk, NEW, old=OLD)
    images = [read_refresh_token(PATH, image) for image in disk.cuts(random.Random(2), 64)]
    assert set(images) == {NEW}


def test_only_the_owner_reads_the_file_and_no_other_writers_token_is_replaced(tmp_path: Path) -> None:
    path, disk = tmp_path / "m365", RealDisk()
    write_refresh_token(path, disk, OLD)
    assert write_refresh_token(path, disk, NEW, old=OLD)

    assert path.read_text() == f"{NEW}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m365", "m365.lock"]
    write_refresh_token(path, disk, OTHERS)
    assert not write_refresh_token(path, disk, NEW, old=OLD)
    assert read_refresh_token(path, disk) == OTHERS
