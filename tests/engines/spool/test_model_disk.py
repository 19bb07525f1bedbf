"""The model of a disk: what a power cut leaves, and calls that fail, which no kernel does on demand."""

import errno
import random
from collections.abc import Callable

import pytest

from relay.spool.disk.durable import opened
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.platter import Model, Platter


def error_of(call: Callable[[], object]) -> int | None:
    with pytest.raises(OSError) as raised:  # noqa: PT011 - the number is what the callers look at
        call()
    return raised.value.errno


@pytest.fixture
def model() -> ModelDisk:
    disk = ModelDisk()
    disk.make_directory("/folder")
    return disk


def left(disk: ModelDisk) -> set[tuple[str, bytes]]:
    return {(name, disk.peek(f"/folder/{name}")) for name in disk.names("/folder")}


def all_left(disk: ModelDisk) -> set[frozenset[tuple[str, bytes]]]:
    return {frozenset(left(image)) for image in disk.subsets(random.Random(0), 1 << 12)}


def test_a_newer_name_is_not_set_back_by_an_older_change(model: ModelDisk) -> None:
    model.make_directory("/other")
    model.plant("/folder/a", b"a")
    model.rename("/folder/a", "/other/a")
    model.plant("/folder/a", b"second")

    # /folder was synced by plant(): the rename had to arrive with it.
    assert all_left(model) == {frozenset({("a", b"second")})}
    assert {tuple(image.names("/other")) for image in model.prefixes()} == {("a",)}


@pytest.mark.parametrize("drops_pages", [False, True])
def test_after_a_failed_sync_the_content_never_arrives(drops_pages: bool, model: ModelDisk) -> None:
    with opened(model, model.open_new("/folder/a")) as fd:
        model.write_all(fd, b"old!")
        model.sync(fd)
        model.sync_directory("/folder")
        model.write_at(fd, b"lost", 0)
        model.fail(Fault(1, errno.EIO, drops_pages=drops_pages))
        assert error_of(lambda: model.sync(fd)) == errno.EIO
        model.sync(fd)

    assert left(model) == {("a", b"old!" if drops_pages else b"lost")}
    assert all_left(model) == {frozenset({("a", b"old!")})}


def on(model: Model) -> ModelDisk:
    """Return a disk with the folders /folder and /other, and in the first a durable file `kept`."""
    disk = ModelDisk(Platter(model))
    for folder in ("/folder", "/other"):
        disk.make_directory(folder)
    disk.plant("/folder/kept", b"T")
    return ModelDisk(disk.platter.after_cut(disk.platter.pending))


def cut(disk: ModelDisk) -> list[ModelDisk]:
    return list(disk.cuts(random.Random(0), 1 << 14))


def written(disk: ModelDisk, path: str) -> int:
    """Write a new file and sync it; return its descriptor."""
    fd = disk.open_new(path)
    disk.write_all(fd, b"content")
    disk.sync(fd)
    return fd


def renamed(disk: ModelDisk) -> int:
    fd = written(disk, "/folder/draft")
    disk.rename("/folder/draft", "/other/named")
    return fd


def linked(disk: ModelDisk) -> int:
    fd = written(disk, "/folder/draft")
    disk.link("/folder/draft", "/other/named")
    return fd


def synced(disk: ModelDisk, fd: int) -> None:
    disk.close(fd)
    disk.sync_directory("/other")


PROTOCOLS: dict[str, tuple[Callable[[ModelDisk], None], set[Model]]] = {
    "fsync, rename": (lambda disk: disk.close(renamed(disk)), set(Model)),
    "fsync, link": (lambda disk: disk.close(linked(disk)), set(Model)),
    "fsync, rename, fsync": (
        lambda disk: disk.sync(renamed(disk)),
        {Model.ANY_SUBSET},
    ),
    "fsync, link, fdatasync": (
        lambda disk: disk.sync_content(linked(disk)),
        {Model.ORDERED, Model.ANY_SUBSET},
    ),
    "fsync, rename, fsync of the folder": (
        lambda disk: synced(disk, renamed(disk)),
        set(),
    ),
    "fsync, link, fsync of the folder": (
        lambda disk: synced(disk, linked(disk)),
        set(),
    ),
}
"""How a name is made durable, and on which disks it may be missing all the same.

As measured with real crash images: ext4 and xfs are ORDERED, btrfs is FOLDER_LOGS.
"""


