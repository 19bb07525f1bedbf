"""`replace_file`: at any instant the file is the old one or the new one, and afterwards the new one."""

import errno
import random

import pytest

from relay.spool.disk.replacing import InDoubt, put_in_place, replace_file
from tests.fakes.disk import Fault, ModelDisk

PATH = "/history/isp.pause"


def test_a_power_cut_at_any_instant_leaves_the_old_or_the_new_file_whole() -> None:
    disk, images, rng = ModelDisk(), list[bytes](), random.Random(1)
    replace_file(disk, PATH, b"old")
    disk.after = lambda: images.extend(image.peek(PATH) for image in disk.cuts(rng, 16))
    replace_file(disk, PATH, b"new and longer")
    disk.after = None

    assert set(images) == {b"old", b"new and longer"}
    assert ModelDisk(disk.platter.after_cut(())).peek(PATH) == b"new and longer"


@pytest.mark.parametrize("kind", ["sync", "rename", "sync_directory"])
def test_a_failed_sync_keeps_the_old_file_and_a_later_failure_is_in_doubt(kind: str) -> None:
    disk = ModelDisk()
    replace_file(disk, PATH, b"old")
    disk.fail(Fault(1, errno.ENOSPC, kinds=frozenset({kind})))

    with pytest.raises(OSError, match="space") as failed:
        put_in_place(disk, PATH, b"new")

    assert isinstance(failed.value, InDoubt) == (kind != "sync")
    assert disk.peek(PATH) in ((b"old",) if kind == "sync" else (b"old", b"new"))
    assert disk.names("/history") == ["isp.pause"]
    replace_file(disk, PATH, b"newer")
    assert (disk.peek(PATH), disk.names("/history")) == (b"newer", ["isp.pause"])
