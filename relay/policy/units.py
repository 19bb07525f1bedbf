"""What a policy is made of: sections, and scalars (numbers, durations, sizes, endpoints, names).  Pure.

Each scalar is one annotated type whose validator takes what YAML gives (text, a whole number,
true, false or nothing) and says in its error, in an operator's words, what would have
been right; what was written instead is told apart from that, as `Unfit`.  Every validator
also takes its own result, so that code may build a policy.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_interface, ip_network
from typing import Annotated, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from relay.clock import LONGEST_DURATION_NS
from relay.policy.document import Unfit as Unfit  # noqa: PLC0414 - part of the door

_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?) ?(ms|s|m|h|d|w)\Z")
_DURATION_UNIT_NS = {
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "h": 3_600 * 1_000_000_000,
    "d": 86_400 * 1_000_000_000,
    "w": 7 * 86_400 * 1_000_000_000,
}
_SIZE = re.compile(r"([0-9]{1,15}) ?(B|K|KB|KiB|M|MB|MiB|G|GB|GiB)?\Z", re.IGNORECASE)
_SIZE_UNIT_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_PORT = re.compile(r"[0-9]{1,5}\Z")
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*\Z")
_NAME = re.compile(r"[a-z0-9_-]{1,64}\Z")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_CREDENTIAL_NAME = re.compile(r"[^/]{1,255}\Z")

_URL_HOST = r"(?P<host>[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])"
WEB_URL = re.compile(rf"(?P<scheme>https?)://{_URL_HOST}(?P<port>:[0-9]{{1,5}})?(?P<rest>[/?][!-~]*)?\Z")
LONGEST_URL = 2000

LARGEST_SIZE_BYTES = 1 << 40
LARGEST_COUNT = 1_000_000_000
SHORTEST_PREFIX = {4: 8, 6: 7}
"""Bits that a network of clients must fix: 10.0.0.0/8 and fc00::/7 are the widest private ones
(RFC 1918, 3; RFC 4193, 3.1); anything wider is a part of the Internet, and an open relay."""
_NETWORK_WORDS = "expected a network such as 192.0.2.0/24 or '2001:db8::/32'"
_LONGEST_SHOWN = 40


AnyOrder = Field(strict=False)
"""Lets a list stand for a tuple; what is in it is as strict as ever."""


class Section(BaseModel):
    """What every part of a policy is: frozen, strict, and closed to unknown keys."""

    retired: ClassVar[Mapping[str, str]] = {}
    """By keys that a policy may have had: what to write instead."""

    # Compiled as a part of the whole, when a policy is read: each by itself would take as long again.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, populate_by_name=True, defer_build=True
    )


def unfit(words: str, value: object) -> Unfit:
    return Unfit(f"{words}, got {kind(value)}", f"{words}, got {shown(value)}")


def kind(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int():
            return "a number"
        case str():
            return "text"
        case dict():
            return "a mapping"
        case _:
            return "a list"


def shown(value: object) -> str:
    """Return a scalar of a policy as an error shows it: one short line; anything else as its kind."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            cut = value if len(value) <= _LONGEST_SHOWN else value[:_LONGEST_SHOWN] + "…"
            return f"'{cut}'"
        case _:
            return kind(value)


def duration_ns(value: object) -> int:
    """Take such as `90s`, `1.5h`, `5d`.  Raises ValueError, also for zero and for more than a year."""
    if isinstance(value, str) and (match := _DURATION.match(value)):
        whole, _, fraction = match[1].partition(".")
        unit_ns = _DURATION_UNIT_NS[match[2]]
        total_ns = int(whole) * unit_ns + int(fraction.ljust(9, "0") or 0) * unit_ns // 10**9
        if not 0 < total_ns <= LONGEST_DURATION_NS:
            raise unfit("a duration must be above zero and at most 366d", value)
        return total_ns
    raise unfit("expected a duration with a unit, such as 30s, 5m, 4h or 5d", value)


def size_bytes(value: object) -> int:
    """Take such as `50M` (units of 1024) or bytes.  Raises ValueError, also for zero and above a tebibyte."""
    total_bytes = 0
    if isinstance(value, int) and not isinstance(value, bool):
        total_bytes = value
    elif isinstance(value, str) and (match := _SIZE.match(value)):
        total_bytes = int(match[1]) * _SIZE_UNIT_BYTES[(match[2] or "")[:1].lower()]
    if not 0 < total_bytes <= LARGEST_SIZE_BYTES:
        raise unfit("expected a size from 1 to 1024G, such as 50M or 52428800", value)
    return total_bytes


