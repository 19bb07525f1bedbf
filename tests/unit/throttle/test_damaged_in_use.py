"""A history that somebody damages while relays use it: no window holds more, whatever becomes of the file.

What is cut, flipped, added, removed or put back is the history alone: its lock says how far it
reached.  Nor is the power cut, which may take the end of what the lock says.
"""

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from relay.clock import SECOND_NS
from relay.spool.disk.durable import Disk
from relay.throttle import history
from relay.throttle.history_format import HistoryError
from tests.fakes.clock import FakeClock
from tests.unit.throttle.limits import ask, granted, messages, throttle
from tests.unit.throttle.memory_disk import MemoryDisk
from tests.unit.throttle.world import LOCK, LONGEST_NS, PATH, TRANSACTION_NS, World

EVENTS_A_WORLD = 100
WORLDS = 400
KINDS_OF_DAMAGE = 7
LIMITS = [messages(10, seconds=3600)]


class WholeNotes(MemoryDisk):
    """A kill leaves the line of a lock as it was or as it is to be: it is one write within a sector."""

    def write_at(self, fd: int, content: bytes, offset: int) -> None:
        if fd in self._locks:
            self._act("note")
            self._file(fd).write(content, offset)
        else:
            super().write_at(fd, content, offset)


class DamagedWorld(World):
    """One in which a history is damaged between any two events, until its owner begins anew."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.disk = WholeNotes()
        self._copies = [b""]
        self.counted: Counter[str] = Counter()

    def _chances(self) -> list[tuple[int, Callable[[], None]]]:
        left_out = {self._lose_power, self._remove_names, self._fail}
        chances = [(chance, act) for chance, act in super()._chances() if act not in left_out]
        chances += [(5, self._damage), (3, self._copy), (3, self._fail)]
        return [(chance, partial(self._unless_refused, act)) for chance, act in chances]

    def _unless_refused(self, act: Callable[[], None]) -> None:
        try:
            act()
        except HistoryError:
            self.counted["refused"] += 1
            if self.random.random() < 0.1:
                self._begin_anew()

    def _begin_anew(self) -> None:
        """Do what every refusal asks of an owner."""
        for sender in self.senders:
            self._die(sender)
        self._advance(LONGEST_NS + TRANSACTION_NS)
        self.disk.take_away(str(PATH), LOCK)
        self._copies = [b""]
        self.counted["begun anew"] += 1

    def _fail(self) -> None:
        self.disk.fail(
            self.random.choice(["write", "sync", "truncate", "rename", "open_new", "pread", "note"])
        )
        try:
            self._reserve()
        finally:
            self.disk._failures.clear()

    def _copy(self) -> None:
        self._copies.append(self.disk.read(str(PATH)) or b"")

    def _damage(self) -> None:
        content = self.disk.read(str(PATH))
        if content is None:
            return
        damages: list[Callable[[bytes], None]] = [
            self._cut,
            self._cut_behind_a_group,
            self._flip,
            self._add,
            self._remove,
            self._put_back,
            self._put_back_in_place,
        ]
        damage = self.random.choice(damages)
        damage(content)
        self.counted[damage.__name__.strip("_").replace("_", " ")] += 1

    def _cut(self, content: bytes) -> None:
        least = self.random.choice([0, max(0, len(content) - 60)])
        self.disk.overwrite(str(PATH), content[: self.random.randint(least, len(content))])

    def _cut_behind_a_group(self, content: bytes) -> None:
        ends = [at for at in range(len(content)) if content.startswith(b"group ", at)]
        self.disk.overwrite(str(PATH), content[: self.random.choice(ends[-3:] or [0])])

    def _flip(self, content: bytes) -> None:
        if content:
            at = self.random.randrange(self.random.choice([0, max(0, len(content) - 60)]), len(content))
            flipped = bytes([content[at] ^ 1 << self.random.randrange(8)])
            self.disk.overwrite(str(PATH), content[:at] + flipped + content[at + 1 :])

    def _add(self, content: bytes) -> None:
        self.disk.overwrite(str(PATH), content + self.random.choice([b"\n", b"group 40 0", content[-30:]]))

    def _remove(self, content: bytes) -> None:
        del content
        self.disk.take_away(str(PATH))

    def _put_back(self, content: bytes) -> None:
        del content
        self.disk.put(str(PATH), self.random.choice(self._copies))

    def _put_back_in_place(self, content: bytes) -> None:
        del content
        self.disk.overwrite(str(PATH), self.random.choice(self._copies))


def _live(seed: str, number: int) -> Counter[str]:
    """Live through one world; return what happened in it."""
    with pytest.MonkeyPatch.context() as patched:
        # Never rewritten, each time, or now and then.
        if number % 3:
            patched.setattr(history, "COMPACT_ABOVE_BYTES", 0 if number % 3 == 1 else 700)
            patched.setattr(history, "LONGEST_RECORD_BYTES", 10)
        world = DamagedWorld(Random(f"{seed} {number}"))
        try:
            world.live(EVENTS_A_WORLD)
        except AssertionError as error:
            raise AssertionError(f"world {number} of seed {seed}: {error}") from error
        return world.counted + Counter(granted=world.grants)


def test_a_history_damaged_between_any_decisions_is_never_over() -> None:
    counted: Counter[str] = Counter()
    for number in range(WORLDS):
        counted += _live("0", number)

    # Each kind of damage came often, and neither was all refused, nor nothing.
    assert min(counted.values()) > WORLDS / 10
    assert len(counted) == KINDS_OF_DAMAGE + 3
    assert counted["granted"] > counted["refused"]


@pytest.mark.crash
def test_no_damage_in_use_is_over_for_as_long_as_the_budget_allows(
    tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    until, counted, worlds = time.monotonic() + crash_budget_s / 20, Counter[str](), 0
    while time.monotonic() < until:
        counted += _live(str(crash_seed), worlds)
        worlds += 1
    told = ", ".join(f"{count} {what}" for what, count in sorted(counted.items()))
    tell(f"seed {crash_seed}: histories damaged in use in {worlds} worlds, none over: {told}")
    assert worlds


def _content(disk: Disk, path: Path) -> bytes:
    fd = disk.open_read(str(path))
    content = disk.pread(fd, disk.size(fd), 0)
    disk.close(fd)
    return content


def _overwrite(disk: Disk, path: Path, content: bytes) -> None:
    """As `cp` does it."""
    fd = disk.open_update(str(path))
    disk.truncate(fd, 0)
    disk.write_at(fd, content, 0)
    disk.close(fd)


def test_a_group_of_the_same_instant_is_missed_when_it_is_cut_off(
    path: Path, disk: Disk, clock: FakeClock
) -> None:
    one, other = throttle(path, disk, clock, LIMITS), throttle(path, disk, clock, LIMITS)
    assert len(granted(one, *[1] * 5)) == 5
    known = _content(disk, path)
    assert len(granted(other, *[1] * 5)) == 5
    _overwrite(disk, path, known)

    with pytest.raises(HistoryError, match="its end is gone or damaged"):
        ask(one, 1)
    with pytest.raises(HistoryError, match="its end is gone or damaged"):
        ask(throttle(path, disk, clock, LIMITS), 1)
    assert granted(other, 1) == []


def test_what_is_sent_right_after_a_reboot_is_missed_when_it_is_cut_off(
    path: Path, disk: Disk, clock: FakeClock
) -> None:
    throttle(path, disk, clock, LIMITS).flush()
    granted(throttle(path, disk, clock, LIMITS), 1)
    clock.reboot()
    clock.step_wall(-3600 * SECOND_NS)
    relay = throttle(path, disk, clock, LIMITS)
    relay.flush()
    moved = _content(disk, path)
    assert len(granted(relay, *[1] * 9)) == 9
    relay.close()
    _overwrite(disk, path, moved)

    with pytest.raises(HistoryError, match="its end is gone or damaged"):
        ask(throttle(path, disk, clock, LIMITS), 1)


def test_another_history_of_the_same_length_is_not_added_to(path: Path, disk: Disk, clock: FakeClock) -> None:
    """As where an owner takes one account's file for that of another."""
    foreign = path.with_name("other")
    relays = [throttle(each, disk, clock, LIMITS) for each in (foreign, path)]
    for relay in relays:
        clock.advance(3 * 3600 * SECOND_NS)
        assert len(granted(relay, *[1] * 9)) == 9
    content = _content(disk, foreign)
    assert len(content) == len(_content(disk, path))
    _overwrite(disk, path, content)

    assert len(granted(relays[1], 1, 1)) == 1
    # All nine are in the file again: by the other's, which are of another hour, there would be room.
    assert granted(throttle(path, disk, clock, LIMITS), 1) == []


def test_what_is_overwritten_without_a_mark_grants_nothing(path: Path, disk: Disk, clock: FakeClock) -> None:
    relay = throttle(path, disk, clock, LIMITS)
    granted(relay, 1)
    _overwrite(disk, path, _content(disk, path).swapcase())
    _overwrite(disk, Path(f"{path}.lock"), b"")

    with pytest.raises(HistoryError, match="gone, cut or overwritten, and its lock does not say how far"):
        ask(relay, 1)
