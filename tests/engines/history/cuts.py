"""Runs of the throttle on a disk whose power can be cut, and what must hold after any crash.

The judge is written from the promise alone.  A slot is occupied from its reservation
until a period after its transaction ended, or after its deadline where nobody knows of an
end.  So at every instant after a crash what is occupied lies between two sums:

- at least all that was granted, until a period after their true ends;
- at most all that was granted or asked for when the crash came, until a period after
  their ends where `flush` or `reserve` has returned since, else after their deadlines.

In true time, also over a reboot: the wall clock is right here (tests.engines.history.test_boots and
test_never_over let it err).  And no crash makes a history unreadable: that would stop the account.
"""

import copy
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from relay.clock import SECOND_NS
from relay.throttle.admission import Request
from relay.throttle.file_history import REPLACE_ABOVE_BYTES
from relay.throttle.history import HistoryError
from relay.throttle.limit import PlainLimit
from relay.throttle.throttle import Reservation
from tests.engines.history.limits import TRANSACTION_NS, messages, recipients, throttle
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.platter import Model, Platter
from tests.fakes.tally import Tally

PATH = Path("/var/history/isp")
LIMITS = (messages(3, seconds=60), recipients(5, seconds=100))
WANTED = 2
"""Recipients that every request asks for; the third of three gets what is left of five: one."""
WAIT_NS = 30 * SECOND_NS
DOWN_NS, BOOT_NS = 7 * SECOND_NS, 5 * SECOND_NS


class Overrun(AssertionError):  # noqa: N818 - what it is
    """A slot was freed early, or one is occupied that nobody asked for, or the account is stuck."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One transaction in true time."""

    started_ns: int
    deadline_ns: int
    recipients: int
    is_granted: bool = False
    ended_ns: int | None = None
    is_end_durable: bool = False

    def weight(self, unit: str) -> int:
        return 1 if unit == "messages" else self.recipients

    @property
    def least_end_ns(self) -> int:
        return self.deadline_ns if self.ended_ns is None else self.ended_ns

    @property
    def most_end_ns(self) -> int:
        return self.ended_ns if self.ended_ns is not None and self.is_end_durable else self.deadline_ns


@dataclass(frozen=True, slots=True)
class Instant:
    """One moment of a run: the platter, all that was told, and what time it is."""

    platter: Platter
    slots: tuple[Slot, ...]
    clock: FakeClock
    true_ns: int
    step: str

    @property
    def told(self) -> int:
        # By the wall clock, which is right, no two moments of equal numbers differ.
        parts = [
            (s.started_ns, s.least_end_ns, s.most_end_ns, s.recipients, s.is_granted) for s in self.slots
        ]
        return hash((*parts, self.true_ns, self.clock.boottime_ns(), self.clock.boot_id()))


