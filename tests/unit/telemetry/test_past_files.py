"""The recent past on disk: bounded in octets and days, and read whatever a crash or a disk left of it."""

import errno
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.mail.sought import sought
from relay.spool.disk.durable import Disk, RealDisk
from relay.spool.root.headroom import HEADROOM_BYTES, NoHeadroom
from relay.telemetry.endings import LONGEST_LINE, PastEnding, encode
from relay.telemetry.past_files import PIECES, PastFiles, PastReader
from tests.fakes.disk import Fault, ModelDisk

FOLDER = "/spool.recent"
DAY_NS = 86_400 * SECOND_NS
BEGIN_NS = 1_766_000_000 * SECOND_NS


@dataclass(frozen=True)
class Limits:
    keep_ns: int = 7 * DAY_NS
    most_bytes: int = 1024 * 1024


BOUNDS = Limits()


def ending(number: int, at_ns: int = BEGIN_NS, reply: str = "250 ok") -> PastEnding:
    return PastEnding(
        at_ns, f"{number:016}", f"<{number}@here>", "a@here", f"r{number}@list", "relayed", "isp", reply=reply
    )


def lines(*numbers: int, reply: str = "250 ok") -> list[bytes]:
    return [encode(ending(number, reply=reply)) for number in numbers]


def numbers_in(disk: Disk, folder: str = FOLDER) -> list[int]:
    """Return which endings are read, the newest first."""
    return [int(each.queue_id) for each in PastReader(folder, disk).endings(lambda _: True)]


