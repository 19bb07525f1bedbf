"""A limit as a policy states it: exactly one unit, a number of at least 1 and a window.  Pure."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from relay.mail.formats import in_seconds
from relay.policy.document import Fault
from relay.policy.units import Count, Duration, Section, Size

Unit = Literal["messages", "recipients", "bytes", "connections"]
UNITS: tuple[Unit, ...] = ("messages", "recipients", "bytes", "connections")


class LimitSettings(Section):
    messages: Count | None = None
    recipients: Count | None = None
    bytes: Size | None = None
    connections: Count | None = None
    per_ns: Duration = Field(alias="per")
    for_each: Literal["sender", "sender_domain", "recipient_domain", "client", "user"] | None = None

    def faults(self) -> Iterator[Fault]:
        if len(given := self.given(UNITS)) > 1:
            yield Fault(f"a limit counts {' or '.join(given)}, not both; write two limits", (given[-1],))
        if not given:
            yield Fault("expected a number of messages, of recipients, of bytes or of connections")
        if self.connections is not None and self.for_each is not None:
            words = "a limit on connections cannot have for_each: one connection carries mail of many"
            yield Fault(words, ("for_each",))

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


Limits = Annotated[
    tuple[LimitSettings, ...],
    AfterValidator(lambda limits: tuple({each.label: each for each in limits}.values())),
]
"""Those of an upstream.  A limit that is written twice is one: metrics tell limits apart by their labels."""
