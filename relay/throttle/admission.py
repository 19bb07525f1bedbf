"""What of a message may go now, and what it waits for otherwise.  Pure.

All limits are asked before any is touched: a message gets a slot in each of them, or in none.  A
message with more recipients than all limits have room for goes to as many as there is room for.
Every N is at least 1, so a message waits only where not even one recipient may be named.

Addresses and domains are compared without regard to their spelling (`address.comparable`).  Two keys
that the upstream tells apart may share a window here, which wastes and never exceeds.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relay.mail.address import comparable, comparable_domain
from relay.mail.envelope import Envelope
from relay.throttle.events import Share, Slot, key_of
from relay.throttle.limit import ForEach
from relay.throttle.limit_state import LimitState

_CLIENT_ADDRESS = re.compile(r"\[([^\[\]]*)\]\Z")


@dataclass(frozen=True, slots=True)
class Request:
    recipients: int
    sender: str = ""
    sender_domain: str = ""
    client: str = ""
    user: str = ""
    """Who had logged in; all mail without a login counts as one user's."""
    lane: str = ""
    """Empty where the policy has none."""
    recipient_domains: tuple[str, ...] = ()
    """One for each recipient; none at all stands for one and the same."""
    most: int | None = None
    """How many of them one transaction may name at most."""
    size_bytes: int = 0
    """Of the content, as MAIL declares it (RFC 1870): without what dot-stuffing adds."""

    def __post_init__(self) -> None:
        if self.recipients < 1:
            raise ValueError("a transaction has at least one recipient")
        if self.recipient_domains and len(self.recipient_domains) != self.recipients:
            raise ValueError("each recipient has a domain, or none has")

    @property
    def largest(self) -> int:
        return self.recipients if self.most is None else min(self.most, self.recipients)

    def weight(self, state: LimitState) -> int:
        """Return the least that it weighs in a limit: a message goes whole, and to one recipient at least."""
        return max(1, self.size_bytes) if state.unit == "bytes" else 1


@functools.lru_cache(maxsize=4096)
def keys_of(reverse_path: str, client: str, user: str) -> tuple[str, str, str, str]:
    """Return the sender, the sender's domain, the client, and the user."""
    found = _CLIENT_ADDRESS.search(client)
    address = key_of((found[1] if found else client).lower())
    return key_of(comparable(reverse_path)), _domain(reverse_path), address, key_of(user)


@functools.lru_cache(maxsize=65_536)
def domain_key(domain: str) -> str:
    """Return the same object each time: many messages share it."""
    return key_of(comparable_domain(domain))


def request_for(
    envelope: Envelope, indices: Iterable[int], most: int, lane: str = "", size_bytes: int = 0
) -> Request:
    domains = tuple([_domain(envelope.recipients[index]) for index in indices])
    return Request(
        len(domains),
        *keys_of(envelope.reverse_path, envelope.client, envelope.user or ""),
        lane=lane,
        recipient_domains=domains,
        most=most,
        size_bytes=size_bytes,
    )


def _domain(address: str) -> str:
    return domain_key(address.rpartition("@")[2]) if "@" in address else ""


class Place(NamedTuple):
    """Where a message waits that only its own key keeps back, by whichever limits of that kind."""

    for_each: ForEach
    key: str


@dataclass(frozen=True, slots=True)
class Wait:
    """No room.  Ask again at `until_ns`, which is never later than when room opens."""

    until_ns: int
    """Always in the future."""
    limit_label: str
    """The limit that opens last."""
    place: Place | None = None
    """The key that has no room, while other messages may go; None where no message has room."""


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A message that has more bytes than a limit allows at all: others need not wait for it."""

    limit_label: str
    count: int
    """N."""


class Reservation(NamedTuple):
    """Permission for one transaction: already charged, and durable once `reserve` returns it."""

    slot: Slot
    chosen: Sequence[int] = ()
    """Indices into the recipients that were asked for, ascending."""
    ahead_ns: int = 0
    """How far the history's clock, which the slot goes by, was ahead of boottime."""

    @property
    def recipients(self) -> int:
        """How many it may name, at least 1; fewer than asked for where a limit has less room."""
        return self.slot.recipients

    @property
    def reserved_at_ns(self) -> int:
        """Return boottime."""
        return self.slot.started_at_ns - self.ahead_ns

    @property
    def duration_ns(self) -> int:
        """Return how long after that the transaction must have ended, one way or the other."""
        return self.slot.until_ns - self.slot.started_at_ns

    @property
    def deadline_ns(self) -> int:
        """Return the last instant of it, boottime."""
        return self.reserved_at_ns + self.duration_ns