class Account:
    """Two processes that send through one account, A and B."""

    def __init__(
        self,
        disk: ModelDisk,
        clock: FakeClock,
        true_ns: int = 0,
        slots: Sequence[Slot] = (),
        replace_above_bytes: int = REPLACE_ABOVE_BYTES,
    ) -> None:
        self.clock = clock
        self.slots = list(slots)
        self.instants: list[Instant] = []
        self.failed_at = 0
        self.disks = (disk, disk.another())
        self._true_of_boot_ns = true_ns - clock.boottime_ns()
        self.throttles = [
            throttle(PATH, each, clock, LIMITS, replace_above_bytes=replace_above_bytes)
            for each in self.disks
        ]
        self._owners: dict[int, int] = {}
        self._flying: tuple[list[tuple[int, Reservation]], ...] = ([], [])
        for each in self.disks:
            each.after = lambda each=each: self.keep(each)

    @property
    def true_ns(self) -> int:
        return self._true_of_boot_ns + self.clock.boottime_ns()

    def keep(self, disk: ModelDisk) -> None:
        """Keep this instant."""
        if disk.has_failed and not self.failed_at:
            self.failed_at = len(self.instants)
        step = disk.steps[-1] if disk.steps else "start"
        clock, true_ns = copy.copy(self.clock), self.true_ns
        self.instants.append(Instant(disk.platter.copy(), tuple(self.slots), clock, true_ns, step))

    def reserve(self, which: int, count: int = 1) -> None:
        """Ask for slots; what was asked for may be on the disk whatever comes."""
        first, deadline_ns = len(self.slots), self.true_ns + TRANSACTION_NS
        self.slots += [Slot(self.true_ns, deadline_ns, WANTED)] * count
        answers = self.throttles[which].reserve([Request(WANTED)] * count)
        granted = [answer for answer in answers if isinstance(answer, Reservation)]
        self._flying[which].extend(enumerate(granted, first))
        self._owners.update((first + number, which) for number in range(len(granted)))
        self.slots[first:] = [
            replace(slot, is_granted=True, recipients=answer.recipients)
            for slot, answer in zip(self.slots[first:], granted, strict=False)
        ]
        self._ends_are_durable(which)
        self.keep(self.disks[which])

    def settle(self, which: int) -> None:
        """End the oldest transaction of a process, if it has one."""
        if self._flying[which]:
            index, reservation = self._flying[which].pop(0)
            self.throttles[which].settle(reservation, self.clock.boottime_ns())
            self.slots[index] = replace(self.slots[index], ended_ns=self.true_ns)
            self.keep(self.disks[which])

    def flush(self, which: int) -> None:
        self.throttles[which].flush()
        self._ends_are_durable(which)
        self.keep(self.disks[which])

    def wait(self) -> None:
        self.clock.advance(WAIT_NS)
        self.keep(self.disks[0])

    def _ends_are_durable(self, which: int) -> None:
        for index, slot in enumerate(self.slots):
            if slot.ended_ns is not None and self._owners.get(index) == which:
                self.slots[index] = replace(slot, is_end_durable=True)


DEEDS: dict[str, Callable[[Account], None]] = {
    "A reserves": lambda account: account.reserve(0),
    "A reserves two": lambda account: account.reserve(0, 2),
    "B reserves": lambda account: account.reserve(1),
    "A settles": lambda account: account.settle(0),
    "B flushes": lambda account: account.flush(1),
    "A flushes": lambda account: account.flush(0),
    "time passes": Account.wait,
}


def runs(length: int) -> Iterator[tuple[str, ...]]:
    """Yield every run of so many deeds that begins with a reservation: before it there is no file."""
    for rest in itertools.product(DEEDS, repeat=length - 1):
        for first in ("A reserves", "A reserves two"):
            yield (first, *rest)


def instants_of(
    run: Sequence[str],
    model: Model,
    fault: Fault | None = None,
    replace_above_bytes: int = REPLACE_ABOVE_BYTES,
) -> list[Instant]:
    """Return every instant of the last deed of a run; with a fault, of A's disk, all from when it struck."""
    account = Account(ModelDisk(Platter(model)), FakeClock(), replace_above_bytes=replace_above_bytes)
    if fault is not None:
        account.disks[0].fail(fault)
    last = 0
    for deed in run:
        last = len(account.instants)
        try:
            DEEDS[deed](account)
        except HistoryError:
            # Nothing was granted; it goes on as the service does, and asks again later.
            if not account.disks[0].has_failed:
                raise
    if fault is None:
        return account.instants[last:]
    return account.instants[account.failed_at :] if account.failed_at else []


Images = Iterator[tuple[str, ModelDisk, bool]]
"""How it came about, the disk, and whether the machine was started anew."""


def crashes(instant: Instant, rng: random.Random, most: int) -> Images:
    """Yield what a kill leaves of an instant, and what a cut may leave."""
    yield f"killed after {instant.step!r}", ModelDisk(instant.platter).after_kill(), False
    for number, image in enumerate(ModelDisk(instant.platter).cuts(rng, most)):
        yield f"cut after {instant.step!r} keeping choice {number}", image, True


