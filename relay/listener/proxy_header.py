"""The header by which a load balancer tells whose connection it passes on.  Pure.

PROXY protocol, version 2 (haproxy.org, doc/proxy-protocol.txt, 2.2): twelve fixed octets, a command, a
family, a length, addresses, and further fields that are skipped.  Version 1, of text, is not taken.
Assumes: who sends it is believed, so the caller reads it of named networks only.
"""

import socket
import struct
from ipaddress import IPv4Address, IPv6Address

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
FIXED_BYTES = 16
MOST_BYTES = 4096
"""Of what follows the fixed part; HAProxy sends a few hundred at most, of TLS."""

_VERSION, _LOCAL, _PROXY = 2, 0, 1
_FAMILIES = {1: (socket.AF_INET, 12), 2: (socket.AF_INET6, 36)}
"""Family, and the octets of two addresses and two ports."""
_STREAM = 1


class BadProxyHeader(Exception):  # noqa: N818 - it is what the header is
    """What a connection began with is no such header."""


def length_of(fixed: bytes) -> int:
    """Return how many octets follow the first FIXED_BYTES.  Raises BadProxyHeader."""
    if len(fixed) != FIXED_BYTES or not fixed.startswith(SIGNATURE):
        raise BadProxyHeader("no PROXY header of version 2")
    version, command = fixed[12] >> 4, fixed[12] & 15
    if version != _VERSION or command not in (_LOCAL, _PROXY):
        raise BadProxyHeader(f"PROXY version {version} with command {command}, not 2 with 0 or 1")
    length: int = struct.unpack("!H", fixed[14:])[0]
    if length > MOST_BYTES:
        raise BadProxyHeader(f"a PROXY header of {length} octets, above {MOST_BYTES}")
    return length


def client_of(fixed: bytes, following: bytes) -> str | None:
    """Return the client's address; None for a connection of the balancer itself, as a health check.

    `fixed` went through `length_of`.  Raises BadProxyHeader.
    """
    if fixed[12] & 15 == _LOCAL:
        return None
    family, transport = fixed[13] >> 4, fixed[13] & 15
    if family not in _FAMILIES or transport != _STREAM:
        raise BadProxyHeader(f"a PROXY header of family {family} and transport {transport}, not of TCP")
    kind, needed = _FAMILIES[family]
    if len(following) < needed:
        raise BadProxyHeader(f"a PROXY header of {len(following)} octets, too short for its addresses")
    return str(IPv4Address(following[:4]) if kind is socket.AF_INET else IPv6Address(following[:16]))
