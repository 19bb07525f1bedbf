"""Which clients may connect and relay, and how many connections they may have.  Pure: no clock, no sockets.

Guarantees: a client may relay only if its address is in `clients`, or after the session called `log_in`.  The
tables have entries for open connections only.
"""

import functools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from relay.smtp import replies


@dataclass(frozen=True, slots=True)
class Client:
    ip: IPv4Address | IPv6Address
    """IPv4 also if a dual-stack socket mapped the address into IPv6 (RFC 4291, 2.5.5.2)."""
    address: str

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def of_peer(cls, host: str) -> "Client":
        """Return the client of a socket's peer host, without its zone (`%eth0`)."""
        ip = ip_address(host.partition("%")[0])
        mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
        return cls(mapped or ip, str(mapped or ip))

    def __str__(self) -> str:
        """Return `unknown[address]`: the relay never looks up the client's name."""
        return f"unknown[{self.address}]"

    @property
    def is_loopback(self) -> bool:
        """Return whether the client is on this host, so that plain text crosses no network."""
        return self.ip.is_loopback

    @property
    def origin(self) -> str:
        """Return the key that counts failures: the address, or for IPv6 the /64 that one host usually has."""
        if isinstance(self.ip, IPv6Address):
            return str(ip_network((self.ip, 64), strict=False))
        return self.address

    def is_in(self, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
        return any(self.ip in network for network in networks)


class ClientPlace:
    """One connection in the counts of `Admission`, from accept to close."""

    def __init__(self, client: Client, *, may_relay: bool) -> None:
        self.client, self.may_relay = client, may_relay
        """Whether the client is in `clients`, or has logged in."""
        self.counted_as = client.address if may_relay else client.origin
        """The key of its counts.  Outside `clients` it is the origin: one host can use its whole /64."""


class Admission:
    """Counts open connections, and refuses a connection above a maximum.

    A stranger is a client that may not relay, or not before it logs in.  Strangers have a fixed share of
    `max_connections`, and one origin has a part of that share.  So strangers cannot take the other places.
    """

    def __init__(self, max_connections: int, max_per_client: int, *, can_log_in: bool) -> None:
        self._max_connections, self._max_per_client = max_connections, max_per_client
        # Without a login a stranger can only be refused, so a tenth is enough.
        self._share = max(1, max_connections // (2 if can_log_in else 10))
        self._most_of_origin = min(max_per_client, max(self._share // 4, min(self._share, 10)))
        self._open: Counter[str] = Counter()
        self._strangers: Counter[str] = Counter()
        """The strangers among `_open`."""

    @property
    def total(self) -> int:
        return self._open.total()

    def enter(self, place: ClientPlace) -> str | None:
        """Count a connection in, or return the reply that refuses it."""
        key, is_stranger = place.counted_as, not place.may_relay
        if self._open[key] >= self._max_per_client or (
            is_stranger and self._strangers[key] >= self._most_of_origin
        ):
            return replies.TOO_MANY_FROM_CLIENT
        if self.total >= self._max_connections or (is_stranger and self._strangers.total() >= self._share):
            return replies.TOO_MANY_CONNECTIONS
        self._open[key] += 1
        if is_stranger:
            self._strangers[key] += 1
        return None

    def log_in(self, place: ClientPlace) -> None:
        if not place.may_relay:
            place.may_relay = True
            _count_down(self._strangers, place.counted_as)

    def leave(self, place: ClientPlace) -> None:
        _count_down(self._open, place.counted_as)
        if not place.may_relay:
            _count_down(self._strangers, place.counted_as)


def _count_down(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]  # entries of 0 would fill the memory