def too_large(states: Sequence[LimitState], request: Request) -> TooLarge | None:
    for state, _ in _asked(states, request):
        if state.unit == "bytes" and request.size_bytes > state.count:
            return TooLarge(state.label, state.count)
    return None


def choose(states: Sequence[LimitState], request: Request, now_ns: int) -> Sequence[int]:
    """Return indices of the recipients there is room for; none where the message has to wait."""
    most, by_domain = request.largest, []
    for state, key in _asked(states, request):
        if state.for_each == "recipient_domain":
            by_domain.append(state)
            continue
        free = state.room(key, now_ns)
        if free < request.weight(state):
            return ()
        most = min(most, free if state.unit == "recipients" else most)
    if not by_domain:
        return range(most)
    chosen: list[int] = []
    # However many it names of a domain, it is one message there.
    free_of: dict[str, int] = {}
    for position, domain in enumerate(_domains(request)):
        if len(chosen) == most:
            break
        if domain not in free_of:
            free_of[domain] = min(_recipients(state, domain, request, now_ns) for state in by_domain)
        if free_of[domain]:
            free_of[domain] -= 1
            chosen.append(position)
    return chosen


def _recipients(state: LimitState, domain: str, request: Request, now_ns: int) -> int:
    """Return how many recipients of a domain a limit has room for."""
    free = state.room(domain, now_ns)
    if state.unit == "recipients":
        return free
    return request.recipients if free >= request.weight(state) else 0


def wait(states: Sequence[LimitState], request: Request, now_ns: int) -> Wait:
    """Return for what a message waits that there is no room for."""
    for_all: list[tuple[int, str]] = []
    # When each of its places opens, and by which limit.
    of_place: dict[Place, tuple[int, str]] = {}
    for state, key in _asked(states, request):
        weight = request.weight(state)
        if state.for_each is None:
            for_all.append((state.opens_at(None, now_ns, weight), state.label))
            continue
        for each in dict.fromkeys(_domains(request)) if key is None else [key]:
            place, opened = Place(state.for_each, each), (state.opens_at(each, now_ns, weight), state.label)
            of_place[place] = max(opened, of_place.get(place, opened))
    until_ns, label = max(for_all, default=(now_ns, ""))
    if until_ns > now_ns:
        return Wait(until_ns, label)
    of_domains = [place for place in of_place if place.for_each == "recipient_domain"]
    # The first of its recipients that may go takes it along; all else has to be open.
    needed = [place for place in of_place if place.for_each != "recipient_domain"]
    needed += [min(of_domains, key=lambda place: of_place[place])] if of_domains else []
    last = max(needed, key=lambda place: of_place[place])
    return Wait(*of_place[last], last)


def _asked(states: Sequence[LimitState], request: Request) -> list[tuple[LimitState, str | None]]:
    """Return the limits that have a say in a message, each with its key; domains may be several."""
    return [
        (state, key)
        for state in states
        if state.unit != "connections" and state.is_about(key := _key(request, state.for_each))
    ]


def shares_of(states: Sequence[LimitState], request: Request, chosen: Sequence[int]) -> tuple[Share, ...]:
    """Whose a transaction is, of those kinds of key that some limit asks for.

    The lane is always told: a ceiling that an edit brings then knows what the lane holds.
    """
    shares: list[Share] = []
    asked = [state.for_each for state in states if state.for_each is not None]
    if request.lane:
        asked.append("lane")
    for for_each in dict.fromkeys(asked):
        if for_each == "recipient_domain":
            domains = _domains(request)
            counts: dict[str, int] = {}
            for position in chosen:
                counts[domains[position]] = counts.get(domains[position], 0) + 1
            # The content goes to each of its domains, whole.
            shares += [
                Share(for_each, domain, 1, count, request.size_bytes) for domain, count in counts.items()
            ]
        else:
            shares.append(Share(for_each, _key(request, for_each) or "", 1, len(chosen), request.size_bytes))
    return tuple(shares)


def _key(request: Request, for_each: ForEach | None) -> str | None:
    if for_each is None or for_each == "recipient_domain":
        return None
    key: str = getattr(request, for_each)
    return key


def _domains(request: Request) -> Sequence[str]:
    return request.recipient_domains or ("",) * request.recipients
