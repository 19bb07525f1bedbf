"""Which lane a message is in and which route each recipient takes, by envelope and header.  Pure.

The first rule that matches decides; within a rule every key must match, and of a key's patterns any one.  A
lane is of the whole message, so every recipient must match; a route is asked for each recipient domain by
itself, so one message may go by several.  A pattern is compared without regard to case, of an address also
without regard to its spelling (`address.comparable`), and `*` stands for any run of characters; matching is
linear, so no message can make it slow.

Rules read only the accepted envelope and the content, which never change.  So a message is in the same lane
and on the same routes after a restart, however many of its recipients are done.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import NamedTuple

from relay.mail.address import comparable, comparable_domain
from relay.mail.envelope import Envelope
from relay.mail.header import header_fields
from relay.queue.queued import DEFAULT_LANE
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

    def matches_message(self, envelope: Envelope, fields: Callable[[], Fields]) -> bool:
        """Return whether a message matches, whatever its recipient domains; `fields` are of its header."""
        return (
            len(envelope.recipients) > self.recipients_above
            and (not self.senders or is_address(self.senders, envelope.reverse_path))
            and (not self.clients or is_client(self.clients, envelope.client))
            and (not self.users or (envelope.user is not None and _is_any_like(self.users, envelope.user)))
            and all(
                any(each == name.lower() and _is_any_like(patterns, value) for each, value in fields())
                for name, patterns in self.headers
            )
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
    lane: str
    parts: tuple[Part, ...]
    """Each recipient is in one; with several, each has its indices."""


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
            return Sorted(DEFAULT_LANE, (WHOLE,))
        fields = cache(lambda: tuple(header_fields(head())))
        domains = [each.rpartition("@")[2].lower() for each in envelope.recipients]
        matching = (rule for rule in self.rules if rule.matches_message(envelope, fields))
        lanes = (rule.lane for rule in matching if all(map(rule.matches_domain, set(domains))))
        return Sorted(next(lanes, DEFAULT_LANE), self._parts(envelope, fields, domains))

    def _parts(
        self, envelope: Envelope, fields: Callable[[], Fields], domains: Sequence[str]
    ) -> tuple[Part, ...]:
        matching = [rule for rule in self.routes if rule.matches_message(envelope, fields)]
        route_of = cache(lambda domain: next(rule.route for rule in matching if rule.matches_domain(domain)))
        indices: dict[Route, list[int]] = {}
        for index, domain in enumerate(domains if matching else ()):
            indices.setdefault(route_of(domain), []).append(index)
        if len(indices) > 1:
            return tuple(Part(route, frozenset(its)) for route, its in indices.items())
        return tuple(map(_whole, indices)) or (WHOLE,)


_whole = lru_cache(1024)(Part)
"""The same object each time: many messages share it."""


def is_like(pattern: str, text: str) -> bool:
    """Return whether a text matches a pattern, in which `*` is any run of characters; case counts here."""
    # fnmatch looks at no part of a text twice; what else is special to it is not to us.
    return fnmatchcase(text, pattern.replace("[", "[[]").replace("?", "[?]"))


def is_address(patterns: tuple[str, ...], address: str) -> bool:
    """Return whether an address matches any of these; `@domain` is anybody there, `<>` nobody."""
    address = comparable(address)
    every = (f"*{each}" if each.startswith("@") else each for each in patterns)
    return any(is_like("" if each == NULL_SENDER else comparable(each), address) for each in every)


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


def _is_any_like(patterns: tuple[str, ...], text: str) -> bool:
    return any(is_like(pattern.lower(), text.lower()) for pattern in patterns)
