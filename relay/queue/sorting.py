"""Which lane a message is in, by its envelope and the header of its content.  Pure.

The first rule that matches decides; within a rule every key must match, and of a key's
patterns any one.  A pattern is compared without regard to case, of an address also without
regard to its spelling (`address.comparable`), and `*` stands for any run of characters;
matching is linear, so no message can make it slow.

Rules read only the accepted envelope and the content, which never change.  So a message is in the
same lane before and after a restart, however many of its recipients are done.  Of the header only
what the caller has read is looked at.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

from relay.mail.address import comparable, comparable_domain
from relay.mail.envelope import Envelope
from relay.mail.header import header_fields
from relay.queue.lanes import DEFAULT_LANE

Network = IPv4Network | IPv6Network
Fields = tuple[tuple[str, str], ...]
NULL_SENDER = "<>"


@dataclass(frozen=True, slots=True)
class SortingRule:
    """What a message of a lane looks like; empty keys match anything."""

    lane: str
    senders: tuple[str, ...] = ()
    """Patterns of reverse-paths; `@domain` is anybody there, `<>` the sender of reports."""
    clients: tuple[Network, ...] = ()
    recipient_domains: tuple[str, ...] = ()
    """Patterns; each recipient must match one."""
    headers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """A field's name, and patterns of its value; of fields with that name one must match."""
    recipients_above: int = 0
    """How many recipients the message must exceed."""

    def matches(self, envelope: Envelope, fields: Callable[[], Fields]) -> bool:
        """Return whether a message matches; `fields` gives those of its header."""
        return (
            len(envelope.recipients) > self.recipients_above
            and (not self.senders or _is_sender(self.senders, envelope.reverse_path))
            and (not self.clients or _is_client(self.clients, envelope.client))
            and (not self.recipient_domains or _are_domains(self.recipient_domains, envelope.recipients))
            and (not self.headers or _has_fields(self.headers, fields()))
        )


@dataclass(frozen=True, slots=True)
class Sorter:
    rules: tuple[SortingRule, ...] = ()

    def lane_of(self, envelope: Envelope, head: Callable[[], bytes]) -> str:
        """Return the lane of a message by the first rule that matches, or the default lane.

        `head` gives the first part of its content, and is called only if a rule needs it.
        """
        fields = cache(lambda: tuple(header_fields(head())))
        return next((rule.lane for rule in self.rules if rule.matches(envelope, fields)), DEFAULT_LANE)


def is_like(pattern: str, text: str) -> bool:
    """Return whether a text matches a pattern, in which `*` is any run of characters; case counts here."""
    first, *others = pattern.split("*")
    if not others:
        return text == first
    if not text.startswith(first):
        return False
    at, last = len(first), others.pop()
    for part in others:
        if (found := text.find(part, at)) < 0:
            return False
        at = found + len(part)
    return len(text) - len(last) >= at and text.endswith(last)


def _is_sender(patterns: tuple[str, ...], reverse_path: str) -> bool:
    address = comparable(reverse_path)
    return any(is_like(_sender_pattern(pattern), address) for pattern in patterns)


def _is_client(networks: tuple[Network, ...], client: str) -> bool:
    try:
        address = ip_address(client.rpartition("[")[2].removesuffix("]"))
    except ValueError:  # a report of ours comes from no address
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)


def _are_domains(patterns: tuple[str, ...], recipients: tuple[str, ...]) -> bool:
    wanted = [comparable_domain(pattern) for pattern in patterns]
    domains = {address.rpartition("@")[2] for address in recipients}
    return all(any(is_like(pattern, comparable_domain(domain)) for pattern in wanted) for domain in domains)


def _has_fields(headers: tuple[tuple[str, tuple[str, ...]], ...], fields: Fields) -> bool:
    return all(
        any(
            its_name == name.lower() and any(is_like(pattern.lower(), value.lower()) for pattern in patterns)
            for its_name, value in fields
        )
        for name, patterns in headers
    )


def _sender_pattern(pattern: str) -> str:
    if pattern == NULL_SENDER:
        return ""
    return comparable(f"*{pattern}" if pattern.startswith("@") else pattern)