def test_what_ended_is_read_the_newest_first(tmp_path: Path) -> None:
    folder = tmp_path / "spool.recent"
    PastFiles(str(folder), RealDisk()).append(lines(1, 2), BOUNDS, BEGIN_NS)
    PastFiles(str(folder), RealDisk()).append(lines(3), BOUNDS, BEGIN_NS)

    assert numbers_in(RealDisk(), str(folder)) == [3, 2, 1]
    (piece,) = folder.iterdir()
    assert piece.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_one_of_a_hundred_thousand_is_found(tmp_path: Path) -> None:
    files = PastFiles(str(tmp_path), RealDisk())
    bounds = Limits(most_bytes=64 * 1024 * 1024)
    for start in range(0, 100_000, 10_000):
        files.append(lines(*range(start, start + 10_000)), bounds, BEGIN_NS)

    for text, number in (("R54321@LIST", 54321), ("<12345@here>", 12345), (f"{99_999:016}", 99_999)):
        wanted = sought(text)
        reader = PastReader(str(tmp_path), RealDisk())
        assert [int(each.queue_id) for each in reader.endings(wanted.may_be_in)] == [number]
        assert reader.damaged_lines == 0


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 2 * DAY_NS)), min_size=1, max_size=12))
def test_neither_octets_nor_days_grow_beyond_the_bounds(steps: list[tuple[int, int]]) -> None:
    disk, number, now_ns, bounds = ModelDisk(), 0, BEGIN_NS, Limits(most_bytes=64 * 1024)
    files = PastFiles(FOLDER, disk)
    written: list[tuple[int, int]] = []
    for count, later_ns in steps:
        disk.now_ns = now_ns = now_ns + later_ns
        some = range(number, number + count)
        files.append([encode(ending(each, now_ns)) for each in some], bounds, now_ns)
        files.tidy(bounds, now_ns)
        written += [(each, now_ns) for each in some]
        number += count

        total = sum(disk.length(f"{FOLDER}/{name}") or 0 for name in disk.names(FOLDER))
        kept = numbers_in(disk)
        assert total <= bounds.most_bytes
        assert kept == [each for each, _ in reversed(written)][: len(kept)]
        at_ns = dict(written)
        assert all(at_ns[each] >= now_ns - bounds.keep_ns * (PIECES + 1) // PIECES for each in kept)
        # Nor does more go than has to.
        assert len(kept) == len(written) or (
            total > bounds.most_bytes * (PIECES - 3) // PIECES
            or any(at < now_ns - bounds.keep_ns * (PIECES - 1) // PIECES for _, at in written)
        )


def test_other_bounds_count_at_once() -> None:
    disk = ModelDisk()
    disk.now_ns = BEGIN_NS
    files = PastFiles(FOLDER, disk)
    for start in range(0, 20_000, 1000):
        files.append(lines(*range(start, start + 1000)), Limits(most_bytes=8 << 20), BEGIN_NS)
    assert len(numbers_in(disk)) == 20_000

    files.tidy(BOUNDS, BEGIN_NS)

    assert 0 < sum(disk.length(f"{FOLDER}/{name}") or 0 for name in disk.names(FOLDER)) <= BOUNDS.most_bytes
    files.remove()
    assert disk.names(FOLDER) == []
    files.remove()


def test_whatever_a_power_cut_leaves_the_rest_is_read_and_added_to() -> None:
    disk, rng = ModelDisk(), random.Random(7)
    files = PastFiles(FOLDER, disk)
    survivors: list[ModelDisk] = []

    def look() -> None:
        survivors.extend(disk.cuts(rng, 6))

    disk.after = look
    for number in range(6):
        files.append(lines(number), BOUNDS, BEGIN_NS)
    disk.after = None

    counts = set()
    for survivor in survivors:
        survivor.make_directory(FOLDER)
        before = numbers_in(survivor)
        assert set(before) <= set(range(6))
        counts.add(len(before))
        PastFiles(FOLDER, survivor).append(lines(9), BOUNDS, BEGIN_NS)
        assert numbers_in(survivor) == [9, *before]
    assert {0, 6} <= counts


def test_a_line_that_was_cut_off_spoils_no_other() -> None:
    disk = ModelDisk()
    files = PastFiles(FOLDER, disk)
    files.append(lines(1), BOUNDS, BEGIN_NS)
    disk.fail(Fault(1, errno.ENOSPC, is_short=True, kinds=frozenset({"write"})))
    with pytest.raises(OSError, match=r"."):
        files.append(lines(2), BOUNDS, BEGIN_NS)
    disk.heal()

    files.append(lines(3), BOUNDS, BEGIN_NS)

    reader = PastReader(FOLDER, disk)
    assert [int(each.queue_id) for each in reader.endings(lambda _: True)] == [3, 1]
    assert reader.damaged_lines == 1


@given(st.binary(max_size=300), st.integers(0, 400))
def test_damage_costs_the_lines_that_it_is_in(damage: bytes, at: int) -> None:
    disk = ModelDisk()
    PastFiles(FOLDER, disk).append(lines(*range(20)), BOUNDS, BEGIN_NS)
    path = f"{FOLDER}/{disk.names(FOLDER)[0]}"
    content = disk.peek(path)
    head = content.index(b"\n") + 1
    at += head
    disk.poke(path, content[:at] + damage + content[at + len(damage) :])

    found = numbers_in(disk)

    length = len(lines(1)[0])
    hurt = {(each - head) // length for each in range(at, at + len(damage))}
    # What the damage happens to repeat is no damage; a lost line end costs both lines.
    whole = [n for n in range(20) if n not in hurt and n - 1 not in hurt]
    assert set(whole) <= set(found) <= set(range(20))
    assert found == sorted(found, reverse=True)


def test_a_piece_without_lines_is_read_within_bounded_memory() -> None:
    disk = ModelDisk()
    PastFiles(FOLDER, disk).append(lines(1), BOUNDS, BEGIN_NS)
    path = f"{FOLDER}/{disk.names(FOLDER)[0]}"
    disk.poke(path, disk.peek(path) + b"x" * (40 * LONGEST_LINE) + b"\n" + lines(2)[0])
    longest = 0

    class Counting(ModelDisk):
        def pread(self, fd: int, size: int, offset: int) -> bytes:
            nonlocal longest
            longest = max(longest, size)
            return super().pread(fd, size, offset)

    reader = PastReader(FOLDER, Counting(disk.platter))
    assert [int(each.queue_id) for each in reader.endings(lambda _: True)] == [2, 1]
    assert reader.damaged_lines > 0
    assert longest <= 256 * 1024


def test_a_line_that_is_being_written_is_no_damage_but_an_old_tail_is() -> None:
    disk = ModelDisk()
    disk.now_ns = BEGIN_NS
    files = PastFiles(FOLDER, disk)
    files.append(lines(1), BOUNDS, BEGIN_NS)
    path = f"{FOLDER}/{disk.names(FOLDER)[0]}"
    disk.poke(path, disk.peek(path) + lines(2)[0][:20])

    reader = PastReader(FOLDER, disk)
    assert [int(each.queue_id) for each in reader.endings(lambda _: True)] == [1]
    assert reader.damaged_lines == 0

    files.append(lines(3), BOUNDS, BEGIN_NS + DAY_NS)  # a new piece: the one before is old
    assert [int(each.queue_id) for each in reader.endings(lambda _: True)] == [3, 1]
    assert reader.damaged_lines == 1


def test_a_piece_of_another_version_or_of_others_is_not_added_to(tmp_path: Path) -> None:
    files = PastFiles(str(tmp_path), RealDisk())
    (tmp_path / "README").write_text("mine")
    (tmp_path / "0000000004").write_text("relay-recent 2 1\nwhat it may be\n")
    (tmp_path / "0000000004").chmod(0o600)

    files.append(lines(1), BOUNDS, BEGIN_NS)
    (tmp_path / "0000000005").chmod(0o666)
    files.append(lines(2), BOUNDS, BEGIN_NS)

    reader = PastReader(str(tmp_path), RealDisk())
    assert [int(each.queue_id) for each in reader.endings(lambda _: True)] == [2, 1]
    assert reader.unread == ["0000000004: not of this version"]
    assert (tmp_path / "0000000004").read_text() == "relay-recent 2 1\nwhat it may be\n"
    assert (tmp_path / "README").read_text() == "mine"


def test_the_headroom_of_new_mail_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk()
    monkeypatch.setattr(disk, "free", lambda _: (HEADROOM_BYTES, None))

    with pytest.raises(NoHeadroom):
        PastFiles(str(tmp_path / "n"), disk).append(lines(1), BOUNDS, BEGIN_NS)

    assert list((tmp_path / "n").iterdir()) == []


def test_nothing_kept_is_nothing_read() -> None:
    disk = ModelDisk()
    reader = PastReader(FOLDER, disk)

    assert list(reader.endings(lambda _: True)) == []
    assert (reader.since_ns, reader.unread, reader.damaged_lines) == (None, [], 0)


def test_a_piece_of_a_clock_that_was_ahead_is_not_added_to() -> None:
    """Else it would not be old for years, and what it has would be kept for as long."""
    disk = ModelDisk()
    files = PastFiles(FOLDER, disk)
    disk.now_ns = BEGIN_NS + 4000 * DAY_NS
    files.append(lines(0), BOUNDS, disk.now_ns)

    for number in range(1, 30):
        disk.now_ns = BEGIN_NS + number * DAY_NS
        files.append([encode(ending(number, disk.now_ns))], BOUNDS, disk.now_ns)

    assert numbers_in(disk)[-2] >= 29 - 9
