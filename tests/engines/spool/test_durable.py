"""The port to the disk: one suite for the kernel's file systems and for the model that the tests use."""

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from relay.spool.disk import durable
from relay.spool.disk.durable import Disk, RealDisk, doubt_about, opened, write_with_room
from relay.spool.disk.replacing import InDoubt, put_in_place, replace_file
from tests.fakes.disk import Fault, ModelDisk

Place = tuple[Disk, str]


@pytest.fixture(params=["kernel", "model"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "kernel":
        return RealDisk(), str(tmp_path)
    disk = ModelDisk()
    disk.make_directory("/folder")
    return disk, "/folder"


def write(disk: Disk, path: str, content: bytes) -> None:
    with opened(disk, disk.open_new(path)) as fd:
        disk.write_all(fd, content)


def read(disk: Disk, path: str) -> bytes:
    with opened(disk, disk.open_read(path)) as fd:
        return disk.pread(fd, disk.size(fd) + 10, 0)


def error_of(call: Callable[[], object]) -> int | None:
    with pytest.raises(OSError) as raised:  # noqa: PT011 - callers compare the number
        call()
    return raised.value.errno


@pytest.mark.parametrize(
    ("call", "numbers"),
    [
        (lambda disk, at: disk.open_new(f"{at}/file"), [errno.EEXIST]),
        (lambda disk, at: disk.open_new(f"{at}/none/a"), [errno.ENOENT]),
        (lambda disk, at: disk.open_read(f"{at}/none"), [errno.ENOENT]),
        (lambda disk, at: disk.open_update(f"{at}/none"), [errno.ENOENT]),
        (lambda disk, at: disk.open_update(f"{at}/sub"), [errno.EISDIR]),
        (lambda disk, at: read(disk, f"{at}/sub"), [errno.EISDIR]),
        (lambda disk, at: read(disk, f"{at}/fifo"), [errno.ESPIPE]),
        (lambda disk, at: disk.unlink(f"{at}/none"), [errno.ENOENT]),
        (lambda disk, at: disk.unlink(f"{at}/sub"), [errno.EISDIR, errno.EPERM]),
        (lambda disk, at: disk.rename(f"{at}/none", f"{at}/a"), [errno.ENOENT]),
        (lambda disk, at: disk.link(f"{at}/none", f"{at}/a"), [errno.ENOENT]),
        (lambda disk, at: disk.link(f"{at}/file", f"{at}/fifo"), [errno.EEXIST]),
        (lambda disk, at: disk.names(f"{at}/none"), [errno.ENOENT]),
        (lambda disk, at: disk.sync_directory(f"{at}/none"), [errno.ENOENT]),
        (lambda disk, at: disk.sync_directory(f"{at}/file"), [errno.ENOTDIR]),
        (lambda disk, at: disk.make_directory(f"{at}/file/sub"), [errno.ENOTDIR, errno.EEXIST]),
    ],
)
def test_an_impossible_call_fails_with_its_errno_and_changes_nothing(
    place: Place, call: Callable[[Disk, str], object], numbers: list[int]
) -> None:
    disk, folder = place
    write(disk, f"{folder}/file", b"kept")
    disk.make_directory(f"{folder}/sub")
    disk.make_fifo(f"{folder}/fifo")
    assert error_of(lambda: call(disk, folder)) in numbers
    assert sorted(disk.names(folder)) == ["fifo", "file", "sub"]
    assert (read(disk, f"{folder}/file"), disk.inode(f"{folder}/none")) == (b"kept", None)


def test_writes_go_on_where_the_last_one_ended(place: Place) -> None:
    disk, folder = place
    with opened(disk, disk.open_new(f"{folder}/a")) as fd:
        disk.write_all(fd, b"\0\0\0")
        disk.write_all(fd, b"def")
        disk.write_at(fd, b"abc", 0)
        disk.write_all(fd, b"ghi")

        assert disk.size(fd) == 9
        assert disk.pread(fd, 100, 0) == b"abcdefghi"
        assert disk.pread(fd, 3, 4) == b"efg"
        assert disk.pread(fd, 3, 9) == b""


def test_an_appending_descriptor_always_writes_at_the_end(place: Place) -> None:
    disk, folder = place
    with (
        opened(disk, disk.open_append(f"{folder}/a")) as first,
        opened(disk, disk.open_append(f"{folder}/a")) as second,
    ):
        disk.write_all(first, b"one ")
        disk.write_all(second, b"two ")
        disk.write_all(first, b"three")
        disk.truncate(second, 7)
        disk.write_all(first, b"!")

    assert read(disk, f"{folder}/a") == b"one two!"


def test_a_link_is_a_second_name(place: Place) -> None:
    disk, folder = place
    write(disk, f"{folder}/a", b"one")
    write(disk, f"{folder}/b", b"two")
    disk.link(f"{folder}/a", f"{folder}/c")
    assert disk.inode(f"{folder}/a") == disk.inode(f"{folder}/c") != disk.inode(f"{folder}/b")
    disk.unlink(f"{folder}/a")
    assert sorted(disk.names(folder)) == ["b", "c"]
    assert read(disk, f"{folder}/c") == b"one"


def test_a_rename_leaves_two_names_of_one_file_alone(place: Place) -> None:
    disk, folder = place
    write(disk, f"{folder}/a", b"one")
    write(disk, f"{folder}/b", b"two")
    disk.link(f"{folder}/b", f"{folder}/c")

    disk.rename(f"{folder}/a", f"{folder}/b")
    assert sorted(disk.names(folder)) == ["b", "c"]
    assert read(disk, f"{folder}/b") == b"one"
    # rename(2): if both are links to the same file, nothing is done.
    disk.link(f"{folder}/b", f"{folder}/d")
    disk.rename(f"{folder}/b", f"{folder}/d")
    assert sorted(disk.names(folder)) == ["b", "c", "d"]


def test_a_name_leads_to_its_file_until_another_has_it(place: Place) -> None:
    disk, folder = place
    name, other = f"{folder}/a", f"{folder}/b"
    with opened(disk, disk.open_new(name)) as fd:
        assert disk.leads_to(name, fd)
        assert not disk.leads_to(other, fd)
        disk.rename(name, other)
        assert (disk.leads_to(name, fd), disk.leads_to(other, fd)) == (False, True)
        disk.unlink(other)
        # While the file is open, no other file gets its inode number.
        with opened(disk, disk.open_new(other)) as new_fd:
            assert (disk.leads_to(other, fd), disk.leads_to(other, new_fd)) == (False, True)
        assert not disk.leads_to(f"{folder}/none/a", fd)


def test_a_lock_is_held_until_its_descriptor_is_closed(place: Place) -> None:
    disk, folder = place
    path = f"{folder}/lock"
    holder = disk.lock(path, wait=False)
    assert holder is not None

    assert disk.lock(path, wait=False) is None
    with opened(disk, disk.open_read(path)) as other:
        # Closing any other descriptor of the file releases a POSIX lock.
        assert not disk.lock_open(other)
    disk.link(path, f"{path}.too")
    with opened(disk, disk.open_read(f"{path}.too")) as other:
        assert not disk.lock_open(other)
    assert disk.lock(path, wait=False) is None
    assert disk.lock_open(holder)
    disk.close(holder)
    again = disk.lock(path, wait=True)
    assert again is not None
    disk.close(again)


def test_a_folder_is_made_once_with_its_parents(place: Place) -> None:
    disk, folder = place
    disk.make_directory(f"{folder}/x/y/z")
    write(disk, f"{folder}/x/y/z/a", b"kept")
    disk.make_directory(f"{folder}/x/y/z")
    assert disk.names(f"{folder}/x/y/z") == ["a"]


def test_a_short_write_goes_on_until_all_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, real_write, real_pwrite = RealDisk(), os.write, os.pwrite
    monkeypatch.setattr(os, "write", lambda fd, view: real_write(fd, view[:1]))
    monkeypatch.setattr(os, "pwrite", lambda fd, view, offset: real_pwrite(fd, view[:1], offset))
    with opened(disk, disk.open_new(str(tmp_path / "a"))) as fd:
        disk.write_all(fd, b"0123456789")
        disk.write_at(fd, b"abcde", 5)

    assert (tmp_path / "a").read_bytes() == b"01234abcde"


def test_files_and_folders_are_accessible_to_their_owner_only(tmp_path: Path) -> None:
    disk = RealDisk()
    disk.make_directory(str(tmp_path / "folder"))
    write(disk, str(tmp_path / "folder" / "file"), b"")
    disk.make_fifo(str(tmp_path / "folder" / "fifo"))
    lock = disk.lock(str(tmp_path / "folder" / "lock"), wait=False)

    assert lock is not None
    disk.close(lock)
    assert (tmp_path / "folder").stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "folder").iterdir())


