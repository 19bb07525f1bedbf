"""How old a message is: the time that a relay of its spool witnessed since it came in.  Pure.

The wall clock may be wrong on either side of a restart: a machine without a battery starts in the
past, and NTP sets it right later.  So no message grows older by it.  A message has the boot and the
boottime of its acceptance, and within that boot its age is exact.  Over boots a small record goes on:
for each stretch of one boot in which relays of this spool ran, from when until when.

The law: **a message is never taken to be older than it is.**  What no relay witnessed is no age: the
time that the host was off, and what came behind the last record before a crash.
The price: a message expires later by that time.

A boot that the record does not know (it was lost, or the message came from another spool) counts from
when a relay first met a message of it.  So does a message of a version that kept no boot, and no
longer than the wall clock says.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

MOST_STRETCHES = 200
"""Boots that are remembered: a message of an older one counts from when it is met again."""

Here = Callable[[str, int], int | None]
"""From a boot and an instant of it to the instant in this boot; None for an unknown boot."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Time of one boot in which relays of one spool ran, or the boot went on between two of them."""

    boot_id: str
    from_ns: int
    """Boottime."""
    until_ns: int
    """Boottime: the last that was recorded."""
    begins_at_ns: int
    """What had been witnessed before it."""

    @property
    def ends_at_ns(self) -> int:
        """Return what had been witnessed at its end."""
        return self.begins_at_ns + self.until_ns - self.from_ns


@dataclass(frozen=True, slots=True)
class BootsRecord:
    stretches: tuple[Stretch, ...] = ()
    met_at_ns: dict[str, int] = field(default_factory=dict)
    """Of boots without a stretch: what had been witnessed when a message of it was first met."""

    def fault(self) -> str:
        """Return what makes no sense in it, or nothing."""
        witnessed_ns = 0
        for stretch in self.stretches:
            if stretch.until_ns < stretch.from_ns or stretch.begins_at_ns < witnessed_ns:
                return "its stretches are out of order"
            witnessed_ns = stretch.ends_at_ns
        is_early = any(at_ns > witnessed_ns for at_ns in self.met_at_ns.values())
        return "a message was met in the future" if is_early else ""


class Boots:
    def __init__(self, boot_id: str, now_ns: int, record: BootsRecord | None = None) -> None:
        """Go on from what was kept; `now_ns` is boottime."""
        record = record or BootsRecord()
        self._stretches = list(record.stretches)
        self._met_at_ns = dict(record.met_at_ns)
        last = self._stretches[-1] if self._stretches else None
        if last is None or last.boot_id != boot_id or last.until_ns > now_ns:
            # Also where this boot comes back after another one: the spool was elsewhere meanwhile.
            begins_at_ns = 0 if last is None else last.ends_at_ns
            self._stretches.append(Stretch(boot_id, now_ns, now_ns, begins_at_ns))
        self._boot_id = boot_id

    def record(self, now_ns: int) -> BootsRecord:
        last = self._stretches[-1]
        self._stretches[-1] = replace(last, until_ns=max(last.until_ns, now_ns))
        del self._stretches[:-MOST_STRETCHES]
        return BootsRecord(tuple(self._stretches), dict(self._met_at_ns))

    def forget_but(self, boot_ids: Collection[str]) -> None:
        for boot_id in self._met_at_ns.keys() - set(boot_ids):
            del self._met_at_ns[boot_id]

    def arrived_at_ns(self, boot_id: str, boottime_ns: int, now_ns: int, wall_age_ns: int) -> int:
        """Return when a message came in, in this boot's time, or later; `wall_age_ns` is by the wall clock.

        `boot_id` is empty, and `boottime_ns` nothing, where its version kept neither.
        """
        if boot_id == self._boot_id:
            return min(boottime_ns, now_ns)
        here_ns = self.here(boot_id, boottime_ns) if boot_id else None
        if here_ns is None:
            met_at_ns = self._met_at_ns.setdefault(boot_id, self._witnessed_ns(now_ns))
            here_ns = now_ns - (self._witnessed_ns(now_ns) - met_at_ns)
        if not boot_id:
            here_ns = max(here_ns, now_ns - max(0, wall_age_ns))
        return min(here_ns, now_ns)

    def here(self, boot_id: str, at_ns: int) -> int | None:
        """Return an instant in this boot's time, at most the last witnessed; None for an unknown boot."""
        if boot_id == self._boot_id:
            return at_ns
        its = [stretch for stretch in self._stretches if stretch.boot_id == boot_id]
        if not its:
            return None
        stretch = next((each for each in reversed(its) if each.from_ns <= at_ns), its[0])
        current = self._stretches[-1]
        witnessed_ns = stretch.begins_at_ns + min(at_ns, stretch.until_ns) - stretch.from_ns
        return current.from_ns + witnessed_ns - current.begins_at_ns

    def _witnessed_ns(self, now_ns: int) -> int:
        current = self._stretches[-1]
        return current.begins_at_ns + now_ns - current.from_ns