def whole_number(least: int, most: int) -> BeforeValidator:
    """Both bounds are allowed."""
    words = "above zero" if (least, most) == (1, LARGEST_COUNT) else f"from {least} to {most}"
    return BeforeValidator(partial(_whole_number, least=least, most=most, words=f"a whole number {words}"))


def whole_number_or(word: str, least: int, most: int) -> BeforeValidator:
    """Both bounds are allowed, and the word."""
    words = f"{word} or a whole number from {least} to {most}"

    def check(value: object) -> int | str:
        return word if value == word else _whole_number(value, least=least, most=most, words=words)

    return BeforeValidator(check)


def _whole_number(value: object, *, least: int, most: int, words: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise unfit(f"expected {words}", value)
    if value > most >= LARGEST_COUNT:
        raise unfit(f"expected at most {most}", value)
    if not least <= value <= most:
        raise unfit(f"expected {words}", value)
    return value


def choice(options: Iterable[str]) -> BeforeValidator:
    """Members of a StrEnum stay what they are."""
    among = tuple(options)
    return BeforeValidator(lambda value: choose(value, among))


def choose(value: object, options: Sequence[str]) -> str:
    by_word = {str(option): option for option in options}
    if isinstance(value, str) and value in by_word:
        return by_word[value]
    *first, last = by_word
    raise unfit(f"expected {', '.join(first)} or {last}" if first else f"expected {last}", value)


def text(value: object) -> str:
    if isinstance(value, str) and value:
        return value
    if value == "":
        raise ValueError("expected text, got none")
    hint = "; put it in quotes" if isinstance(value, int) else ""
    raise Unfit(f"expected text, got {kind(value)}{hint}", f"expected text, got {shown(value)}{hint}")


def at_least_one(value: object) -> object:
    # Not `min_length`, which counts only the entries without a fault.
    if isinstance(value, tuple | list | dict) and not value:
        raise ValueError("expected at least one")
    return value


def each(check: Callable[[object], object]) -> BeforeValidator:
    """Return the validator of one value or a list of them; always a tuple."""

    def checked(value: object) -> tuple[object, ...]:
        values = value if isinstance(value, tuple | list) else (value,)
        if not values:
            raise ValueError("expected at least one")
        return tuple(check(each) for each in values)

    return BeforeValidator(checked)


def _matching(pattern: re.Pattern[str], expected: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        if isinstance(value, str) and pattern.match(value) and value not in (".", ".."):
            return value
        raise ValueError(f"expected {expected}")

    return check


@dataclass(frozen=True, slots=True)
class HostPort:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return ip_address(self.host).is_loopback


def endpoint(value: object) -> HostPort:
    """Take `ADDRESS:PORT`, IPv6 in brackets.  Raises ValueError, also for names: they may resolve anew."""
    if isinstance(value, HostPort):
        return value
    if isinstance(value, str):
        host, _, port = value.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if bracketed else host
        if _PORT.match(port) and int(port) <= 65535:
            try:
                address = ip_address(host)
            except ValueError:
                pass
            else:
                if bracketed == (address.version == 6):
                    return HostPort(str(address), int(port))
    raise unfit("expected ADDRESS:PORT with an IP address, such as 127.0.0.1:2525 or [::1]:2525", value)


def network(value: object) -> IPv4Network | IPv6Network:
    """Take one address too.  Raises ValueError, also for bits behind the prefix and for an open relay."""
    found = any_network(value)
    if value is not found and found.prefixlen < SHORTEST_PREFIX[found.version]:
        words = (
            "lets strangers in: an open relay; name your own networks, "
            f"/{SHORTEST_PREFIX[found.version]} at the widest"
        )
        raise Unfit(f"it {words}", f"{found} {words}")
    return found


def any_network(value: object) -> IPv4Network | IPv6Network:
    """Take a bare address as a network of one.  Raises ValueError, also for bits set behind the prefix."""
    if isinstance(value, IPv4Network | IPv6Network):
        return value
    if not isinstance(value, str) or "%" in value:
        raise unfit(_NETWORK_WORDS, value)
    try:
        return ip_network(value)
    except ValueError:
        try:
            right = ip_interface(value).network
        except ValueError:
            raise unfit(_NETWORK_WORDS, value) from None
        words = "has bits set behind its prefix"
        raise Unfit(f"it {words}", f"{shown(value)} {words}; did you mean {right}?") from None


def source_address(value: object) -> str:
    """Take an IP address that a host may have, without a zone.  Raises ValueError."""
    words = "expected an IP address of this host, such as 192.0.2.1 or 2001:db8::1"
    try:
        found = ip_address(value) if isinstance(value, str) and "%" not in value else None
    except ValueError:
        found = None
    if found is None or found.is_unspecified or found.is_multicast:
        raise unfit(words, value)
    return str(found)


def upstream_host(value: object) -> str:
    """Take a host; a final dot goes, which certificates do not have and which names no other account."""
    if isinstance(value, str):
        host = value.removesuffix(".")
        # A last label of digits is an IP address or a slip in one, never a domain (RFC 3696, 2).
        if _HOST_NAME.match(host) and not host.rpartition(".")[2].isdigit():
            return host
        try:
            return str(ip_address(value))
        except ValueError:
            pass
        name, colon, port = value.rpartition(":")
        if colon and _PORT.match(port) and _HOST_NAME.match(name):
            raise ValueError("expected a host name alone; write the port as a key of its own")
    raise unfit("expected a host name or an IP address", value)


def is_loopback_host(host: str) -> bool:
    """Whether a host is this one by its very spelling: `localhost` or a loopback IP address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def https_url(value: object, example: str, what_crosses: str) -> str:
    """Take an https URL, or http of this host itself.  Raises ValueError, which shows nothing of the URL.

    Many receivers are known by a secret in their path.
    """
    if not isinstance(value, str) or len(value) > LONGEST_URL:
        raise ValueError(f"expected a URL such as {example}")
    found = WEB_URL.match(value)
    if found is None or "#" in value or int((found["port"] or ":1")[1:]) not in range(1, 65536):
        raise ValueError(f"expected a URL such as {example}, without user, password and #")
    if found["scheme"] == "http" and not is_loopback_host(found["host"].strip("[]")):
        raise ValueError(
            f"http is for this host only, {what_crosses} would cross the network in the clear: https"
        )
    return value


def own_name(value: object) -> str:
    """Return our name in SMTP: a domain, or an address literal (RFC 5321, 4.1.3).  Raises ValueError."""
    if isinstance(value, str):
        if _HOST_NAME.match(value):
            return value
        if value.startswith("[") and value.endswith("]"):
            try:
                ip_address(value[1:-1].removeprefix("IPv6:"))
            except ValueError:
                pass
            else:
                return value
    raise unfit("expected a domain name such as mail.example.net", value)


def _name_of(what: str) -> BeforeValidator:
    """Return the validator of a name, which is also a label of metrics and part of a file name or key."""

    def check(value: object) -> str:
        if isinstance(value, str) and _NAME.match(value):
            return value
        raise ValueError(f"the name of {what} is made of a-z, 0-9, _ and -, at most 64 of them")

    return BeforeValidator(check)


Duration = Annotated[int, BeforeValidator(duration_ns)]
Size = Annotated[int, BeforeValidator(size_bytes)]
Endpoint = Annotated[HostPort, BeforeValidator(endpoint)]
PositiveInt = Annotated[int, whole_number(1, LARGEST_COUNT)]
NotEmpty = BeforeValidator(at_least_one)
Text = Annotated[str, BeforeValidator(text)]
Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(network)]
AnyNetwork = Annotated[IPv4Network | IPv6Network, BeforeValidator(any_network)]
SourceAddress = Annotated[str, BeforeValidator(source_address)]
UpstreamHost = Annotated[str, BeforeValidator(upstream_host)]
UpstreamName = Annotated[str, _name_of("an upstream")]
LaneName = Annotated[str, _name_of("a lane")]
OwnName = Annotated[str, BeforeValidator(own_name)]
VariableName = Annotated[
    str,
    BeforeValidator(_matching(_VARIABLE_NAME, "the name of an environment variable, such as ISP_PASSWORD")),
]
CredentialName = Annotated[
    str, BeforeValidator(_matching(_CREDENTIAL_NAME, "the name of a credential, without / and not .."))
]
