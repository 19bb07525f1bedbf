"""What lanes a policy has, what a transaction costs its lane, and which senders take turns.  Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relay.mail.address import comparable

DEFAULT_LANE = "default"
"""The lane of messages that match no other."""


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    weight: int = 1
    """A lane's share is its weight over the sum of all weights."""
    patience_ns: int | None = None
    """A message that is ready for longer goes before its turn."""
    has_ceiling: bool = False


@dataclass(frozen=True, slots=True)
class Price:
    """What a transaction costs its lane: how long its slots take of the limit that they take longest of."""

    of_message_ns: int = 1
    of_recipient_ns: int = 0

    def of(self, recipients: int) -> int:
        return max(1, self.of_message_ns, recipients * self.of_recipient_ns)


class Arrangement(NamedTuple):
    """By what a policy orders the line of an upstream."""

    lanes: Sequence[Lane] = ()
    """None, or one of them is named DEFAULT_LANE."""
    price: Price = Price()
    most_recipients: int = 1
    """In a transaction."""


def turn_of(reverse_path: str) -> str:
    """Return the sender that takes turns: the address without what bulk mail adds for each recipient.

    A list that names the recipient in its return address (VERP: `list-return-7-me=here.example@…`,
    `list+me=here.example@…`) is one sender, or it would have a turn for each recipient.
    """
    local, at, domain = comparable(reverse_path).rpartition("@")
    if local.startswith("prvs="):  # BATV: tag before the address
        local = local.rpartition("=")[2]
    local = local.partition("+")[0] or local
    if "=" in local:
        kept = local.partition("=")[0]
        local = kept.rpartition("-")[0] or kept
    return f"{local}{at}{domain}"
