"""A history of version 1: what it says counts as it did, and not a slot is lost on the way to version 2."""

import zlib
from pathlib import Path
from random import Random

import pytest

from relay.clock import SECOND_NS
from relay.throttle.history_format import (
    HistoryError,
    group,
    header,
    is_current,
    mark_line,
    read_groups,
    read_header,
)
from tests.fakes.clock import FakeClock
from tests.unit.throttle.limits import (
    PerPeriod,
    connections,
    granted,
    messages,
    openings_ns,
    recipients,
    settle,
    throttle,
    waiting,
)
from tests.unit.throttle.memory_disk import Killed, MemoryDisk

PATH = Path("/history/isp")
LIMITS = [messages(5, seconds=60), recipients(20, seconds=60)]


def _crc(line: str) -> str:
    return f"{zlib.crc32(line.encode()):08x}"


def _version_1(clock: FakeClock) -> bytes:
    """Return what version 1 wrote of 3 messages to 9 recipients: two ended, one compacted, one in flight."""
    now_ns, wall_ns = clock.boottime_ns(), clock.wall_ns()
    head = f"relay-history 1 {clock.boot_id()}"
    lines = "".join(
        [
            f"at {now_ns} {wall_ns} {wall_ns}\n",
            f"charged {now_ns - 30 * SECOND_NS} 1 2\n",
            f"reserved {now_ns - 21 * SECOND_NS} {now_ns + 79 * SECOND_NS} 1 3\n",
            f"reserved {now_ns - 5 * SECOND_NS} {now_ns + 95 * SECOND_NS} 1 4\n",
            f"ended {now_ns - 21 * SECOND_NS} {now_ns - 20 * SECOND_NS}\n",
        ]
    )
    return f"{head} {_crc(head)}\ngroup {len(lines)} {_crc(lines)}\n{lines}".encode()


def test_version_1_counts_and_the_first_append_writes_2(memory: MemoryDisk, clock: FakeClock) -> None:
    memory.put(str(PATH), _version_1(clock))
    account = throttle(PATH, memory, clock, LIMITS)
    account.flush()
    assert [usage.used for usage in account.usage()] == [3, 9]
    assert memory.read(str(PATH)) == _version_1(clock)

    settle(account, clock, *granted(account, 1))
    account.flush()

    content = memory.read(str(PATH))
    assert content is not None
    assert is_current(content)
    again = throttle(PATH, memory, clock, LIMITS)
    again.flush()
    assert [usage.used for usage in again.usage()] == [4, 10]
    openings_s = [(each - clock.boottime_ns()) / SECOND_NS for each in openings_ns(again, clock)]
    assert openings_s == [30, 40, 60]


def test_what_nobody_wrote_whose_it_was_counts_for_everybody(memory: MemoryDisk, clock: FakeClock) -> None:
    memory.put(str(PATH), _version_1(clock))
    account = throttle(PATH, memory, clock, [messages(4, 60, "sender")])

    assert len(granted(account, 1)) == 1
    assert waiting(account).place is not None


@pytest.mark.parametrize("seed", range(40))
def test_death_and_power_cuts_on_the_way_to_version_2_lose_no_slot(seed: int, clock: FakeClock) -> None:
    random = Random(seed)
    memory = MemoryDisk()
    memory.put(str(PATH), _version_1(clock))
    account = throttle(PATH, memory, clock, LIMITS)
    memory.kill_at(seed % 10 + 1, random)
    try:
        granted(account, 1)
    except (Killed, HistoryError):
        pass
    finally:
        memory.cut_power(random)

    after = throttle(PATH, memory, clock, LIMITS)
    after.flush()

    by_messages, by_recipients = after.usage()
    assert 3 <= by_messages.used <= 4
    assert by_recipients.used == by_messages.used + 6


