"""What a load balancer's connection begins with, of any bytes: a client's address, or BadProxyHeader."""

from ipaddress import ip_address

from relay.listener.proxy_header import (
    FIXED_BYTES,
    MOST_BYTES,
    SIGNATURE,
    BadProxyHeader,
    client_of,
    length_of,
)
from tests.fuzz.choices import Choices
from tests.fuzz.work import bounded, must_be_shown

TOKENS = [SIGNATURE, b"\x20\0\0\0", b"\x21\x11\0\x0c", b"\x21\x21\0\x24", b"\0\xff", b"PROXY TCP4 "]


def target(raw: bytes) -> None:
    choices = Choices(raw)
    begin = SIGNATURE if choices.yes() else b""
    content = begin + choices.rest()
    fixed = content[:FIXED_BYTES]
    try:
        with bounded(200):
            length = length_of(fixed)
            assert 0 <= length <= MOST_BYTES
            told = client_of(fixed, content[FIXED_BYTES : FIXED_BYTES + length])
    except BadProxyHeader as error:
        must_be_shown(error)
        return
    assert told is None or str(ip_address(told)) == told


SEEDS = [
    b"\0" + SIGNATURE + b"\x21\x11\0\x0c" + bytes(12),
    b"\1\x21\x21\0\x24" + bytes(36),
    b"\1\x20\0\0\0",
]
