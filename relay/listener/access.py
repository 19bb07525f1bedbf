"""Who may connect, how often, and who may relay.  Pure: no clock, no sockets.

Guarantees: nobody relays who is not in `clients` (or authenticated, which the session
knows); the tables hold an entry per open connection and none that is left behind.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from relay.smtp import replies


@dataclass(frozen=True, slots=True)
class Client:
    ip: IPv4Address | IPv6Address
    """As IPv4 where a dual-stack socket maps it into IPv6 (RFC 4291, 2.5.5.2)."""
    address: str

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def of_peer(cls, host: str) -> "Client":
        """Drop the zone (`%eth0`) of a socket's peer host."""
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
    give_way: Callable[[], None] = lambda: None
    """Ends the connection at once."""
    counted_as: str = field(init=False)
    """The address of a host in `clients`; the origin of any other, since one host numbers its whole /64."""

    def __post_init__(self) -> None:
        self.counted_as = self.client.address if self.may_relay else self.client.origin


class Admission:
    """Counts open connections, and says which is one too many.

    A stranger may not relay, or not yet.  Strangers have a fixed share of the places, one origin a part of
    that share, and keep no place from a client that may relay.  The newest stranger gets a place, so that a
    user gets as far as its password: the one whose last step towards a login is longest ago gives way.
    """

    def __init__(self, max_connections: int, max_per_client: int, *, can_log_in: bool) -> None:
        self._max_connections = max_connections
        self._max_per_client = max_per_client
        # Where nobody logs in, a stranger can only be refused.
        self._share = max(1, max_connections // (2 if can_log_in else 10))
        self._most_of_origin = min(max_per_client, max(self._share // 4, min(self._share, 10)))
        self._open: Counter[str] = Counter()
        self._of_origin: Counter[str] = Counter()
        """Strangers."""
        self._strangers: dict[ClientPlace, None] = {}  # longest without a step first
        self._others: set[ClientPlace] = set()

    @property
    def total(self) -> int:
        return len(self._strangers) + len(self._others)

    @property
    def clients(self) -> int:
        return len(self._open)

    def enter(self, place: ClientPlace) -> str | None:
        """Count a connection in, which may have another give way; or return the reply that refuses it."""
        key, is_stranger = place.counted_as, not place.may_relay
        if self._open[key] >= self._max_per_client or (
            is_stranger and self._of_origin[key] >= self._most_of_origin
        ):
            return replies.TOO_MANY_FROM_CLIENT
        if (is_stranger and len(self._strangers) >= self._share) or self.total >= self._max_connections:
            first = next(iter(self._strangers), None)
            if first is None:
                return replies.TOO_MANY_CONNECTIONS
            self.leave(first)
            first.give_way()
        self._open[key] += 1
        if is_stranger:
            self._strangers[place] = None
            self._of_origin[key] += 1
        else:
            self._others.add(place)
        return None

    def step(self, place: ClientPlace) -> None:
        if place in self._strangers:
            del self._strangers[place]
            self._strangers[place] = None

    def log_in(self, place: ClientPlace) -> None:
        place.may_relay = True
        if self._is_no_stranger_now(place):
            self._others.add(place)

    def leave(self, place: ClientPlace) -> None:
        """Ignored for a place that gave way."""
        if self._is_no_stranger_now(place) or place in self._others:
            self._others.discard(place)
            _count_down(self._open, place.counted_as)

    def _is_no_stranger_now(self, place: ClientPlace) -> bool:
        """Forget a stranger; return whether it was one."""
        if place not in self._strangers:
            return False
        del self._strangers[place]
        _count_down(self._of_origin, place.counted_as)
        return True


def _count_down(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]  # what is left behind would fill the memory
