"""What a limit that says `for_each` tells messages apart by.  Pure.

Addresses and domains are compared without regard to how they are spelled (`address.comparable`):
where the upstream tells apart what we do not, two of its keys share a window here,
which wastes and never exceeds.
"""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from relay.mail.address import comparable, comparable_domain
from relay.mail.envelope import Envelope
from relay.throttle.history_format import address_key, key_of

_CLIENT_ADDRESS = re.compile(r"\[([^\[\]]*)\]\Z")


@dataclass(frozen=True, slots=True)
class Request:
    """One message that is ready to go to so many recipients."""

    recipients: int
    sender: str = ""
    sender_domain: str = ""
    client: str = ""
    lane: str = ""
    """Empty where the policy has none."""
    recipient_domains: tuple[str, ...] = ()
    """One for each recipient; none at all stands for one and the same."""
    most: int | None = None
    """How many of them one transaction may name at most."""

    def __post_init__(self) -> None:
        if self.recipients < 1:
            raise ValueError("a transaction has at least one recipient")
        if self.recipient_domains and len(self.recipient_domains) != self.recipients:
            raise ValueError("each recipient has a domain, or none has")

    @property
    def largest(self) -> int:
        """Return how many recipients one transaction may name, limits apart."""
        return self.recipients if self.most is None else min(self.most, self.recipients)


@functools.lru_cache(maxsize=4096)
def keys_of(reverse_path: str, client: str) -> tuple[str, str, str]:
    """Return a message's keys: its sender, the sender's domain, and who handed it over."""
    found = _CLIENT_ADDRESS.search(client)
    address = key_of((found[1] if found else client).lower())
    return address_key(comparable(reverse_path)), _domain(reverse_path), address


@functools.lru_cache(maxsize=65_536)
def run_of(address: str, count: int) -> tuple[str, int]:
    """Return so many recipients of the domain of an address: the same object each time, for many messages."""
    return _domain(address), count


def request_for(envelope: Envelope, indices: Iterable[int], most: int, lane: str = "") -> Request:
    """Return what to ask for, to send a message to some of its recipients, at most so many at once."""
    domains = tuple(_domain(envelope.recipients[index]) for index in indices)
    sender, sender_domain, client = keys_of(envelope.reverse_path, envelope.client)
    return Request(
        len(domains),
        sender=sender,
        sender_domain=sender_domain,
        client=client,
        lane=lane,
        recipient_domains=domains,
        most=most,
    )


def _domain(address: str) -> str:
    return key_of(comparable_domain(address.rpartition("@")[2])) if "@" in address else ""
