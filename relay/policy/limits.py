"""A limit as a policy states it: exactly one unit, a number of at least 1 and a length.  Pure."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from relay.mail.formats import in_seconds
from relay.policy.surroundings import broken
from relay.policy.units import AnyOrder, Duration, PositiveInt, Section, choice


class LimitSettings(Section):
    messages: PositiveInt | None = None
    recipients: PositiveInt | None = None
    connections: Annotated[PositiveInt | None, Field(validate_default=True)] = None
    """How many are opened, whatever goes over them."""
    per_ns: Duration = Field(alias="per")
    for_each: Annotated[
        Literal["sender", "sender_domain", "recipient_domain", "client", "user"] | None,
        choice(["sender", "sender_domain", "recipient_domain", "client", "user"]),
    ] = None
    """Each of these has a window of its own; default: one window over all."""

    @field_validator("connections")
    @classmethod
    def _exactly_one_unit(cls, connections: int | None, info: ValidationInfo) -> int | None:
        units = ("messages", "recipients")
        given = [unit for unit in units if info.data.get(unit) is not None]
        given += ["connections"] if connections is not None else []
        if len(given) > 1:
            raise broken(f"a limit counts {' or '.join(given)}, not both; write two limits", "..", given[-1])
        if not given and all(unit in info.data for unit in units):
            raise broken("expected a number of messages, of recipients or of connections", "..")
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
    def unit(self) -> Literal["messages", "recipients", "connections"]:
        if self.connections is not None:
            return "connections"
        return "messages" if self.messages is not None else "recipients"

    @property
    def only(self) -> None:
        """Return None: each key of a `for_each` counts, not one alone."""
        return

    @property
    def count(self) -> int:
        return self.messages or self.recipients or self.connections or 0

    @property
    def label(self) -> str:
        """Such as `8 messages per 60s`, for a metric and a status line."""
        each = f" for each {self.for_each.replace('_', ' ')}" if self.for_each else ""
        return f"{self.count} {self.unit} per {in_seconds(self.per_ns)}{each}"


def _no_two_alike(limits: tuple[LimitSettings, ...]) -> tuple[LimitSettings, ...]:
    first: dict[tuple[object, ...], int] = {}
    for index, limit in enumerate(limits):
        other = first.setdefault((limit.unit, limit.count, limit.per_ns, limit.for_each), index)
        if other != index:
            same, all_said = f"the same limit as limits[{other}]", "remove one of the two"
            raise broken(f"{same}: {all_said}", index, shown=f"{same}, {limit.label}: {all_said}")
    return limits


Limits = Annotated[tuple[LimitSettings, ...], AnyOrder, AfterValidator(_no_two_alike)]
"""Those of an upstream.  No two are the same: metrics tell them apart by their labels."""
