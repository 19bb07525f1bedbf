"""A limit as a policy states it: exactly one unit, a number of at least 1 and a window.  Pure."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer
from pydantic_core import PydanticCustomError

from relay.mail.formats import in_seconds, period
from relay.policy.retired import PERIODS
from relay.policy.units import BROKEN, Broken, Count, Section, Size, duration_ns

Unit = Literal["messages", "recipients", "bytes", "connections"]
UNITS: tuple[Unit, ...] = ("messages", "recipients", "bytes", "connections")


def _per(value: object) -> int:
    if isinstance(value, str) and (window := PERIODS.get(value)) is not None:
        raise ValueError(
            f"expected a duration: a window slides and knows no calendar; {window} never exceeds that"
        )
    return duration_ns(value)


class LimitSettings(Section):
    messages: Count | None = None
    recipients: Count | None = None
    bytes: Size | None = None
    connections: Count | None = None
    per_ns: Annotated[int, BeforeValidator(_per), PlainSerializer(period)] = Field(alias="per")
    for_each: Literal["sender", "sender_domain", "recipient_domain", "client", "user"] | None = None

    def broken(self) -> Iterator[Broken]:
        given = [unit for unit in UNITS if getattr(self, unit) is not None]
        if len(given) > 1:
            yield Broken(f"a limit counts {' or '.join(given)}, not both; write two limits", (given[-1],))
        if not given:
            yield Broken("expected a number of messages, of recipients, of bytes or of connections")
        if self.connections is not None and self.for_each is not None:
            words = "a limit on connections cannot have for_each: one connection carries mail of many"
            yield Broken(words, ("for_each",))

    @property
    def unit(self) -> Unit:
        return next(unit for unit in UNITS if getattr(self, unit) is not None)

    @property
    def only(self) -> None:
        """Return None: each key of a `for_each` counts, not one alone."""
        return

    @property
    def count(self) -> int:
        return int(getattr(self, self.unit))

    @property
    def label(self) -> str:
        """Such as `8 messages per 60s for each sender`, for a metric and a status line."""
        each = f" for each {self.for_each.replace('_', ' ')}" if self.for_each else ""
        return f"{self.count} {self.unit} per {in_seconds(self.per_ns)}{each}"


def _no_two_alike(limits: tuple[LimitSettings, ...]) -> tuple[LimitSettings, ...]:
    labels = [limit.label for limit in limits]
    rules = tuple(
        Broken(f"the same limit as limits[{labels.index(label)}]: remove one of the two", (index,))
        for index, label in enumerate(labels)
        if label in labels[:index]
    )
    if rules:
        raise PydanticCustomError(BROKEN, "{rules}", {"rules": rules})
    return limits


Limits = Annotated[tuple[LimitSettings, ...], AfterValidator(_no_two_alike)]
"""Those of an upstream.  No two are the same: metrics tell them apart by their labels."""
