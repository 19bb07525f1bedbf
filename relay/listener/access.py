"""Who may connect, how often, and who may relay.  Pure: no clock, no sockets.

Guarantees: nobody relays who is not in `clients` (or authenticated, which the session
knows); the tables hold an entry per open connection and none that is left behind.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from relay.smtp import replies


@dataclass(frozen=True, slots=True)
class Client:
    ip: IPv4Address | IPv6Address
    """As IPv4 where a dual-stack socket maps it into IPv6 (RFC 4291, 2.5.5.2)."""
    address: str

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def of_peer(cls, host: str) -> "Client":
        """Drop the zone (`%eth0`) of a socket's peer host.

        Remembered for a while, since the same few clients connect again and again.
        """
        ip = ip_address(host.partition("%")[0])
        mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
        return cls(mapped or ip, str(mapped or ip))

    def __str__(self) -> str:
        """Return `unknown[address]`: no name is ever looked up."""
        return f"unknown[{self.address}]"

    @property
    def is_loopback(self) -> bool:
        """Return whether it is on this host, so that plain text crosses no network."""
        return self.ip.is_loopback

    @property
    def origin(self) -> str:
        """Return what failures are counted by: the address, or for IPv6 the /64 that one host usually has."""
        if isinstance(self.ip, IPv6Address):
            return str(ip_network((self.ip, 64), strict=False))
        return self.address


class ClientNetworks:
    def __init__(self, networks: Iterable[IPv4Network | IPv6Network]) -> None:
        self._networks = tuple(networks)

    def has(self, client: Client) -> bool:
        return any(client.ip in network for network in self._networks)


@dataclass(eq=False, slots=True)
class ClientPlace:
    """What one connection holds at a listener, from its first octet to its last."""

    client: Client
    may_relay: bool
    """In `clients`, or logged in since."""
    give_way: Callable[[], None]
    """Ends the connection at once.  `Admission` names who gives way, and calls nothing."""
    counted_as: str = field(init=False)
    """The address of a host in `clients`; the origin of any other, since one host numbers its whole /64."""

    def __post_init__(self) -> None:
        self.counted_as = self.client.address if self.may_relay else self.client.origin


class AccessEntry(NamedTuple):
    refusal: str | None = None
    """A connection that is refused has no place."""
    gives_way: ClientPlace | None = None
    """The stranger that lost its place to the newcomer."""


class Admission:
    """Counts open connections, in all and per client, and says which is one too many.

    A stranger is a connection that may not relay, or not yet.  Guarantees: at most
    `max_connections` places; no stranger keeps a place from a client that may relay; the
    newest stranger gets one too, so that a user gets as far as its password.  The stranger
    that gives way is of the origin with the most strangers, the one whose last step towards
    a login is longest ago.  So a single host crowds out itself, and many hosts would have to
    take all places anew in the time that a user needs for one step.
    """

    def __init__(self, max_connections: int, max_per_client: int, max_strangers: int) -> None:
        self._max_connections = max_connections
        self._max_per_client = max_per_client
        self._max_strangers = max_strangers
        self._open: dict[str, int] = {}
        self._strangers: dict[ClientPlace, None] = {}  # longest without a step first
        self._others: set[ClientPlace] = set()

    @property
    def total(self) -> int:
        return len(self._strangers) + len(self._others)

    @property
    def strangers(self) -> int:
        return len(self._strangers)

    @property
    def clients(self) -> int:
        return len(self._open)

    def enter(self, place: ClientPlace, *, is_short: bool = False) -> AccessEntry:
        """Count a connection in, or refuse it (then do not call `leave`).  `gives_way` is counted out here.

        `is_short`: no descriptor is left for one more, so that a stranger must give its own.
        """
        if self._open.get(place.counted_as, 0) >= self._max_per_client:
            return AccessEntry(replies.TOO_MANY_FROM_CLIENT)
        is_crowded = not place.may_relay and self.strangers >= self._max_strangers
        gives_way = None
        if is_short or is_crowded or self.total >= self._max_connections:
            gives_way = self._first_to_go(place)
            if gives_way is None:
                return AccessEntry(replies.TOO_MANY_CONNECTIONS)
            self.leave(gives_way)
        self._open[place.counted_as] = self._open.get(place.counted_as, 0) + 1
        if place.may_relay:
            self._others.add(place)
        else:
            self._strangers[place] = None
        return AccessEntry(None, gives_way)

    def step(self, place: ClientPlace) -> None:
        if place in self._strangers:
            del self._strangers[place]
            self._strangers[place] = None

    def log_in(self, place: ClientPlace) -> None:
        place.may_relay = True
        if place in self._strangers:
            del self._strangers[place]
            self._others.add(place)

    def leave(self, place: ClientPlace) -> None:
        """Ignored for a place that gave way."""
        if place in self._strangers:
            del self._strangers[place]
        elif place in self._others:
            self._others.remove(place)
        else:
            return
        count = self._open.pop(place.counted_as) - 1
        if count:
            self._open[place.counted_as] = count

    def _first_to_go(self, newcomer: ClientPlace) -> ClientPlace | None:
        """Return None where there is no stranger.  Costs a look at each."""
        held = Counter(place.counted_as for place in self._strangers)
        if not newcomer.may_relay:
            held[newcomer.counted_as] += 1
        # `max` returns the first of equals: the one whose last step is longest ago.
        return max(self._strangers, key=lambda place: held[place.counted_as], default=None)


def most_strangers(max_connections: int, *, can_log_in: bool) -> int:
    """Bound the places of strangers while nobody else needs them.

    All, where users log in, since every user begins as a stranger.  Elsewhere a stranger
    can only be refused, and a tenth is enough for that.
    """
    return max_connections if can_log_in else max(1, max_connections // 10)