def test_doubtful_file_systems_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts, real_open = tmp_path / "mounts", open
    mounts.write_text(
        "/dev/a / ext4 rw 0 0\nnone /mem tmpfs rw 0 0\n/dev/b /mem/disk xfs rw 0 0\n"
        "h:/x /a\\040b nfs4 rw 0 0\n"
    )
    monkeypatch.setattr("builtins.open", lambda _path, **kwargs: real_open(mounts, **kwargs))

    for sound in ("/var/spool", "/memory", "/mem/disk/spool"):
        assert doubt_about(sound) is None
    for path, kind in (("/mem/spool", "tmpfs"), ("/mem", "tmpfs"), ("/a b/spool", "nfs4")):
        assert kind in (doubt_about(path) or "")


def test_a_write_into_reserved_room_does_not_grow_the_file(place: Place) -> None:
    disk, folder = place
    write(disk, f"{folder}/a", b"first")
    with opened(disk, disk.open_update(f"{folder}/a")) as fd:
        write_with_room(disk, fd, b"second", 5, folder=folder)
        grown = disk.size(fd)
        write_with_room(disk, fd, b"third", 11, folder=folder)
        assert disk.size(fd) == grown == 11 + durable.ROOM_BYTES
        write_with_room(disk, fd, b"x" * (grown - 15), 16, folder=folder, room_bytes=3)
        assert disk.size(fd) == grown + 4
    content = read(disk, f"{folder}/a")
    assert (content[:17], content[-4:]) == (b"firstsecondthirdx", b"x\0\0\0")


def test_a_full_disk_takes_a_write_without_the_extra_room() -> None:
    disk = ModelDisk()
    disk.make_directory("/folder")
    with opened(disk, disk.open_new("/folder/a")) as fd:
        disk.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"write"})))
        write_with_room(disk, fd, b"content", 0, folder="/folder")
        assert disk.size(fd) == 7
        disk.fail(Fault(1, errno.EIO, kinds=frozenset({"write"})))
        assert error_of(lambda: write_with_room(disk, fd, b"more", 7, folder="/folder")) == errno.EIO
        # A part of the failed write may be there.
        assert disk.pread(fd, 7, 0) == b"content"


# What a power cut leaves on the model disk, and failed syncs, which no kernel produces on demand.


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


def written(disk: ModelDisk, path: str, content: bytes) -> int:
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
    fd = written(disk, "/folder/draft", b"content")
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


def test_the_sync_of_another_file_does_not_keep_this_one(disk: ModelDisk) -> None:
    note = written(disk, "/other/note", b"why")
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


# `replace_file`: at any instant the file is the old one or the new one, and afterwards the new one.

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