@pytest.mark.parametrize("model", Model)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_name_may_be_lost_just_where_real_file_systems_lose_it(protocol: str, model: Model) -> None:
    disk, (play, loses) = on(model), PROTOCOLS[protocol]
    play(disk)

    images = cut(disk)
    assert any(image.names("/other") == ["named"] for image in images)
    assert any(image.names("/other") == [] for image in images) == (model in loses)
    # Whatever was synced is whole, under whichever name.
    assert all(
        image.peek(f"/other/{name}") == b"content" for image in images for name in image.names("/other")
    )


@pytest.mark.parametrize("model", Model)
def test_removals_in_two_folders_are_reordered_by_btrfs(model: Model) -> None:
    disk = on(model)
    disk.plant("/other/second", b"")
    disk.unlink("/folder/kept")
    disk.unlink("/other/second")
    disk.sync_directory("/other")

    is_reordered = any(image.names("/folder") == ["kept"] for image in cut(disk))
    assert is_reordered == (model is not Model.ORDERED)


@pytest.mark.parametrize("model", Model)
def test_another_files_sync_does_not_sync_this_one(model: Model) -> None:
    disk = on(model)
    note = disk.open_append("/other/note")
    disk.write_all(note, b"why")
    disk.sync_directory("/other")
    mark = disk.open_update("/folder/kept")
    disk.write_at(mark, b"F", 0)
    disk.sync_content(mark)

    found = {(image.peek("/other/note"), image.peek("/folder/kept")) for image in cut(disk)}
    assert {(b"", b"F"), (b"why", b"F")} <= found
    assert (b"", b"T") not in found


@pytest.mark.parametrize("model", Model)
def test_what_follows_a_sync_may_be_torn_at_512_octets(model: Model) -> None:
    disk = on(model)
    fd = disk.open_append("/folder/kept")
    disk.write_all(fd, b"a" * 511)
    disk.sync_content(fd)
    disk.write_all(fd, b"b" * 1024)

    contents = {image.peek("/folder/kept") for image in cut(disk)}
    assert all(content.startswith(b"T" + b"a" * 511) for content in contents)
    whole = b"T" + b"a" * 511
    assert {whole, whole + b"b" * 1024, whole + b"b" * 512 + bytes(512)} <= contents
    assert {content[512:].count(b"b") for content in contents} == {0, 512, 1024}
    # The second half without the first: only where there is no order at all.
    reordered = whole + bytes(512) + b"b" * 512 in contents
    assert reordered == (model is Model.ANY_SUBSET)


@pytest.mark.parametrize("model", Model)
def test_a_rename_is_never_missing_in_both_places(model: Model) -> None:
    disk = on(model)
    disk.rename("/folder/kept", "/other/named")

    found = {(*image.names("/folder"), *image.names("/other")) for image in cut(disk)}
    assert found == {("kept",), ("named",)}


@pytest.mark.parametrize("model", Model)
def test_names_of_one_folder_come_in_their_order(model: Model) -> None:
    disk = on(model)
    for name in ("a", "b"):
        disk.link("/folder/kept", f"/other/{name}")

    found = {tuple(image.names("/other")) for image in cut(disk)}
    in_order = {(), ("a",), ("a", "b")}
    assert in_order <= {tuple(sorted(names)) for names in found}
    assert (("b",) in found) == (model is Model.ANY_SUBSET)


def test_disks_of_equal_content_have_one_fingerprint() -> None:
    disk, same, copied = on(Model.ANY_SUBSET), on(Model.ANY_SUBSET), on(Model.ANY_SUBSET)
    disk.link("/folder/kept", "/other/named")
    same.close(same.open_new("/other/draft"))
    same.unlink("/other/draft")
    same.link("/folder/kept", "/other/named")
    copied.plant("/other/named", b"T")

    assert disk.fingerprint() == same.fingerprint() != copied.fingerprint()
