"""What an operator looks for: a part of a queue id, a Message-ID or an address.  Pure.

One matcher, for the queue and for what ended.  Case and Unicode's forms make no difference, and of an
address neither does its spelling (`comparable`).  Angle brackets around the whole of it are left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from relay.mail.address import comparable, folded

_SPELT_OTHERWISE = (b"\\", b"xn--", b"@[")
"""In a line of JSON an address with one of these may be compared in another spelling."""


@dataclass(frozen=True, slots=True)
class Sought:
    text: str
    """As any text is compared."""
    address: str
    """As an address is."""

    def is_in(self, text: str | None) -> bool:
        return text is not None and self.text in folded(text)

    def is_in_address(self, addresses: Iterable[str]) -> bool:
        return any(self.text in folded(each) or self.address in comparable(each) for each in addresses)

    def may_be_in(self, line: bytes) -> bool:
        """Return False only for a line of JSON in ASCII that has it in none of its texts.  Quick."""
        lowered = line.lower()
        return (
            not self.text.isascii()
            or self.text.encode() in lowered
            or self.address.encode() in lowered
            or any(mark in lowered for mark in _SPELT_OTHERWISE)
        )


@lru_cache(16)
def sought(text: str) -> Sought:
    """Raise ValueError where nothing is left to look for, or octets that are no text."""
    inside = text.strip("<> \t\r\n")
    if not inside or any("\ud800" <= c <= "\udfff" for c in inside):
        raise ValueError("expected an address, a Message-ID or a queue id, or a part of one")
    return Sought(folded(inside), comparable(inside))
