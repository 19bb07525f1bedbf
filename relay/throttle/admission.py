"""Decides which recipients of a message may go now, or what the message waits for.  Pure.

A decision asks all limits before it changes any: a message gets a slot in each limit or in none.  If the
limits have room for some of its recipients only, the message goes to those.  Every N is at least 1, so a
message waits only if no recipient may be named.

Addresses and domains are compared without regard to their spelling (`address.comparable`).  Two keys that
the upstream tells apart may share a window here, which wastes room and never exceeds a limit.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from relay.mail.address import comparable, comparable_domain
from relay.mail.envelope import Envelope
from relay.throttle.history import Share, Slot, key_of
from relay.throttle.limit import ForEach, Limit, LimitState


@dataclass(frozen=True, slots=True)
class Request:
    recipients: int
    """At least 1."""
    sender: str = ""
    sender_domain: str = ""
    client: str = ""
    user: str = ""
    """The login name; all mail without a login counts as mail of one user."""
    lane: str = ""
    """Empty if the policy has no lanes."""
    recipient_domains: tuple[str, ...] = ()
    """One for each recipient; empty if all recipients have the same domain."""
    most: int | None = None
    """The most recipients that one transaction may name."""
    size_bytes: int = 0
    """Of the content, as MAIL declares it (RFC 1870): without the octets that dot-stuffing adds."""

    @property
    def largest(self) -> int:
        return self.recipients if self.most is None else min(self.most, self.recipients)

    @property
    def domains(self) -> Sequence[str]:
        return self.recipient_domains or ("",) * self.recipients

    def weight(self, state: LimitState) -> int:
        """Return the least that the message weighs in a limit: its whole content, or one recipient."""
        return max(1, self.size_bytes) if state.unit == "bytes" else 1

    def keys(self, for_each: ForEach | None) -> list[str | None]:
        if for_each is None:
            return [None]
        return [*dict.fromkeys(self.domains)] if for_each == "recipient_domain" else [getattr(self, for_each)]


@functools.lru_cache(maxsize=4096)
def keys_of(reverse_path: str, client: str, user: str) -> tuple[str, str, str, str]:
    """Return the keys of the sender, the sender's domain, the client and the user."""
    address = key_of(client.rpartition("[")[2].removesuffix("]").lower())
    return key_of(comparable(reverse_path)), _domain(reverse_path), address, key_of(user)


@functools.lru_cache(maxsize=65_536)
def domain_key(domain: str) -> str:
    """Return the key of a domain, as the same object each time: many messages share it."""
    return key_of(comparable_domain(domain))


def request_for(
    envelope: Envelope, indices: Iterable[int], most: int, lane: str = "", size_bytes: int = 0
) -> Request:
    domains = tuple([_domain(envelope.recipients[index]) for index in indices])
    keys = keys_of(envelope.reverse_path, envelope.client, envelope.user or "")
    return Request(len(domains), *keys, lane, domains, most, size_bytes)


def _domain(address: str) -> str:
    return domain_key(address.rpartition("@")[2]) if "@" in address else ""


class Place(NamedTuple):
    """The key that alone keeps a message back, whichever limits on this kind of key are full."""

    for_each: ForEach
    key: str


@dataclass(frozen=True, slots=True)
class Wait:
    """There is no room.  Ask again at `until_ns`; room never opens earlier."""

    until_ns: int
    """Always in the future."""
    limit: Limit
    """The limit that opens last."""
    place: Place | None = None
    """The key that has no room while other messages may go; None if no message has room."""


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The message has more bytes than a limit ever allows.  Other messages need not wait for it."""

    limit: Limit


class Reservation(NamedTuple):
    """Permission for one transaction.  It is durable, and charged, once `reserve` returns it."""

    slot: Slot
    chosen: Sequence[int] = ()
    """Indices into the recipients of the request, ascending."""

    @property
    def recipients(self) -> int:
        """How many recipients may be named, at least 1; fewer than requested if a limit has less room."""
        return self.slot.recipients

    @property
    def reserved_at_ns(self) -> int:
        return self.slot.started_at_ns

    @property
    def deadline_ns(self) -> int:
        """The transaction must have ended by then, whatever its outcome."""
        return self.slot.until_ns


Admission = Reservation | Wait | TooLarge
_until = attrgetter("until_ns")


def admit(states: Sequence[LimitState], request: Request, now_ns: int) -> Sequence[int] | Wait | TooLarge:
    """Return the indices of as many recipients as have room, at least one, or why none may go."""
    asked = [state for state in states if state.unit != "connections" and state.only in (None, request.lane)]
    if chosen := _chosen(asked, request, now_ns):
        return chosen
    for state in asked:
        if state.unit == "bytes" and request.size_bytes > state.count:
            return TooLarge(state.limit)
    return _wait(asked, request, now_ns)


def _chosen(asked: Sequence[LimitState], request: Request, now_ns: int) -> Sequence[int]:
    def most(state: LimitState, key: str | None) -> int:
        """Return how many recipients of a key the message may go to."""
        free = state.room(key, now_ns)
        if state.unit == "recipients":
            return free
        # The message counts once for a key, however many of its recipients have that key.
        return request.recipients if free >= request.weight(state) else 0

    of_domains = [state for state in asked if state.for_each == "recipient_domain"]
    largest = request.largest
    for state in asked:
        if state.for_each != "recipient_domain":
            largest = min(largest, most(state, request.keys(state.for_each)[0]))
    if not of_domains or not largest:
        return range(largest)
    left = {key: min(most(state, key) for state in of_domains) for key in dict.fromkeys(request.domains)}
    chosen: list[int] = []
    for position, domain in enumerate(request.domains):
        if left[domain] and len(chosen) < largest:
            left[domain] -= 1
            chosen.append(position)
    return chosen


def _wait(asked: Sequence[LimitState], request: Request, now_ns: int) -> Wait:
    """Return what a message without room waits for."""
    others: dict[Place | None, Wait] = {}
    of_domains: dict[Place | None, Wait] = {}
    for state in asked:
        waits = of_domains if state.for_each == "recipient_domain" else others
        for key in request.keys(state.for_each):
            place = None if state.for_each is None or key is None else Place(state.for_each, key)
            wait = Wait(state.opens_at(key, now_ns, request.weight(state)), state.limit, place)
            waits[place] = max(wait, waits.get(place, wait), key=_until)
    if (of_all := others.get(None)) is not None and of_all.until_ns > now_ns:
        return of_all
    # One recipient domain with room is enough for the message to go; every other place must be open.
    first = sorted(of_domains.values(), key=_until)[:1]
    return max([*others.values(), *first], key=_until)


def shares_of(states: Sequence[LimitState], request: Request, chosen: Sequence[int]) -> tuple[Share, ...]:
    """Return the shares of a transaction, for each kind of key that some limit has.

    The lane is always recorded, so a ceiling that an edit adds knows what the lane has used.
    """
    kinds = dict.fromkeys([state.for_each for state in states if state.for_each is not None])
    if request.lane:
        kinds["lane"] = None
    shares: list[Share] = []
    for for_each in kinds:
        if for_each == "recipient_domain":
            domains = request.domains
            # The whole content goes to each of the domains.
            counts = Counter([domains[position] for position in chosen])
        else:
            counts = Counter({getattr(request, for_each): len(chosen)})
        shares += [Share(for_each, key, 1, count, request.size_bytes) for key, count in counts.items()]
    return tuple(shares)
