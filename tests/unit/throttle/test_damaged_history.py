"""Histories that no crash leaves: their damage is told, and looking at it costs what they are worth."""

import os
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.spool.disk.durable import RealDisk
from relay.throttle.history_format import At, Charged, HistoryError, group, header, read_groups
from relay.throttle.slots import EXACT_ENDS, Slots
from tests.fakes.clock import FakeClock
from tests.fakes.foreign import KINDS, kind_of, plant
from tests.proofs.fuzz.work import CountedBytes
from tests.unit.throttle.limits import granted, messages, settle, throttle
from tests.unit.throttle.memory_disk import MemoryDisk

PATH = Path("/history/isp")
LIMITS = [messages(3, seconds=60)]


@pytest.mark.parametrize("lines", [100, 1000, 4000])
def test_many_heads_of_groups_cost_a_few_times_their_octets(lines: int) -> None:
    content = CountedBytes(b"".join(b"group %d 00000000\n" % (18 * left) for left in range(lines, 0, -1)))

    with pytest.raises(HistoryError, match="a damaged group"):
        read_groups(content, 0)
    assert content.copied <= 6 * len(content)


@pytest.mark.parametrize("claimed", [10, 10**8])
def test_a_torn_end_with_the_beginning_of_a_group_in_it_is_cut(claimed: int) -> None:
    """As where a page of another time came to stand there."""
    whole = group(At(1, 2, 3), [Charged(4, 5, 6)])
    torn = whole[:-1] + b"0\n" + b"group %d 00000000\n" % claimed + b"at 1 2 3\nended 1 2\n"

    found = read_groups(whole + torn, 0)
    assert (found.records, found.end) == ([Charged(4, 5, 6)], len(whole))


def test_a_group_of_a_right_checksum_and_a_negative_weight_is_refused() -> None:
    """It would make room for as many more."""
    disk, clock = MemoryDisk(), FakeClock()
    now_ns = clock.boottime_ns()
    disk.put(str(PATH), header(clock.boot_id()) + group(At(now_ns, 7, 7), [Charged(now_ns, -5, -5)]))

    with pytest.raises(HistoryError, match="cannot read"):
        granted(throttle(PATH, disk, clock, LIMITS), 1)


def test_a_torn_end_whose_cut_fails_is_written_anew() -> None:
    disk, clock = MemoryDisk(), FakeClock()
    account = throttle(PATH, disk, clock, LIMITS)
    settle(account, clock, *granted(account, 1))
    account.flush()
    account.close()
    whole = disk.read(str(PATH))
    assert whole is not None
    disk.put(str(PATH), whole + b"group 40 0")
    account = throttle(PATH, disk, clock, LIMITS)
    disk.fail("sync")

    with pytest.raises(HistoryError, match="Input/output"):
        granted(account, 1)
    inode = disk.inode(str(PATH))
    assert len(granted(account, 1, 1, 1)) == 2
    # The pages of the old file are marked clean, and nobody knows what of them the disk has.
    assert disk.inode(str(PATH)) != inode


def test_a_cut_that_fails_is_made_at_the_next_look() -> None:
    disk, clock = MemoryDisk(), FakeClock()
    account = throttle(PATH, disk, clock, LIMITS)
    settle(account, clock, *granted(account, 1))
    account.flush()
    whole = (disk.read(str(PATH)) or b"").rstrip(b"\0")
    disk.put(f"{PATH}.copy", whole + b"group 40 0")
    disk.rename(f"{PATH}.copy", str(PATH))
    disk.fail("truncate")

    with pytest.raises(HistoryError, match="Input/output"):
        account.flush()
    account.flush()
    assert disk.read(str(PATH)) == whole
    assert account.usage()[0].used == 1


@pytest.mark.parametrize(
    "left",
    [
        b"",
        b"relay-hist",
        b"relay-history 2 6e2f",
        bytes(300),
        bytes(512) + b"75 1 1\ncharged 3 1 1",
        b"relay-h" + bytes(505) + b"75 1 1\n",
    ],
)
def test_what_a_rewrite_that_died_left_is_removed_by_the_next(left: bytes) -> None:
    disk, clock = MemoryDisk(), FakeClock()
    disk.put(f"{PATH}.new", left)
    account = throttle(PATH, disk, clock, LIMITS)

    assert len(granted(account, 1, 1, 1, 1)) == 3
    assert disk.inode(f"{PATH}.new") is None
    assert disk.inode(f"{PATH}.new.1") is None
    assert len(granted(throttle(PATH, disk, clock, LIMITS), 1)) == 0


@pytest.mark.parametrize("mine", [b"my history\n", bytes(16) + b"mine", b"relay-history of mine"])
def test_a_file_of_others_in_the_way_of_a_rewrite_is_kept(mine: bytes) -> None:
    disk, clock = MemoryDisk(), FakeClock()
    disk.put(f"{PATH}.new.1", b"of an earlier day")
    disk.put(f"{PATH}.new", mine)
    account = throttle(PATH, disk, clock, LIMITS)

    assert len(granted(account, 1, 1, 1, 1)) == 3
    assert disk.inode(f"{PATH}.new") is None
    assert disk.read(f"{PATH}.new.1") == b"of an earlier day"
    assert disk.read(f"{PATH}.new.2") == mine


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_thing_in_the_place_of_a_rewrite_stops_an_account(tmp_path: Path, kind: str) -> None:
    path, victim = tmp_path / "isp", tmp_path / "victim"
    victim.write_text("untouched")
    plant(tmp_path / "isp.new", kind, victim)
    found = kind_of(tmp_path / "isp.new")
    account = throttle(path, RealDisk(), FakeClock(), LIMITS)

    assert len(granted(account, 1, 1, 1, 1)) == 3
    account.close()
    assert not os.path.lexists(tmp_path / "isp.new")
    # What is empty is what a crash leaves there of ours.
    if kind != "an empty file":
        assert kind_of(tmp_path / "isp.new.1") == found
    assert victim.read_text() == "untouched"


def test_ends_of_this_very_instant_are_merged_to_the_nanosecond() -> None:
    slots = Slots()
    slots.judge_by([messages(3 * EXACT_ENDS, seconds=60)], 0)
    now_ns = 100 * SECOND_NS
    ends = [Charged(now_ns - 1000 + number % 7, 1, 2) for number in range(EXACT_ENDS + 700)]
    slots.reset(ends)

    told = [record for record in slots.records(now_ns) if isinstance(record, Charged)]
    assert {record.ended_at_ns for record in told} == {record.ended_at_ns for record in ends}
    assert sum(record.messages for record in told) == len(ends)
    assert sum(record.recipients for record in told) == 2 * len(ends)
