"""Which lane a message is in and which route each recipient takes, by envelope and header.  Pure.

Lanes and routes ask with the same conditions.  The first rule that matches decides; within a rule every
key must match, and of a key's patterns any one.  A lane is of the whole message, so every recipient must
match; a route is asked for each recipient domain by itself, so one message may go by several.  A pattern
is compared without regard to case, of an address also without regard to its spelling
(`address.comparable`), and `*` stands for any run of characters; matching is linear, so no message can
make it slow.

Rules read only the accepted envelope and the content, which never change.  So a message is in the same
lane and on the same routes before and after a restart, however many of its recipients are done.  Of the
header only what the caller has read is looked at.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import NamedTuple

from relay.mail.address import comparable, comparable_domain
from relay.mail.envelope import Envelope
from relay.mail.header import header_fields
from relay.queue.lanes import DEFAULT_LANE
from relay.queue.routes import WHOLE, Part, Route

Network = IPv4Network | IPv6Network
Fields = tuple[tuple[str, str], ...]
NULL_SENDER = "<>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a message looks like; empty keys match anything."""

    senders: tuple[str, ...] = ()
    """Patterns of reverse-paths; `@domain` is anybody there, `<>` the sender of reports."""
    clients: tuple[Network, ...] = ()
    users: tuple[str, ...] = ()
    """Patterns of the login at the listener; nobody logged in matches none."""
    recipient_domains: tuple[str, ...] = ()
    """Patterns."""
    headers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """A field's name, and patterns of its value; of fields with that name one must match."""
    recipients_above: int = 0
    """How many recipients the message must exceed."""

    def matches(self, envelope: Envelope, fields: Callable[[], Fields]) -> bool:
        """Return whether a message and every recipient matches; `fields` gives those of its header."""
        return self.matches_message(envelope, fields) and all(
            map(self.matches_domain, {each.rpartition("@")[2] for each in envelope.recipients})
        )

    def matches_message(self, envelope: Envelope, fields: Callable[[], Fields]) -> bool:
        """Return whether a message matches, whatever the domains of its recipients."""
        return (
            len(envelope.recipients) > self.recipients_above
            and (not self.senders or is_address(self.senders, envelope.reverse_path))
            and (not self.clients or is_client(self.clients, envelope.client))
            and (not self.users or _is_user(self.users, envelope.user))
            and (not self.headers or _has_fields(self.headers, fields()))
        )

    def matches_domain(self, domain: str) -> bool:
        return not self.recipient_domains or is_domain(self.recipient_domains, domain)


@dataclass(frozen=True, slots=True)
class SortingRule(Conditions):
    lane: str = field(kw_only=False)


@dataclass(frozen=True, slots=True)
class RoutingRule(Conditions):
    route: Route = field(kw_only=False)


class Sorted(NamedTuple):
    lane: str = DEFAULT_LANE
    parts: tuple[Part, ...] = (WHOLE,)
    """Each recipient is in one; with several, each has its indices."""


UNSORTED = Sorted()


@dataclass(frozen=True, slots=True)
class Sorter:
    rules: tuple[SortingRule, ...] = ()
    routes: tuple[RoutingRule, ...] = ()
    """None, or the last one matches everything."""

    def sort(self, envelope: Envelope, head: Callable[[], bytes]) -> Sorted:
        """Return the lane of a message and the routes of its recipients, by the first rules that match.

        `head` gives the first part of its content, and is called only if a rule needs it.
        """
        if not self.rules and not self.routes:
            return UNSORTED
        fields = cache(lambda: tuple(header_fields(head())))
        lane = next((rule.lane for rule in self.rules if rule.matches(envelope, fields)), DEFAULT_LANE)
        return Sorted(lane, self._parts(envelope, fields) if self.routes else (WHOLE,))

    def _parts(self, envelope: Envelope, fields: Callable[[], Fields]) -> tuple[Part, ...]:
        matching = [rule for rule in self.routes if rule.matches_message(envelope, fields)]
        first = matching[0]
        if not first.recipient_domains:
            return (_whole(first.route),)  # as nearly always
        route_of = cache(lambda domain: next(rule.route for rule in matching if rule.matches_domain(domain)))
        indices: dict[Route, list[int]] = {}
        for index, recipient in enumerate(envelope.recipients):
            indices.setdefault(route_of(recipient.rpartition("@")[2].lower()), []).append(index)
        if len(indices) == 1:
            return (_whole(next(iter(indices))),)
        return tuple(Part(route, frozenset(its)) for route, its in indices.items())


@lru_cache(1024)
def _whole(route: Route) -> Part:
    """Return the same object each time: many messages share it."""
    return Part(route)


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


def is_address(patterns: tuple[str, ...], address: str) -> bool:
    """Return whether an address matches any of these; `@domain` is anybody there, `<>` nobody."""
    address = comparable(address)
    return any(is_like(_address_pattern(pattern), address) for pattern in patterns)


def is_domain(patterns: tuple[str, ...], domain: str) -> bool:
    domain = comparable_domain(domain)
    return any(is_like(comparable_domain(pattern), domain) for pattern in patterns)


def is_client(networks: tuple[Network, ...], client: str) -> bool:
    """Return whether a client's address, as envelopes have it, is in any of these."""
    try:
        address = ip_address(client.rpartition("[")[2].removesuffix("]"))
    except ValueError:  # a report of ours comes from no address
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)


def _is_user(patterns: tuple[str, ...], user: str | None) -> bool:
    return user is not None and any(is_like(pattern.lower(), user.lower()) for pattern in patterns)


def _has_fields(headers: tuple[tuple[str, tuple[str, ...]], ...], fields: Fields) -> bool:
    return all(
        any(
            its_name == name.lower() and any(is_like(pattern.lower(), value.lower()) for pattern in patterns)
            for its_name, value in fields
        )
        for name, patterns in headers
    )


def _address_pattern(pattern: str) -> str:
    if pattern == NULL_SENDER:
        return ""
    return comparable(f"*{pattern}" if pattern.startswith("@") else pattern)
