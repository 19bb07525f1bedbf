"""A small file that is replaced is the old one or the new at any instant, and the new one afterwards."""

import errno
import random

import pytest

from relay.spool.disk.durable import opened
from relay.spool.disk.replacing import InDoubt, put_in_place, replace_file
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.platter import Model, Platter

PATH = "/history/isp.pause"


def _content(disk: ModelDisk) -> bytes | None:
    if disk.inode(PATH) is None:
        return None
    with opened(disk, disk.open_read(PATH)) as fd:
        return disk.pread(fd, 100, 0)


@pytest.mark.parametrize("model", Model)
def test_a_power_cut_at_any_instant_leaves_one_of_the_two_whole(model: Model) -> None:
    disk, images, rng = ModelDisk(Platter(model)), list[bytes | None](), random.Random(1)
    replace_file(disk, PATH, b"old")
    disk.after = lambda: images.extend(_content(image) for image in disk.cuts(rng, 16))
    replace_file(disk, PATH, b"new and longer")
    disk.after = None

    assert set(images) == {b"old", b"new and longer"}
    assert _content(ModelDisk(disk.platter.after_cut(()))) == b"new and longer"


def test_what_a_failed_one_left_is_no_hindrance() -> None:
    disk = ModelDisk()
    replace_file(disk, PATH, b"old")
    disk.fail(Fault(1, errno.EIO, kinds=frozenset({"rename"})))
    with pytest.raises(OSError, match="Input/output"):
        replace_file(disk, PATH, b"never")
    assert _content(disk) == b"old"

    replace_file(disk, PATH, b"new")
    assert _content(disk) == b"new"
    assert disk.names("/history") == ["isp.pause"]


def test_before_the_rename_the_old_one_stays_and_no_draft() -> None:
    disk = ModelDisk()
    replace_file(disk, PATH, b"old")
    disk.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"sync"})))

    with pytest.raises(OSError, match="space") as failed:
        put_in_place(disk, PATH, b"never")

    assert not isinstance(failed.value, InDoubt)
    assert _content(disk) == b"old"
    assert disk.names("/history") == ["isp.pause"]


@pytest.mark.parametrize("kind", ["rename", "sync_directory"])
def test_from_the_rename_on_either_may_be_in_force(kind: str) -> None:
    disk = ModelDisk()
    replace_file(disk, PATH, b"old")
    disk.fail(Fault(1, errno.ENOSPC, kinds=frozenset({kind})))

    with pytest.raises(InDoubt) as failed:
        put_in_place(disk, PATH, b"new")

    assert failed.value.errno == errno.ENOSPC
    assert _content(disk) in (b"old", b"new")
    assert disk.names("/history") == ["isp.pause"]


def test_what_another_left_in_the_way_is_the_callers_to_clear() -> None:
    disk = ModelDisk()
    replace_file(disk, PATH, b"old")
    disk.plant(f"{PATH}.new", b"somebody's")

    fd = put_in_place(disk, PATH, b"new", clear_the_way=lambda draft: disk.rename(draft, "/history/kept"))

    assert disk.pread(fd, 100, 0) == b"new"
    assert disk.peek("/history/kept") == b"somebody's"
