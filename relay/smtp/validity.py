"""When a certificate ends: the one field of X.509 that Python's ssl tells only of verified peers.  Pure.

Follows RFC 5280, 4.1: the fifth element of the signed part, behind the optional version, is the validity,
and its second time is the end.  A certificate that OpenSSL loaded is well-formed; any other gives None.
"""

from datetime import UTC, datetime

from relay.clock import SECOND_NS

_VERSION, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x17, 0x18
_LONG_LENGTH = 0x80


def ends_at_ns(certificate: bytes) -> int | None:
    """Return `notAfter` of a certificate in DER, by the wall clock; None where that is not there."""
    try:
        (_, signed), *_ = _elements(_elements(certificate)[0][1])
        fields = [field for field in _elements(signed) if field[0] != _VERSION]
        # Serial number, algorithm, issuer, validity.
        tag, content = _elements(fields[3][1])[1]
        return int(_instant(tag, content.decode("ascii")).timestamp()) * SECOND_NS
    except (IndexError, ValueError):
        return None


def _elements(content: bytes) -> list[tuple[int, bytes]]:
    """Return tag and content of each element of DER, one after the other.  Raises IndexError."""
    found, at = [], 0
    while at < len(content):
        tag, length = content[at], content[at + 1]
        at += 2
        if length >= _LONG_LENGTH:
            octets = length - _LONG_LENGTH
            length = int.from_bytes(content[at : at + octets])
            at += octets
        found.append((tag, content[at : at + length]))
        at += length
    return found


def _instant(tag: int, written: str) -> datetime:
    """Read a time as certificates have it (RFC 5280, 4.1.2.5).  Raises ValueError."""
    if tag == _UTC_TIME:
        # Two digits of the year, those of 1950 to 2049.
        written = ("19" if written >= "50" else "20") + written
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"no time has the tag {tag:#x}")
    return datetime.strptime(written, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
