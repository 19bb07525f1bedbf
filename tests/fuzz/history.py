"""A history of any bytes: slots that stay occupied as it says, or HistoryError; never more than N."""

from pathlib import Path

from relay.clock import SECOND_NS
from relay.throttle.history import Ended, Event, HistoryError, Issued, Slot
from relay.throttle.history_format import At, DamagedHistory, group, header, read_groups, read_header
from tests.engines.history.limits import granted, messages, throttle
from tests.fakes.clock import START_WALL_NS, FakeClock
from tests.fakes.disk import ModelDisk
from tests.fuzz.choices import Choices
from tests.fuzz.work import CountedBytes, bounded, must_be_shown

PATH = Path("/history/isp")
LIMITS = [messages(3, seconds=60)]
BOOTS = [FakeClock().boot_id(), "another-boot", ""]
NOW_NS = FakeClock().boottime_ns()
TOKENS = [b"\n", b" ", b"00000000 [[1,2,3]]\n", b'["ended",1,2]', b"[", b"\0" * 512, b"-", b"1e9", b"true"]


def charged(slot_id: int, at_ns: int, count: int) -> Slot:
    return Slot(slot_id, at_ns, at_ns, count, count, is_open=False)


def nearly_valid(choices: Choices) -> bytes:
    def instant() -> int:
        return NOW_NS + (choices.number(200) - 100) * SECOND_NS

    parts = [header(choices.pick(BOOTS) or "-")]
    for _ in range(choices.number(4)):
        events: list[Event] = []
        for _ in range(choices.number(4)):
            count = choices.number(4) - (choices.number(16) == 15) * 2
            match choices.number(4):
                case 0:
                    events.append(Slot(choices.number(5), instant(), instant(), count, 1))
                case 1:
                    events.append(Ended(choices.number(5), instant()))
                case 2:
                    events.append(Issued(choices.number(9)))
                case _:
                    events.append(charged(choices.number(3), instant(), count))
        parts.append(group(At(instant(), START_WALL_NS + choices.number(3)), events))
    return choices.spoiled(b"".join(parts), TOKENS)


def target(raw: bytes) -> None:
    choices = Choices(raw)
    content = nearly_valid(choices) if choices.yes() else choices.rest()
    _read(content)
    disk, clock = ModelDisk(), FakeClock()
    disk.plant(str(PATH.parent), kind="folder")
    disk.plant(str(PATH), content)
    try:
        with bounded(3_000 + 100 * content.count(b"\n")):
            account = throttle(PATH, disk, clock, LIMITS)
            before = len(granted(account, 1))
    except HistoryError as error:
        must_be_shown(error)
        assert disk.peek(str(PATH)) == content or disk.steps
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


def throttle_of(disk: ModelDisk, clock: FakeClock) -> int:
    another = throttle(PATH, disk, clock, LIMITS)
    another.flush()
    return another.usage()[0].used


def _read(content: bytes) -> None:
    counted = CountedBytes(content)
    try:
        with bounded(500 + 60 * content.count(b"\n")):
            _, start = read_header(counted)
            found = read_groups(counted, start)
    except DamagedHistory as error:
        must_be_shown(error)
        return
    finally:
        assert counted.copied <= 8 * len(content) + 1000, "the same octets are looked at again and again"
    assert start <= found.end <= len(content)
    if found.at is not None:
        again = read_groups(group(found.at, found.events), 0)
        assert (again.events, again.at) == (found.events, found.at)
    for event in found.events:
        if isinstance(event, Slot):
            assert min(event[3:7]) >= 0, "a negative weight makes room for others"


SEEDS = [
    b"\0" + header(BOOTS[0]) + group(At(NOW_NS, 7), [Slot(1, NOW_NS, NOW_NS + SECOND_NS, 1, 1)]),
    b"\0" + header(BOOTS[0]) + group(At(NOW_NS, 7), [charged(1, NOW_NS - 1, -5)]),
    b"\0" + header(BOOTS[1]) + group(At(NOW_NS, 7), [Ended(1, 2), charged(0, NOW_NS, 1)]),
    b"\0" + header(BOOTS[0]) + b"00000000 [[1,2,3]]\n" * 400,
    b"\1" + bytes(range(80)),
]
