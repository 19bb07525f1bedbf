"""A limit: at most N of a unit in any window of length T, or in each period of a calendar.  Pure.

The policy's limits, those that `limit_hints` lowers and the cap on reports all have this shape.
"""

from typing import Literal, Protocol

from relay.mail.formats import period, size

Unit = Literal["messages", "recipients", "connections", "bytes"]
ForEach = Literal["sender", "sender_domain", "recipient_domain", "client", "user", "lane"]
LONGEST_KEY = 96
"""Characters of a key of `ForEach` as written.  Longer ones are cut in front, and may then be one."""


class Calendar(Protocol):
    """Periods of the wall clock, such as the days of a zone."""

    @property
    def unit(self) -> str: ...
    @property
    def zone(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def longest_ns(self) -> int: ...
    def after(self, wall_ns: int) -> int: ...


class Hours(Protocol):
    """When something may start, by the wall clock."""

    @property
    def text(self) -> str: ...
    @property
    def zone(self) -> str: ...
    def opens_at(self, wall_ns: int) -> int: ...


class Ramp(Protocol):
    """N rises from `first` to `last` over `over_ns`; `since_ns` (wall clock) None: since the first slot."""

    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def over_ns(self) -> int: ...
    @property
    def since_ns(self) -> int | None: ...


class Limit(Protocol):
    """One limit: N is `count`, at least 1; T is `per_ns`, of a calendar's periods the nominal length.

    `for_each` says what has a window each, None for one window over all; `only` is the one key that
    it is about, None for all keys; `label` is how metrics, `--json` and the log name it.
    """

    @property
    def unit(self) -> Unit: ...
    @property
    def count(self) -> int: ...
    @property
    def per_ns(self) -> int: ...
    @property
    def for_each(self) -> ForEach | None: ...
    @property
    def only(self) -> str | None: ...
    @property
    def label(self) -> str: ...
    @property
    def calendar(self) -> Calendar | None: ...
    @property
    def open_hours(self) -> Hours | None: ...
    @property
    def rise(self) -> Ramp | None: ...


def plain_words(limit: Limit) -> str:
    """Return a limit as people write it: `100 messages per 1h for each sender`, `1G per day UTC`.

    Programs know it by its `label`, which has the window in seconds.
    """
    each = ""
    if limit.for_each == "lane":
        each = f" for lane {limit.only}"
    elif limit.for_each is not None:
        each = f" for each {limit.for_each.replace('_', ' ')}"
    counted = size(limit.count) if limit.unit == "bytes" else f"{limit.count} {limit.unit}"
    per = period(limit.per_ns)
    if limit.calendar is not None:
        per = f"{limit.calendar.unit} {limit.calendar.zone}"
    ramp = "" if limit.rise is None else f", from {limit.rise.first} over {period(limit.rise.over_ns)}"
    hours = "" if limit.open_hours is None else f", {limit.open_hours.text} {limit.open_hours.zone}"
    return f"{counted} per {per}{each}{ramp}{hours}"


def count_at(count: int, ramp: Ramp | None, elapsed_ns: int) -> int:
    """Return the N that holds so long after a ramp began; it never falls as that grows."""
    if ramp is None:
        return count
    part_ns = max(0, min(elapsed_ns, ramp.over_ns))
    return max(1, min(count, ramp.first + (ramp.last - ramp.first) * part_ns // ramp.over_ns))


def reaches_after_ns(count: int, ramp: Ramp | None, wanted: int) -> int | None:
    """Return how long after a ramp began N is at least `wanted`; None for never."""
    if wanted > count or (ramp is not None and wanted > max(1, ramp.last)):
        return None
    if ramp is None or wanted <= max(1, ramp.first):
        return 0
    return -(-(wanted - ramp.first) * ramp.over_ns // (ramp.last - ramp.first))
