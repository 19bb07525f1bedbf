import random
from collections.abc import Iterable
from pathlib import Path

from tests.engines.lab.blocks import SECTOR_BYTES, Cut, Epoch, Platter, cuts, read_log
from tests.engines.lab.recorder import FLUSH_OFFSET, RECORD

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