def test_version_1_of_another_boot_is_told_in_this_one(memory: MemoryDisk, clock: FakeClock) -> None:
    memory.put(str(PATH), _version_1(clock))
    clock.reboot(down_ns=5 * SECOND_NS, boottime_ns=5 * SECOND_NS)

    account = throttle(PATH, memory, clock, LIMITS)
    account.flush()

    openings_s = [(each - clock.boottime_ns()) / SECOND_NS for each in openings_ns(account, clock)]
    assert openings_s == [20, 30]
    assert account.usage()[0].used == 3


TODAYS = [
    messages(3, 60),
    recipients(10, 3600, "recipient_domain"),
    connections(2, 60),
    PerPeriod(5, 600 * SECOND_NS, "messages", "lane", "bulk"),
    messages(4, 60, "sender"),
]
WRITTEN = Path(__file__).with_name("version-2.history").read_bytes()
"""Every kind of line, as a relay of the second edition wrote it until 3189 s after the first boot."""


def test_a_history_of_the_second_edition_counts_as_it_did(memory: MemoryDisk) -> None:
    clock = FakeClock()
    clock.advance(2189 * SECOND_NS)
    memory.put(str(PATH), WRITTEN)
    memory.put(f"{PATH}.lock", b"relay-history-end +000001760002189000000000 8d16283a\n")
    account = throttle(PATH, memory, clock, TODAYS, guard_ns=None)
    account.flush()

    assert [usage.used for usage in account.usage()] == [3, 7, 0, 0, 1]
    assert account.usage()[0].opens_at_ns == 3_249_600_000_000
    found = account.audit()
    assert (found.transactions, found.connections, found.in_flight) == (5, 1, 2)
    assert (found.merged, found.without_start) == (4, 0)
    assert [(each.most, each.at_most, each.key) for each in found.findings] == [
        (3, 3, None),
        (5, 7, "x.example"),
        (1, 1, None),
        (3, 3, "bulk"),
        (2, 2, "a@b.example"),
    ]
    assert memory.read(str(PATH)) == WRITTEN


def test_a_history_of_the_second_edition_moves_to_the_next_boot(memory: MemoryDisk) -> None:
    clock = FakeClock()
    clock.advance(2189 * SECOND_NS)
    clock.reboot(down_ns=5 * SECOND_NS)
    memory.put(str(PATH), WRITTEN)
    account = throttle(PATH, memory, clock, TODAYS, guard_ns=None)
    account.flush()

    assert [usage.used for usage in account.usage()] == [3, 7, 0, 0, 1]
    assert account.usage()[0].opens_at_ns == 55_600_000_000
    moved = memory.read(str(PATH)) or b""
    assert (
        b"\nreserved -7000000000 93000000000 1 1 0 - recipient_domain=x.example:1:1 lane=:1:1 sender="
        in moved
    )
    assert b"\ncharged -2007000000000 0 0 1 - -2008000000000\n" in moved


def test_each_line_of_the_third_version_is_written_as_it_was() -> None:
    written = (Path(__file__).parent / "version-3.history").read_bytes()
    boot_id, end = read_header(written)
    content = header(boot_id)
    while end < len(written):
        after = written.find(b"\ngroup ", end) + 1 or len(written)
        contents = read_groups(written[:after], end)
        assert contents.at is not None
        content += group(contents.at, contents.records)
        end = contents.end

    assert content == written
    assert mark_line(1_760_002_189_000_000_000) == b"relay-history-end +000001760002189000000000 8d16283a\n"


def test_sizes_that_version_2_did_not_keep_fill_a_limit_of_bytes(memory: MemoryDisk) -> None:
    """Until they have left: less than what was sent is never claimed."""
    clock = FakeClock()
    clock.advance(2189 * SECOND_NS)
    memory.put(str(PATH), WRITTEN)
    limit = PerPeriod(1 << 30, 100 * SECOND_NS, "bytes")
    account = throttle(PATH, memory, clock, [limit])
    account.flush()

    (used,) = account.usage()
    assert (used.used, account.room()) == (limit.count, 0)
    clock.advance(300 * SECOND_NS)
    assert granted(account, 1)
