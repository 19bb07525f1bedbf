"""The history on disk: each line as it is written, and a history of the version before this."""

from pathlib import Path

from relay.clock import SECOND_NS
from relay.throttle.history_format import group, header, mark_line, read_groups, read_header
from tests.engines.history.limits import (
    PerPeriod,
    connections,
    messages,
    recipients,
    throttle,
)
from tests.engines.history.memory_disk import MemoryDisk
from tests.fakes.clock import FakeClock

PATH = Path("/history/isp")
LIMITS = [
    messages(3, 60),
    recipients(10, 3600, "recipient_domain"),
    connections(2, 60),
    PerPeriod(5, 600 * SECOND_NS, "messages", "lane", "bulk"),
    messages(4, 60, "sender"),
]


def test_each_line_is_written_as_it_was() -> None:
    written = Path(__file__).with_name("version-3.history").read_bytes()
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


def test_a_history_of_the_second_version_counts_in_the_next_boot(memory: MemoryDisk) -> None:
    clock = FakeClock()
    clock.advance(2189 * SECOND_NS)
    clock.reboot(down_ns=5 * SECOND_NS)
    memory.put(str(PATH), Path(__file__).with_name("version-2.history").read_bytes())
    account = throttle(PATH, memory, clock, LIMITS, guard_ns=None)
    account.flush()

    assert [usage.used for usage in account.usage()] == [3, 7, 0, 0, 1]
    assert account.usage()[0].opens_at_ns == 55_600_000_000
    # Sizes were not kept: a limit of bytes is full until they have left.
    account.replan([PerPeriod(1 << 30, 100 * SECOND_NS, "bytes")], 0)
    assert account.room() == 0
