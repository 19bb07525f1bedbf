"""A limit as a policy states it: exactly one unit, a number of at least 1 and a window.  Pure."""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from relay.mail.formats import in_seconds, period, size
from relay.policy.surroundings import broken
from relay.policy.units import (
    LARGEST_SIZE_BYTES,
    AnyOrder,
    Duration,
    PositiveInt,
    Section,
    Size,
    choice,
    duration_ns,
    size_bytes,
    unfit,
)
from relay.policy.zones.calendar import (
    NOMINAL_NS,
    PERIODS,
    CalendarPeriod,
    OpenHours,
    PeriodName,
    first_instant_of,
    spans_of,
    zone_of,
)

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")
_UNITS = ("messages", "recipients", "connections", "bytes")


def _per(value: object) -> int | str:
    """Take a duration, or the period of a calendar."""
    if value in PERIODS:
        return str(value)
    try:
        return duration_ns(value)
    except ValueError as error:
        if "above zero" in str(error):
            raise
        raise unfit("expected a duration such as 1m or 24h, or one of hour, day and month", value) from None


def _zone(value: object) -> str:
    if isinstance(value, str):
        try:
            zone_of(value)
        except ValueError:
            pass
        else:
            return value
    raise unfit("expected a time zone such as UTC or Europe/Berlin", value)


def _hours(value: object) -> str:
    words = "expected hours such as 'Mon-Fri 08:00-18:00, Sat 10:00-12:00'"
    if not isinstance(value, str):
        raise unfit(words, value)
    try:
        spans_of(value)
    except ValueError as error:
        raise unfit(str(error), value) from None
    return value


def _day(value: object) -> str:
    # YAML reads an unquoted date as one.
    if type(value) is date:
        return value.isoformat()
    if isinstance(value, str) and _DATE.match(value):
        try:
            found = date.fromisoformat(value)
        except ValueError:
            found = None
        if found is not None and 1971 <= found.year <= 9000:
            return value
    raise unfit("expected a day such as 2026-11-01", value)


