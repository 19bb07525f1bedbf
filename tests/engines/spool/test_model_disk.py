"""The model disk: what a power cut leaves, and failed syncs, which no kernel produces on demand."""

import errno
import random
from collections.abc import Callable

import pytest

from relay.spool.disk.durable import opened
from tests.fakes.disk import Fault, ModelDisk


@pytest.fixture
def disk() -> ModelDisk:
    """Return a disk with the folders /folder and /other, and a durable file `kept` in /folder."""
    disk = ModelDisk()
    for folder in ("/folder", "/other"):
        disk.make_directory(folder)
    disk.plant("/folder/kept", b"T")
    return disk


def cuts(disk: ModelDisk) -> list[ModelDisk]:
    return list(disk.cuts(random.Random(0), 1 << 14))


def names_left(disk: ModelDisk) -> set[tuple[str, ...]]:
    """Return the sets of names that both folders together may have after a cut."""
    return {tuple(sorted(image.names("/folder") + image.names("/other"))) for image in cuts(disk)}


def write(disk: ModelDisk, path: str, content: bytes) -> int:
    """Write a new file and leave it open."""
    fd = disk.open_new(path)
    disk.write_all(fd, content)
    return fd


@pytest.mark.parametrize(
    ("sync", "may_be_lost"),
    [
        (lambda disk, fd: disk.sync(fd), True),
        (lambda disk, fd: disk.sync_content(fd), True),
        (lambda disk, _: disk.sync_directory("/other"), False),
    ],
)
@pytest.mark.parametrize("named", [ModelDisk.rename, ModelDisk.link])
def test_only_the_sync_of_its_folder_keeps_a_name(
    named: Callable[[ModelDisk, str, str], None],
    sync: Callable[[ModelDisk, int], None],
    may_be_lost: bool,
    disk: ModelDisk,
) -> None:
    fd = write(disk, "/folder/draft", b"content")
    disk.sync(fd)
    named(disk, "/folder/draft", "/other/named")
    sync(disk, fd)

    images = cuts(disk)
    assert any(image.names("/other") == ["named"] for image in images)
    assert any(image.names("/other") == [] for image in images) == may_be_lost
    # Synced content is whole under either name.
    assert all(
        image.peek(f"/other/{name}") == b"content" for image in images for name in image.names("/other")
    )


def test_name_changes_reach_the_disk_in_any_order_and_each_whole(disk: ModelDisk) -> None:
    disk.link("/folder/kept", "/other/a")
    disk.rename("/folder/kept", "/other/b")

    assert names_left(disk) == {("kept",), ("a", "kept"), ("b",), ("a", "b")}


def test_a_newer_name_is_not_set_back_by_an_older_change(disk: ModelDisk) -> None:
    disk.rename("/folder/kept", "/other/kept")
    disk.plant("/folder/kept", b"second")

    # plant() synced /folder: the rename had to arrive with it.
    (image,) = cuts(disk)
    assert (image.peek("/folder/kept"), image.peek("/other/kept")) == (b"second", b"T")


def test_the_sync_of_another_file_does_not_keep_this_one(disk: ModelDisk) -> None:
    note = write(disk, "/other/note", b"why")
    disk.sync_directory("/other")
    mark = disk.open_update("/folder/kept")
    disk.write_at(mark, b"F", 0)
    disk.sync_content(mark)

    found = {(image.peek("/other/note"), image.peek("/folder/kept")) for image in cuts(disk)}
    assert {(b"", b"F"), (b"\0\0\0", b"F"), (b"why", b"F")} == found
    disk.close(note)


def test_writes_after_a_sync_may_be_torn_at_512_octets(disk: ModelDisk) -> None:
    fd, synced = disk.open_append("/folder/kept"), b"T" + b"a" * 511
    disk.write_all(fd, synced[1:])
    disk.sync_content(fd)
    disk.write_all(fd, b"b" * 1024)

    grown = [first + second for first in (b"b" * 512, bytes(512)) for second in (b"b" * 512, bytes(512))]
    lengths = {synced, synced + b"b" * 512, *(synced + content for content in grown)}
    assert {image.peek("/folder/kept") for image in cuts(disk)} == lengths


@pytest.mark.parametrize("drops_pages", [False, True])
def test_after_a_failed_sync_the_content_never_arrives(drops_pages: bool, disk: ModelDisk) -> None:
    with opened(disk, disk.open_update("/folder/kept")) as fd:
        disk.write_at(fd, b"lost", 0)
        disk.fail(Fault(1, errno.EIO, drops_pages=drops_pages))
        with pytest.raises(OSError, match="injected"):
            disk.sync(fd)
        disk.sync(fd)

    assert disk.peek("/folder/kept") == (b"T\0\0\0" if drops_pages else b"lost")
    assert {image.peek("/folder/kept") for image in cuts(disk)} == {b"T\0\0\0"}


def test_disks_of_equal_content_have_one_fingerprint(disk: ModelDisk) -> None:
    same, copied = disk.after_kill(), disk.after_kill()
    disk.link("/folder/kept", "/other/named")
    same.close(same.open_new("/other/draft"))
    same.unlink("/other/draft")
    same.link("/folder/kept", "/other/named")
    copied.plant("/other/named", b"T")

    assert disk.fingerprint() == same.fingerprint() != copied.fingerprint()
