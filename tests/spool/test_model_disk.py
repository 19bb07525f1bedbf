"""The model of a disk: what a power cut leaves, and calls that fail, which no kernel does on demand."""

import errno
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.spool.durable import opened
from tests.fakes.disk import Fault, ModelDisk


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


def test_a_name_is_durable_only_after_its_folder_was_synced(model: ModelDisk) -> None:
    with opened(model, model.open_new("/folder/a")) as fd:
        model.write_all(fd, b"content")
        model.sync(fd)

        assert all_left(model) == {frozenset(), frozenset({("a", b"content")})}
        model.sync_directory("/folder")
        assert all_left(model) == {frozenset({("a", b"content")})}


def test_content_is_durable_only_after_it_was_synced(model: ModelDisk) -> None:
    with opened(model, model.open_new("/folder/a")) as fd:
        model.sync_directory("/folder")
        model.write_all(fd, b"content")

        lengths = {frozenset({("a", found)}) for found in (b"", bytes(7), b"content")}
        assert all_left(model) == lengths
        model.sync_content(fd)
        assert all_left(model) == {frozenset({("a", b"content")})}


def test_a_write_is_torn_between_sectors(model: ModelDisk) -> None:
    with opened(model, model.open_new("/folder/a")) as fd:
        model.write_all(fd, b"-" * 1024)
        model.sync(fd)
        model.sync_directory("/folder")
        model.write_at(fd, b"x" * 20, 502)

    contents = {next(iter(image))[1][500:524] for image in all_left(model)}
    old, new = b"-" * 24, b"--" + b"x" * 20 + b"--"
    assert contents == {old, new, new[:12] + old[12:], old[:12] + new[12:]}


def test_a_newer_name_is_not_set_back_by_an_older_change(model: ModelDisk) -> None:
    model.make_directory("/other")
    model.plant("/folder/a", b"a")
    model.rename("/folder/a", "/other/a")
    model.plant("/folder/a", b"second")

    # /folder was synced by plant(): the rename had to arrive with it.
    assert all_left(model) == {frozenset({("a", b"second")})}
    assert {tuple(image.names("/other")) for image in model.prefixes()} == {("a",)}


def test_after_a_failed_sync_the_content_never_arrives(model: ModelDisk) -> None:
    with opened(model, model.open_new("/folder/a")) as fd:
        model.sync_directory("/folder")
        model.write_all(fd, b"lost")
        model.fail(Fault(1, errno.EIO))
        assert error_of(lambda: model.sync(fd)) == errno.EIO
        model.sync(fd)

    assert left(model) == {("a", b"lost")}
    assert all_left(model) == {frozenset({("a", b"")})}


@given(nth=st.integers(1, 8), forever=st.booleans())
def test_calls_fail_from_the_nth_on_or_once(*, nth: int, forever: bool) -> None:
    disk = ModelDisk()
    disk.make_directory("/folder")
    disk.fail(Fault(nth, errno.ENOSPC, forever=forever))
    failed = []
    for number in range(1, 9):
        try:
            disk.sync_directory("/folder")
        except OSError:
            failed.append(number)

    assert failed == (list(range(nth, 9)) if forever else [nth])


def test_half_a_write_may_be_written_before_it_fails(model: ModelDisk) -> None:
    model.fail(Fault(2, errno.ENOSPC, is_short=True))
    with opened(model, model.open_new("/folder/a")) as fd:
        assert error_of(lambda: model.write_all(fd, b"12345678")) == errno.ENOSPC

    assert left(model) == {("a", b"1234")}


def test_locks_die_with_the_process_and_by_a_power_cut(model: ModelDisk) -> None:
    other = model.another()
    assert model.lock("/folder/lock", wait=False) is not None
    assert other.lock("/folder/lock", wait=False) is None
    assert model.after_kill().lock("/folder/lock", wait=False) is not None
    assert all(image.lock("/folder/lock", wait=False) is not None for image in model.prefixes())

    model.die()
    assert other.lock("/folder/lock", wait=False) is not None
