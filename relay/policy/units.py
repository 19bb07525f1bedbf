"""The parts of a policy: sections, scalars (numbers, durations, addresses, names), and databases.  Pure.

Guarantees: the error of a scalar says what is expected and never quotes the value, which may be a misplaced
password.  A section can return itself as a policy states it (`as_written`).  No URL of a database contains a
password or a parameter that would weaken TLS.
Does not: know YAML or the position of a value (see `document`); read any file (see `secrets`); connect to a
database, or check its tables (`relay database check` does).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_interface
from operator import methodcaller
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from relay.clock import LONGEST_DURATION_NS, SECOND_NS
from relay.mail.formats import period, size
from relay.policy.document import Fault

LARGEST_SIZE_BYTES = 1 << 40
LARGEST_COUNT = 1_000_000_000
LONGEST_URL = 2000
SHORTEST_PREFIX = {4: 8, 6: 7}
"""The shortest prefix of a network of clients, by IP version.  10.0.0.0/8 and fc00::/7 are the widest private
networks (RFC 1918, 3; RFC 4193, 3.1).  A wider network is a part of the Internet: an open relay."""
BROKEN = "broken"
"""The type of pydantic's error for keys of a section that do not fit together."""

_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?) ?(ms|s|m|h|d|w)\Z")
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS
DAY_NS = 24 * HOUR_NS
_UNITS_NS = {"ms": 10**6, "s": SECOND_NS, "m": MINUTE_NS, "h": HOUR_NS, "d": DAY_NS, "w": 7 * DAY_NS}
_SIZE = re.compile(r"([0-9]{1,15}) ?(B|K|KB|KiB|M|MB|MiB|G|GB|GiB)?\Z", re.IGNORECASE)
_SIZE_UNIT_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_PORT = re.compile(r"[0-9]{1,5}\Z")
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*\Z")
_URL_HOST = r"(?P<host>[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])"
_DATABASE_URL = (
    r"postgres(?:ql)?://(?:[^\s:@/?#]+@)?[A-Za-z0-9._:,\[\]-]*/[^\s/?#]+"
    r"(?:\?(?:host|sslcert|sslkey)=[^\s&#]+(?:&(?:host|sslcert|sslkey)=[^\s&#]+)*)?"
)
WEB_URL = re.compile(rf"(?P<scheme>https?)://{_URL_HOST}(?P<port>:[0-9]{{1,5}})?(?:[/?][!-~]*)?\Z")
_key_of = methodcaller("removesuffix", "_ns")