def _number_or_size(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST_SIZE_BYTES:
        return value
    if isinstance(value, str):
        return size_bytes(value)
    raise unfit("expected a number above zero, of bytes perhaps a size such as 50M", value)


NumberOrSize = Annotated[int, BeforeValidator(_number_or_size)]


class RampSettings(Section):
    """N on its way up: a straight line from one number to another, rounded down."""

    from_count: NumberOrSize = Field(alias="from")
    to: NumberOrSize | None = None
    """Default, and nothing else: the number of the limit."""
    over_ns: Duration = Field(alias="over")
    since: Annotated[str | None, BeforeValidator(lambda value: None if value is None else _day(value))] = None
    """The day on which it begins, in the limit's zone; default: when the account had its first slot."""


@dataclass(frozen=True)
class LimitRamp:
    first: int
    last: int
    over_ns: int
    since_ns: int | None
    """Wall clock."""


class LimitSettings(Section):
    messages: PositiveInt | None = None
    recipients: PositiveInt | None = None
    bytes: Size | None = None
    """Of content, as MAIL declares it."""
    connections: Annotated[PositiveInt | None, Field(validate_default=True)] = None
    """How many are opened, whatever goes over them."""
    per: Annotated[int | PeriodName, BeforeValidator(_per)]
    """A duration, whose windows slide; or hour, day or month, which begin anew by the clock."""
    for_each: Annotated[
        Literal["sender", "sender_domain", "recipient_domain", "client", "user"] | None,
        choice(["sender", "sender_domain", "recipient_domain", "client", "user"]),
    ] = None
    """Each of these has a window of its own; default: one window over all."""
    zone: Annotated[str, BeforeValidator(_zone)] = "UTC"
    """By whose clock the periods, the hours and the ramp's day begin."""
    hours: Annotated[str | None, BeforeValidator(lambda value: None if value is None else _hours(value))] = (
        None
    )
    """Outside of them nothing starts on this account."""
    ramp: RampSettings | None = None

    @field_validator("connections")
    @classmethod
    def _exactly_one_unit(cls, connections: int | None, info: ValidationInfo) -> int | None:
        units = ("messages", "recipients", "bytes")
        given = [unit for unit in units if info.data.get(unit) is not None]
        given += ["connections"] if connections is not None else []
        if len(given) > 1:
            raise broken(f"a limit counts {' or '.join(given)}, not both; write two limits", "..", given[-1])
        if not given and all(unit in info.data for unit in units):
            raise broken("expected a number of messages, of recipients, of bytes or of connections", "..")
        return connections

    @field_validator("for_each")
    @classmethod
    def _no_connection_is_of_a_message(cls, for_each: str | None, info: ValidationInfo) -> str | None:
        if for_each is not None and info.data.get("connections") is not None:
            raise ValueError(
                "a limit on connections cannot have for_each: one connection carries mail of many"
            )
        return for_each

    @field_validator("hours")
    @classmethod
    def _hours_are_of_the_account(cls, hours: str | None, info: ValidationInfo) -> str | None:
        if hours is not None and info.data.get("for_each") is not None:
            raise ValueError("hours close the whole account: write them on a limit without for_each")
        if hours is not None and info.data.get("connections") is not None:
            raise ValueError("hours are of mail: write them on a limit of messages, recipients or bytes")
        return hours

    @field_validator("ramp")
    @classmethod
    def _ramp_leads_to_n(cls, ramp: RampSettings | None, info: ValidationInfo) -> RampSettings | None:
        count = next((info.data[unit] for unit in _UNITS if info.data.get(unit) is not None), None)
        if ramp is None or count is None:
            return ramp
        if ramp.to not in (None, count):
            shown = f"ramp.to is {ramp.to}, and the limit says {count}: write the same, or no `to`"
            raise broken(
                "it is another number than the limit's: write the same, or no `to`", "to", shown=shown
            )
        if ramp.from_count > count:
            raise broken("a ramp goes up: from is above the limit's number", "from")
        return ramp

    @property
    def unit(self) -> Literal["messages", "recipients", "connections", "bytes"]:
        if self.connections is not None:
            return "connections"
        if self.bytes is not None:
            return "bytes"
        return "messages" if self.messages is not None else "recipients"

    @property
    def only(self) -> None:
        """Return None: each key of a `for_each` counts, not one alone."""
        return

    @property
    def count(self) -> int:
        return self.messages or self.recipients or self.bytes or self.connections or 0

    @property
    def per_ns(self) -> int:
        """Return the length of a window; of a calendar's period the nominal one."""
        return self.per if isinstance(self.per, int) else NOMINAL_NS[self.per]

    @property
    def calendar(self) -> CalendarPeriod | None:
        return None if isinstance(self.per, int) else _calendar(self.per, self.zone)

    @property
    def open_hours(self) -> OpenHours | None:
        return None if self.hours is None else _open_hours(self.hours, self.zone)

    @property
    def rise(self) -> LimitRamp | None:
        """Return the ramp as the throttle asks for it."""
        if self.ramp is None:
            return None
        since = self.ramp.since
        since_ns = None if since is None else first_instant_of(date.fromisoformat(since), self.zone)
        return LimitRamp(self.ramp.from_count, self.count, self.ramp.over_ns, since_ns)

    @property
    def label(self) -> str:
        """Such as `8 messages per 60s` or `1073741824 bytes per day UTC`, for a metric and a status line."""
        each = f" for each {self.for_each.replace('_', ' ')}" if self.for_each else ""
        return f"{self.count} {self.unit} per {self._window(in_seconds)}{each}{self._terms()}"

    def words(self) -> str:
        """Return the same for people: `8 messages in any 1m for each sender`, `1G in each day UTC`."""
        each = f" for each {self.for_each.replace('_', ' ')}" if self.for_each else ""
        counted = size(self.count) if self.unit == "bytes" else f"{self.count} {self.unit}"
        kind = "any" if self.calendar is None else "each"
        return f"{counted} in {kind} {self._window(period)}{each}{self._terms()}"

    def _window(self, length: Callable[[int], str]) -> str:
        return length(self.per) if isinstance(self.per, int) else f"{self.per} {self.zone}"

    def _terms(self) -> str:
        zone = "" if self.calendar is not None else f" {self.zone}"
        hours = "" if self.hours is None else f", {self.hours}{zone}"
        if self.ramp is None:
            return hours
        since = "" if self.ramp.since is None else f" since {self.ramp.since}{zone}"
        return f", from {self.ramp.from_count} over {period(self.ramp.over_ns)}{since}{hours}"


@functools.lru_cache(maxsize=256)
def _calendar(unit: PeriodName, zone: str) -> CalendarPeriod:
    # One for all that ask, which remembers where the present period ends.
    return CalendarPeriod(unit, zone)


@functools.lru_cache(maxsize=256)
def _open_hours(text: str, zone: str) -> OpenHours:
    return OpenHours(text, zone)


def _no_two_alike(limits: tuple[LimitSettings, ...]) -> tuple[LimitSettings, ...]:
    first: dict[str, int] = {}
    for index, limit in enumerate(limits):
        other = first.setdefault(limit.label, index)
        if other != index:
            same, all_said = f"the same limit as limits[{other}]", "remove one of the two"
            raise broken(f"{same}: {all_said}", index, shown=f"{same}, {limit.label}: {all_said}")
    return limits


Limits = Annotated[tuple[LimitSettings, ...], AnyOrder, AfterValidator(_no_two_alike)]
"""Those of an upstream.  No two are the same: metrics tell them apart by their labels."""
