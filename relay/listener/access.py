"""Who may connect, how often, and who may relay.  Pure: no clock, no sockets.

Guarantees: nobody relays who is not in `clients` (or authenticated, which the session
knows); the tables hold an entry per open connection and none that is left behind.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from relay.listener import replies


@dataclass(frozen=True, slots=True)
class Client:
    """The other end of a connection, by its address alone."""

    ip: IPv4Address | IPv6Address
    """As IPv4 where a dual-stack socket maps it into IPv6 (RFC 4291, 2.5.5.2)."""
    address: str
    """The same as text."""

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def of_peer(cls, host: str) -> "Client":
        """Return the client of a socket's peer host; a zone (`%eth0`) is not part of it.

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
        """Return who is to blame: the address, or for IPv6 the /64 that one host usually has."""
        if isinstance(self.ip, IPv6Address):
            return str(ip_network((self.ip, 64), strict=False))
        return self.address


class Relaying:
    """Who may relay without authentication."""

    def __init__(self, networks: Iterable[IPv4Network | IPv6Network]) -> None:
        self._networks = tuple(networks)

    def is_allowed(self, client: Client) -> bool:
        """Return whether the client is in one of the networks."""
        return any(client.ip in network for network in self._networks)


class Admission:
    """Counts open connections, in all and per client, and says who is one too many."""

    def __init__(self, max_connections: int, max_per_client: int) -> None:
        self._max_connections = max_connections
        self._max_per_client = max_per_client
        self._open: dict[str, int] = {}
        self.total = 0

    def enter(self, client: Client) -> str | None:
        """Count one in, or return the reply that refuses it (and then do not call `leave`)."""
        if self.total >= self._max_connections:
            return replies.TOO_MANY_CONNECTIONS
        count = self._open.get(client.address, 0)
        if count >= self._max_per_client:
            return replies.TOO_MANY_FROM_CLIENT
        self._open[client.address] = count + 1
        self.total += 1
        return None

    def leave(self, client: Client) -> None:
        """Count one out."""
        self.total -= 1
        count = self._open.pop(client.address) - 1
        if count:
            self._open[client.address] = count

    @property
    def clients(self) -> int:
        """Return how many different clients are connected."""
        return len(self._open)