class Section(BaseModel):
    """The base of every mapping in a policy: frozen, without unknown keys."""

    # Compiled as a part of Policy, when a policy is read: to compile each by itself would double the time.
    # So a default is made by `model_construct`, which compiles nothing.
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=_key_of, defer_build=True)

    def faults(self) -> Iterator[Fault]:
        """Yield the broken rules between keys.  Called once each key is good by itself."""
        yield from ()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if faults := tuple(self.faults()):
            raise PydanticCustomError(BROKEN, "{faults}", {"faults": faults})
        return self

    @model_serializer(mode="wrap")
    def _without_what_is_not_set(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        every = type(self).model_fields.items()
        unset = {its.alias or name for name, its in every if getattr(self, name) is its.default is None}
        return {key: value for key, value in write(self).items() if key not in unset}

    def given(self, keys: Iterable[str]) -> list[str]:
        return [key for key in keys if getattr(self, key) is not None]

    def at_most_one(self, keys: Iterable[str], what: str) -> Iterator[Fault]:
        if len(given := self.given(keys)) > 1:
            yield Fault(f"expected one {what}, got {' and '.join(given)}", (given[-1],))

    def as_written(self) -> dict[str, Any]:
        """Return the section as a policy states it, with presets and defaults, and without secrets."""
        return self.model_dump(mode="json", by_alias=True)


def written_key(section: type[Section], name: str) -> str:
    """Return the key in a policy for a field: the field's name without its unit."""
    return section.model_fields[name].alias or name


def duration_ns(value: object) -> int:
    """Parse a duration such as `90s`, `1.5h`, `5d`.  Raises ValueError, also for zero and above 366 days."""
    if isinstance(value, str) and (match := _DURATION.match(value)):
        total_ns = int(Decimal(match[1]) * _UNITS_NS[match[2]])
        if 0 < total_ns <= LONGEST_DURATION_NS:
            return total_ns
    raise ValueError("expected a duration with a unit, such as 30s, 5m, 4h or 5d, at most 366d")


def size_bytes(value: object) -> int:
    """Parse a size such as `50M` (1024 * 1024), or bytes.  Raises ValueError, also for 0 and above 1 TiB."""
    match = _SIZE.match(str(value)) if isinstance(value, int | str) else None
    total_bytes = int(match[1]) * _SIZE_UNIT_BYTES[(match[2] or "")[:1].lower()] if match else 0
    if not 0 < total_bytes <= LARGEST_SIZE_BYTES:
        raise ValueError("expected a size from 1 to 1024G, such as 50M or 52428800")
    return total_bytes


def checked(is_right: Callable[[Any], object], expected: str) -> AfterValidator:
    """Return a validator; `expected` completes its error, "expected …"."""

    def check(value: Any) -> Any:
        if not is_right(value):
            raise ValueError(f"expected {expected}")
        return value

    return AfterValidator(check)


def matching(pattern: str, expected: str) -> AfterValidator:
    # Compiled at its first use: most commands use few of the patterns.
    return checked(lambda value: re.fullmatch(pattern, value), expected)


def absolute_path(value: object, info: ValidationInfo) -> object:
    """Resolve a relative path against the policy's folder.  Raises ValueError."""
    if not isinstance(value, str):
        return value
    if not value:
        raise ValueError("expected a path, got none")
    if value.startswith("~"):
        # A folder named `~` beside the policy is never what was meant.
        raise ValueError("~ is not expanded; write the whole path")
    folder: Path = info.context or Path("/")
    return folder / value


class HostPort(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return ip_address(self.host).is_loopback


def endpoint(value: object) -> HostPort:
    """Parse `ADDRESS:PORT`, IPv6 in brackets.  Raises ValueError, also for host names: they may change."""
    if isinstance(value, str):
        host, _, port = value.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        address = _ip_address(host[1:-1] if bracketed else host)
        is_port = _PORT.match(port) and int(port) <= 65535
        if address is not None and is_port and bracketed == (address.version == 6):
            return HostPort(str(address), int(port))
    raise ValueError("expected ADDRESS:PORT with an IP address, such as 127.0.0.1:2525 or '[::1]:2525'")


def network(value: object) -> IPv4Network | IPv6Network:
    """Parse a network of clients, or one address.  Raises ValueError, also for an open relay."""
    found = any_network(value)
    least = SHORTEST_PREFIX[found.version]
    if found.prefixlen < least:
        raise ValueError(f"so wide a network makes an open relay; /{least} is the widest allowed")
    return found


def any_network(value: object) -> IPv4Network | IPv6Network:
    """Parse a network, or one address.  Raises ValueError, also if bits are set behind the prefix."""
    try:
        if not isinstance(value, str) or "%" in value:
            raise ValueError
        interface = ip_interface(value)
    except ValueError:
        raise ValueError("expected a network such as 192.0.2.0/24 or '2001:db8::/32'") from None
    if interface.ip != interface.network.network_address:
        raise ValueError(f"bits are set behind the prefix; did you mean {interface.network}?")
    return interface.network


def source_address(value: object) -> str:
    """Parse an IP address that a host can have, without a zone.  Raises ValueError."""
    found = _ip_address(value) if isinstance(value, str) and "%" not in value else None
    if found is None or found.is_unspecified or found.is_multicast:
        raise ValueError("expected an IP address of this host, such as 192.0.2.1 or '2001:db8::1'")
    return str(found)


def upstream_host(value: str) -> str:
    """Return a host name or IP address, without a final dot: certificates have none.  Raises ValueError."""
    host = value.removesuffix(".")
    # A last label of digits is an IP address or a misspelt one, never a domain (RFC 3696, 2).
    if _HOST_NAME.match(host) and not host.rpartition(".")[2].isdigit():
        return host
    if (address := _ip_address(value)) is not None:
        return str(address)
    raise ValueError("expected a host name or an IP address; the port goes in the key port")


def is_own_name(value: str) -> bool:
    """Return whether a text can be our name in SMTP: a domain, or an address literal (RFC 5321, 4.1.3)."""
    is_literal = value.startswith("[") and value.endswith("]")
    return bool(_HOST_NAME.match(value) or (is_literal and _ip_address(value[1:-1].removeprefix("IPv6:"))))


def _ip_address(value: str) -> Any:
    try:
        return ip_address(value)
    except ValueError:
        return None


def is_loopback_host(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback IP address.  No name is looked up."""
    address = _ip_address(host)
    return host.lower() == "localhost" if address is None else bool(address.is_loopback)


def https_url(value: object, example: str, what_crosses: str) -> str:
    """Parse an https URL, or an http URL of this host.  Raises ValueError."""
    found = WEB_URL.match(value) if isinstance(value, str) and len(value) <= LONGEST_URL else None
    if found is None or "#" in found[0] or int((found["port"] or ":1")[1:]) not in range(1, 65536):
        raise ValueError(f"expected a URL such as {example}, without user, password and #")
    if found["scheme"] == "http" and not is_loopback_host(found["host"].strip("[]")):
        raise ValueError(
            f"{what_crosses} would cross the network in the clear: write https (http only to this host)"
        )
    return found[0]


NotEmpty = checked(bool, "at least one")
"""Not `min_length`: pydantic reports that too if all entries are invalid."""
_T = TypeVar("_T")
Several = Annotated[
    tuple[_T, ...],
    BeforeValidator(lambda value: value if isinstance(value, list | tuple) else (value,)),
    NotEmpty,
]
"""A single value stands for a list with one entry."""
Count = Annotated[int, Field(strict=True, ge=1, le=LARGEST_COUNT)]
Percent = Annotated[int, Field(strict=True, ge=1, le=100)]
Duration = Annotated[int, BeforeValidator(duration_ns), PlainSerializer(period)]
Size = Annotated[
    int, BeforeValidator(size_bytes), PlainSerializer(lambda value: size(value).removesuffix(" bytes"))
]
Text = Annotated[str, StringConstraints(min_length=1)]
PolicyPath = Annotated[Path, BeforeValidator(absolute_path)]
Endpoint = Annotated[HostPort, BeforeValidator(endpoint), PlainSerializer(str)]
Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(network), PlainSerializer(str)]
AnyNetwork = Annotated[IPv4Network | IPv6Network, BeforeValidator(any_network), PlainSerializer(str)]
SourceAddress = Annotated[str, BeforeValidator(source_address)]
UpstreamHost = Annotated[str, AfterValidator(upstream_host)]
OwnName = Annotated[str, checked(is_own_name, "a domain name such as mail.example.net")]
Name = Annotated[str, matching("[a-z0-9_-]{1,64}", "a name of at most 64 characters: a-z, 0-9, _ and -")]
"""A name is also a label of metrics, and a part of file names and keys."""
VariableName = Annotated[
    str, matching("[A-Za-z_][A-Za-z0-9_]{0,127}", "the name of an environment variable, such as ISP_PASSWORD")
]
CredentialName = Annotated[
    str,
    matching(r"(?!\.\.?\Z)[^/]{1,255}", "the name of a credential, without / and not . or .."),
    # An owner may write the password itself here by mistake.
    PlainSerializer(lambda _: "…"),
]
DatabaseUrl = Annotated[
    str,
    matching(
        _DATABASE_URL,
        "a URL such as postgresql://relay@db.example.net/relay, without a password and with "
        "no parameters but host, sslcert and sslkey",
    ),
]

PASSWORDS = ("password_file", "password_env", "password_credential")


class PasswordKeys(Section):
    password_file: PolicyPath | None = None
    password_env: VariableName | None = None
    password_credential: CredentialName | None = None
    """The name of a file in `$CREDENTIALS_DIRECTORY` (systemd LoadCredential=)."""


class DatabaseLogin(PasswordKeys):
    """The keys of the spool and of a history in a database.  A policy may write the URL alone."""

    postgresql: DatabaseUrl | None = None
    ca_file: PolicyPath | None = None

    def faults(self) -> Iterator[Fault]:
        yield from self.at_most_one(PASSWORDS, "password")


class HistorySettings(DatabaseLogin):
    path: PolicyPath | None = None

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if (self.path is None) == (self.postgresql is None):
            yield Fault("expected either path or postgresql")


def with_key(value: object) -> object:
    """Expand a plain path or URL of a database to a mapping."""
    if value is None or isinstance(value, Mapping | Section):
        return value
    is_url = isinstance(value, str) and value.startswith(("postgresql://", "postgres://"))
    return {"postgresql" if is_url else "path": value}
