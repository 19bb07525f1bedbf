import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.proofs.lab.blocks import SECTOR_BYTES, Cut, Epoch, Platter, cuts, read_log
from tests.proofs.lab.recorder import FLUSH_OFFSET, RECORD

DISK_BYTES = 1 << 20
PAGE = 4096
FLUSH = None


def _log(path: Path, *steps: tuple[int, bytes] | None) -> list[Epoch]:
    with path.open("wb") as log:
        for step in steps:
            if step is FLUSH:
                log.write(RECORD.pack(FLUSH_OFFSET, 0))
            else:
                log.write(RECORD.pack(step[0], len(step[1])) + step[1])
    return read_log(path)


def _images(folder: Path, epochs: list[Epoch], made: Iterable[Cut]) -> list[tuple[Cut, bytes]]:
    base = folder / "base"
    with base.open("wb") as file:
        file.truncate(DISK_BYTES)
    platter = Platter(base, folder / "log", epochs, folder)
    images = []
    for cut in made:
        platter.build(cut)
        images.append((cut, platter.image.read_bytes()))
        # Whoever mounts an image writes to it.
        with platter.image.open("r+b") as image:
            image.seek(random.Random(cut.place).randrange(DISK_BYTES - PAGE))
            image.write(b"!" * PAGE)
    platter.close()
    return images


def test_an_image_has_what_was_flushed_and_nothing_unwritten(tmp_path: Path) -> None:
    writes = [(number * PAGE, bytes([number + 1]) * PAGE) for number in range(6)]
    epochs = _log(tmp_path / "log", *writes[:2], FLUSH, *writes[2:4], FLUSH, *writes[4:])

    images = _images(tmp_path, epochs, cuts(epochs, random.Random(1), 30))

    assert [len(epoch.writes) for epoch in epochs] == [2, 2, 2]
    for cut, image in images:
        for number, (offset, octets) in enumerate(writes):
            there = image[offset : offset + PAGE]
            if number // 2 < cut.epoch:
                assert there == octets
            elif number // 2 > cut.epoch:
                assert there == bytes(PAGE)


def test_an_unflushed_write_is_there_absent_or_torn_by_sectors(tmp_path: Path) -> None:
    epochs = _log(tmp_path / "log", (0, b"a" * PAGE), (PAGE, b"b" * PAGE))

    images = _images(tmp_path, epochs, cuts(epochs, random.Random(2), 200))

    seen = {image[: 2 * PAGE] for _, image in images}
    for image in seen:
        for start in range(0, 2 * PAGE, SECTOR_BYTES):
            octet = b"a" if start < PAGE else b"b"
            assert image[start : start + SECTOR_BYTES] in (bytes(SECTOR_BYTES), octet * SECTOR_BYTES)
    assert {bytes(2 * PAGE), b"a" * PAGE + b"b" * PAGE, bytes(PAGE) + b"b" * PAGE} <= seen
    assert any(0 < image[:PAGE].count(0) < PAGE for image in seen), "nothing is torn"


def test_the_later_of_two_writes_to_one_place_wins(tmp_path: Path) -> None:
    epochs = _log(tmp_path / "log", (0, b"old" + bytes(509)), (0, b"new" + bytes(509)), FLUSH, (512, b"x"))

    images = _images(tmp_path, epochs, cuts(epochs, random.Random(3), 9))

    assert {image[:3] for cut, image in images if cut.epoch == 1} == {b"new"}
    assert {image[:3] for cut, image in images if cut.epoch == 0} == {b"new", b"old", bytes(3)}


@pytest.mark.parametrize("torn_bytes", [1, RECORD.size, RECORD.size + 5])
def test_a_record_that_is_not_whole_did_not_happen(tmp_path: Path, torn_bytes: int) -> None:
    path = tmp_path / "log"
    whole = _log(path, (0, b"a" * 512), FLUSH)
    with path.open("ab") as log:
        log.write((RECORD.pack(512, 512) + b"b" * 512)[:torn_bytes])

    assert read_log(path) == whole
