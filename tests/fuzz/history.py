"""A history of any bytes: slots that stay occupied as it says, or HistoryError; never more than N."""

from pathlib import Path

from relay.clock import SECOND_NS
from relay.throttle.history_format import (
    At,
    Charged,
    Ended,
    Highest,
    HistoryError,
    Record,
    Reserved,
    group,
    header,
    read_groups,
    read_header,
)
from tests.engines.history.limits import granted, messages, throttle
from tests.engines.history.memory_disk import MemoryDisk
from tests.fakes.clock import START_WALL_NS, FakeClock
from tests.fuzz.choices import Choices
from tests.fuzz.work import CountedBytes, bounded, must_be_shown

PATH = Path("/history/isp")
LIMITS = [messages(3, seconds=60)]
BOOTS = [FakeClock().boot_id(), "another-boot", ""]
NOW_NS = FakeClock().boottime_ns()
TOKENS = [b"\n", b" ", b"group 20 00000000\n", b"group 999999999 ", b"at 1 2 3\n", b"\0" * 512, b"-", b"_0"]


def nearly_valid(choices: Choices) -> bytes:
    """Return a history of right checksums whose numbers are any, and perhaps damage on top of it."""

    def instant() -> int:
        return NOW_NS + (choices.number(200) - 100) * SECOND_NS

    parts = [header(choices.pick(BOOTS) or "-")]
    for _ in range(choices.number(4)):
        records: list[Record] = []
        for _ in range(choices.number(4)):
            count = choices.number(4) - (choices.number(16) == 15) * 2
            match choices.number(3):
                case 0:
                    records.append(Reserved(instant(), instant(), count, 1))
                case 1:
                    records.append(Ended(instant(), instant()))
                case _:
                    records.append(Charged(instant(), count, count))
        parts.append(group(At(instant(), START_WALL_NS, START_WALL_NS + choices.number(3)), records))
    return choices.spoiled(b"".join(parts), TOKENS)


def target(raw: bytes) -> None:
    choices = Choices(raw)
    content = nearly_valid(choices) if choices.yes() else choices.rest()
    _read(content)
    disk, clock = MemoryDisk(), FakeClock()
    disk.put(str(PATH), content)
    try:
        with bounded(3_000 + 100 * content.count(b"\n")):
            account = throttle(PATH, disk, clock, LIMITS)
            before = len(granted(account, 1))
    except HistoryError as error:
        must_be_shown(error)
        assert disk.read(str(PATH)) == content or disk.operations
        return
    # What one process was granted, another one counts: three in all, whatever there was before.
    account.close()
    # A group is a nanosecond later than the one before, and at the edge of the skew that is too late
    # for a clock that stands still.
    clock.advance(SECOND_NS // 1000)
    successor = throttle(PATH, disk, clock, LIMITS)
    assert before + len(granted(successor, 1, 1, 1, 1)) <= 3
    used = successor.usage()[0].used
    assert used >= 3
    assert throttle_of(disk, clock) == used


def throttle_of(disk: MemoryDisk, clock: FakeClock) -> int:
    """Return how full the window is for a process that starts now."""
    another = throttle(PATH, disk, clock, LIMITS)
    another.flush()
    return another.usage()[0].used


def _read(content: bytes) -> None:
    counted = CountedBytes(content)
    try:
        with bounded(500 + 60 * content.count(b"\n")):
            _, start = read_header(counted)
            found = read_groups(counted, start)
    except HistoryError as error:
        must_be_shown(error)
        return
    finally:
        assert counted.copied <= 8 * len(content) + 1000, "the same octets are looked at again and again"
    assert start <= found.end <= len(content)
    if found.at is not None:
        again = read_groups(group(found.at, found.records), 0)
        assert (again.records, again.at) == (found.records, found.at)
    for record in found.records:
        if isinstance(record, Highest):
            assert min(record.most, record.at_most, record.earlier, record.per_ns) >= 0
        elif isinstance(record, Reserved | Charged):
            weights = record.messages, record.recipients, record.connections
            assert min(weights) >= 0 < max(weights), "a negative weight makes room for others"


SEEDS = [
    b"\0" + header(BOOTS[0]) + group(At(NOW_NS, 7, 7), [Reserved(NOW_NS, NOW_NS + SECOND_NS, 1, 1)]),
    b"\0" + header(BOOTS[0]) + group(At(NOW_NS, 7, 7), [Charged(NOW_NS - 1, -5, -5)]),
    b"\0" + header(BOOTS[1]) + group(At(NOW_NS, 7, 7), [Ended(1, 2), Charged(NOW_NS, 1, 1)]),
    b"\0" + header(BOOTS[0]) + b"".join(b"group %d 00000000\n" % (18 * left) for left in range(400, 0, -1)),
    b"\0"
    + header(BOOTS[0])
    + group(At(NOW_NS, 7, 7), [Highest(1, 2, 3, 4, 5, 6, "a@b", "messages", 9, "sender", None)]),
    b"\1" + bytes(range(80)),
]