class Judge:
    """Judges crash states of a history, each different one once."""

    def __init__(self, replace_above_bytes: int = REPLACE_ABOVE_BYTES) -> None:
        self.replace_above_bytes = replace_above_bytes
        self.tally = Tally()

    def judge(
        self,
        instants: Sequence[Instant],
        rng: random.Random,
        most: int,
        *,
        story: str,
        is_second: bool = False,
    ) -> None:
        """Judge what crashes leave of these instants; Overrun says how to get there."""
        for instant in instants:
            for label, image, is_reboot in crashes(instant, rng, most):
                self.tally.offered += 1
                state = hash((image.fingerprint(), instant.told, is_reboot))
                if state in self.tally.states:
                    continue
                try:
                    self._check(image, instant, is_reboot=is_reboot)
                except (Overrun, HistoryError) as error:
                    raise Overrun(f"{story}, {label}: {error}") from error
                self.tally.states.add(state)
                if is_second:
                    self.tally.second.add(state)

    def crash_twice(self, instants: Sequence[Instant], rng: random.Random, most: int, *, story: str) -> None:
        """Recover from one crash, send on, and crash at every instant of that."""
        instant = rng.choice(instants)
        label, image, is_reboot = rng.choice(list(crashes(instant, rng, 8)))
        account = self._after(image, instant, is_reboot=is_reboot)
        for deed in ("A flushes", "B reserves", "A settles", "A reserves"):
            DEEDS[deed](account)
        self.judge(account.instants, rng, most, story=f"{story}, {label}", is_second=True)

    def _after(self, image: ModelDisk, instant: Instant, *, is_reboot: bool) -> Account:
        """Return the two processes as they are started after a crash."""
        clock, true_ns = copy.copy(instant.clock), instant.true_ns
        if is_reboot:
            clock.reboot(DOWN_NS, boottime_ns=BOOT_NS)
            true_ns += DOWN_NS + BOOT_NS
        return Account(image, clock, true_ns, instant.slots, self.replace_above_bytes)

    def _check(self, image: ModelDisk, instant: Instant, *, is_reboot: bool) -> None:
        asked = image.after_kill()
        image.platter.is_safe = asked.platter.is_safe = True
        found = self._after(image, instant, is_reboot=is_reboot)
        first, clock = found.throttles[0], found.clock
        first.flush()
        again = found.throttles[1]
        again.flush()
        if again.usage() != first.usage():
            raise Overrun(f"recovering twice is not recovering once: {first.usage()}, {again.usage()}")
        _check_what_is_granted(self._after(asked, instant, is_reboot=is_reboot))
        ends = {end for slot in found.slots for end in (slot.least_end_ns, slot.most_end_ns)}
        edges = {end + limit.per_ns - early for end in ends for limit in LIMITS for early in (1, 0)}
        for true_ns in sorted({found.true_ns, *(edge for edge in edges if edge > found.true_ns)}):
            clock.advance(true_ns - found.true_ns)
            for limit, usage in zip(LIMITS, first.usage(), strict=True):
                least, most = _bounds(found.slots, limit, true_ns)
                if not least <= usage.used <= most:
                    late_s = (true_ns - instant.true_ns) / SECOND_NS
                    raise Overrun(f"{usage.used} of {limit.label}, not {least} to {most}, {late_s:g} s later")


def _check_what_is_granted(found: Account) -> None:
    """Ask for more than there can be: what is granted must leave room for all that is occupied."""
    answers = found.throttles[0].reserve([Request(WANTED)] * (LIMITS[0].count + 1))
    granted = [answer for answer in answers if isinstance(answer, Reservation)]
    for limit in LIMITS:
        occupied, _ = _bounds(found.slots, limit, found.true_ns)
        more = len(granted) if limit.unit == "messages" else sum(answer.recipients for answer in granted)
        if occupied + more > limit.count:
            raise Overrun(f"{more} granted beside {occupied} of {limit.label}")


def _bounds(slots: Sequence[Slot], limit: PlainLimit, true_ns: int) -> tuple[int, int]:
    """Return the least and the most that may be occupied at an instant."""
    weights = [(slot, slot.weight(limit.unit)) for slot in slots]
    least = sum(w for slot, w in weights if slot.is_granted and true_ns < slot.least_end_ns + limit.per_ns)
    return least, sum(w for slot, w in weights if true_ns < slot.most_end_ns + limit.per_ns)
