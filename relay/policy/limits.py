"""A limit as a policy states it: exactly one unit, a number of at least 1 and a window.  Pure."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from relay.mail.formats import in_seconds, period, size
from relay.policy.surroundings import broken
from relay.policy.units import AnyOrder, PositiveInt, Section, Size, choice, duration_ns, unfit

_CALENDAR = {"hour": "1h", "day": "24h", "month": "31d"}
_ENDED = "is no key any more: write one limit that always holds, such as `per: 24h`"
"""What took its place is in docs/policy.md."""


def _per(value: object) -> int:
    if isinstance(value, str) and value in _CALENDAR:
        written = f"write {_CALENDAR[value]}, which never exceeds it"
        raise unfit(
            f"expected a duration: a window slides and has no {value} of the calendar; {written}", value
        )
    return duration_ns(value)


class LimitSettings(Section):
    retired: ClassVar = {key: f"{key} {_ENDED}" for key in ("hours", "ramp", "zone")}

    messages: PositiveInt | None = None
    recipients: PositiveInt | None = None
    bytes: Size | None = None
    """Of content, as MAIL declares it."""
    connections: Annotated[PositiveInt | None, Field(validate_default=True)] = None
    """How many are opened, whatever goes over them."""
    per_ns: Annotated[int, BeforeValidator(_per)] = Field(alias="per")
    for_each: Annotated[
        Literal["sender", "sender_domain", "recipient_domain", "client", "user"] | None,
        choice(["sender", "sender_domain", "recipient_domain", "client", "user"]),
    ] = None
    """Each of these has a window of its own; default: one window over all."""

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
    def label(self) -> str:
        """Such as `8 messages per 60s for each sender`, for a metric and a status line."""
        return f"{self.count} {self.unit} per {in_seconds(self.per_ns)}{self._each}"

    def words(self) -> str:
        """Return the same for people: `8 messages in any 1m for each sender`."""
        counted = size(self.count) if self.unit == "bytes" else f"{self.count} {self.unit}"
        return f"{counted} in any {period(self.per_ns)}{self._each}"

    @property
    def _each(self) -> str:
        return f" for each {self.for_each.replace('_', ' ')}" if self.for_each else ""


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
