"""The lane of a message, and the route of each recipient, by envelope and header.  Pure.

The first rule that matches decides.  Within a rule every key must match; one pattern of a key is enough.  A
lane holds for the whole message, so every recipient must match.  A route is chosen for each recipient domain
separately, so one message may go by several routes.  Patterns ignore case; a pattern of an address also
ignores its spelling (`address.comparable`).  `*` stands for any run of characters.  Matching takes linear
time, so no message can make it slow.

Rules read only the accepted envelope and the content, which never change.  So a message keeps its lane and
its routes after a restart, however many of its recipients are done.
"""

from collections.abc import Callable, Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions on a message, by the names that they have in a policy; an empty key matches anything."""

    sender: tuple[str, ...] = ()
    """Patterns of reverse-paths; `@domain` is any address there, `<>` the null sender of reports."""
    client: tuple[Network, ...] = ()
    user: tuple[str, ...] = ()
    """Patterns of the login at the listener; a client without a login matches none."""
    recipient_domain: tuple[str, ...] = ()
    """Patterns."""
    header: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Patterns of the values, by the name of the field; one field of that name must match."""
    recipients_above: int = 0
    """The message must have more recipients than this."""

    def matches_message(self, envelope: Envelope, fields: Callable[[], Fields]) -> bool:
        """Return whether a message with these header fields matches, whatever its recipient domains."""
        return (
            len(envelope.recipients) > self.recipients_above
            and (not self.sender or is_address(self.sender, envelope.reverse_path))
            and (not self.client or is_client(self.client, envelope.client))
            and (not self.user or (envelope.user is not None and _is_any_like(self.user, envelope.user)))
            and all(
                any(each == name.lower() and _is_any_like(patterns, value) for each, value in fields())
                for name, patterns in self.header.items()
            )
        )

    def matches_domain(self, domain: str) -> bool:
        return not self.recipient_domain or is_domain(self.recipient_domain, domain)


class Sorted(NamedTuple):
    lane: str
    parts: tuple[Part, ...]
    """Each recipient is in one part; if there are several, each names its recipients by index."""


@dataclass(frozen=True, slots=True)
class Sorter:
    lanes: tuple[tuple[str, Conditions], ...] = ()
    routes: tuple[tuple[Route, Conditions], ...] = ()
    """Empty, or the last one matches everything."""

    def sort(self, envelope: Envelope, head: Callable[[], bytes]) -> Sorted:
        """Return the lane of a message and the routes of its recipients, by the first rules that match.

        `head` returns the first part of the content; it is called only if a rule needs it.
        """
        if not self.lanes and not self.routes:
            return Sorted(DEFAULT_LANE, (WHOLE,))
        fields = cache(lambda: tuple(header_fields(head())))
        domains = [each.rpartition("@")[2].lower() for each in envelope.recipients]
        lanes = (
            lane
            for lane, its in self.lanes
            if its.matches_message(envelope, fields) and all(map(its.matches_domain, set(domains)))
        )
        return Sorted(next(lanes, DEFAULT_LANE), self._parts(envelope, fields, domains))

    def _parts(
        self, envelope: Envelope, fields: Callable[[], Fields], domains: Sequence[str]
    ) -> tuple[Part, ...]:
        matching = [(route, its) for route, its in self.routes if its.matches_message(envelope, fields)]
        route_of = cache(lambda domain: next(route for route, its in matching if its.matches_domain(domain)))
        indices: dict[Route, list[int]] = {}
        for index, domain in enumerate(domains if matching else ()):
            indices.setdefault(route_of(domain), []).append(index)
        if len(indices) > 1:
            return tuple(Part(route, frozenset(its)) for route, its in indices.items())
        return tuple(map(_whole, indices)) or (WHOLE,)


_whole = lru_cache(1024)(Part)
"""Returns the same object each time, because many messages share it."""


def is_like(pattern: str, text: str) -> bool:
    """Return whether a text matches a pattern, in which `*` is any run of characters; case matters here."""
    # fnmatch reads no part of a text twice.  `[` and `?`, which it treats specially, are literal here.
    return fnmatchcase(text, pattern.replace("[", "[[]").replace("?", "[?]"))


def is_address(patterns: tuple[str, ...], address: str) -> bool:
    """Return whether an address matches a pattern; `@domain` is any address there, `<>` the null sender."""
    address = comparable(address)
    every = (f"*{each}" if each.startswith("@") else each for each in patterns)
    return any(is_like("" if each == NULL_SENDER else comparable(each), address) for each in every)


def is_domain(patterns: tuple[str, ...], domain: str) -> bool:
    domain = comparable_domain(domain)
    return any(is_like(comparable_domain(pattern), domain) for pattern in patterns)


def is_client(networks: tuple[Network, ...], client: str) -> bool:
    """Return whether the address of a client, as in envelopes, is in one of these networks."""
    try:
        address = ip_address(client.rpartition("[")[2].removesuffix("]"))
    except ValueError:  # a report of the relay has no client address
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)


def _is_any_like(patterns: tuple[str, ...], text: str) -> bool:
    return any(is_like(pattern.lower(), text.lower()) for pattern in patterns)
