"""The types of a policy, with their defaults.  docs/policy.md says what each key means.  Pure.

Guarantees: a `Policy` is whole and consistent; its holders check nothing again.
Durations are integer nanoseconds and end in `_ns`; in YAML the same key has no suffix
and a unit (`per: 1m`).  Paths are absolute, resolved against the policy's own folder.
A rule between keys is asked once all keys of its section are good by themselves.
Does not: read any file (see `secrets`), look up any name, or know YAML (see `source`).
"""

import enum
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from relay.clock import SECOND_NS
from relay.mail.address import is_valid_address
from relay.policy.database import DatabaseLogin, HistorySettings, history_settings, is_database_url
from relay.policy.document import Fault, Steps
from relay.policy.hook import MOST_HOOKS, HookSettings, faults_of_hooks
from relay.policy.lane import (
    LONGEST_PATTERN,
    MOST_LANES,
    MOST_ROUTES,
    LaneSettings,
    Routes,
    RouteSettings,
    SenderPatterns,
    UpstreamNames,
    faults_of_lanes,
    faults_of_names,
    faults_of_routes,
)
from relay.policy.limits import Limits, LimitSettings
from relay.policy.oauth2 import OAuth2
from relay.policy.rules import VerdictRule
from relay.policy.shipped import providers
from relay.policy.units import (
    DAY_NS,
    HOUR_NS,
    MINUTE_NS,
    AnyNetwork,
    Count,
    CredentialName,
    Duration,
    Endpoint,
    Name,
    Network,
    NotEmpty,
    OwnName,
    PolicyPath,
    Section,
    Size,
    SourceAddress,
    Text,
    UpstreamHost,
    VariableName,
    checked,
    is_loopback_host,
    one_of,
)
from relay.queue.sorting import NULL_SENDER, is_address

SPOOL_OF_A_SERVICE = "/var/lib/relay/spool"
"""In StateDirectory= of deploy/relay.service."""
LEAST_RECENT_BYTES = 1024 * 1024
RESTART_KEYS = ("storage", "listen", "http", "hostname", "practice")
"""Fields of a policy that are taken up at the start only; every other key is live."""

_NOT_IN_A_FILE_NAME = re.compile(r"[^a-z0-9@._+-]|^\.")


class Tls(enum.StrEnum):
    """How a connection is protected.  Never opportunistic."""

    STARTTLS = "starttls"
    IMPLICIT = "implicit"
    NONE = "none"


class Mechanism(enum.StrEnum):
    """A SASL mechanism towards the upstream; AUTO is the strongest one offered."""

    AUTO = "auto"
    CRAM_MD5 = "cram-md5"
    PLAIN = "plain"
    LOGIN = "login"
    EXTERNAL = "external"
    """By the client's certificate (RFC 4422, A), and never by AUTO."""


class TimeoutSettings(Section):
    """How long a client may take, per phase (RFC 5321, 4.5.3.2: 5 min a command, 3 min a block)."""

    command_ns: Duration = Field(default=5 * MINUTE_NS, alias="command")
    content_ns: Duration = Field(default=3 * MINUTE_NS, alias="content")
    transfer_ns: Duration = Field(default=HOUR_NS, alias="transfer")
    session_ns: Duration = Field(default=DAY_NS, alias="session")


class ListenUser(Section):
    senders: SenderPatterns | None = None
    max_queued: Count | None = None


ANY_USE = ListenUser()
ALL_OTHERS = "*"
"""In `users`, whoever has no entry."""


def _processes(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 64):
        return value
    raise ValueError("expected auto or a whole number from 0 to 64")


class Listen(Section):
    address: Endpoint
    clients: tuple[Network, ...] = ()
    proxies: tuple[Network, ...] = ()
    users_file: PolicyPath | None = None
    users: dict[Text, ListenUser] = Field(default_factory=dict)
    certificate: PolicyPath | None = None
    """STARTTLS is offered only with one.  Never self-made: clients verify."""
    key: PolicyPath | None = None
    tls: Tls = Tls.STARTTLS
    processes: Annotated[int | Literal["auto"], BeforeValidator(_processes)] = "auto"
    """0: inside the sender's.  `daemon.capacity` says what auto is."""
    max_size: Size = 50 * 1024 * 1024
    max_recipients: Count = 1000
    max_connections: Count = 200
    """Per listener process.  Strangers have a share of it (`listener.access`)."""
    max_connections_per_client: Count = 50
    max_queued_per_client: Count | None = None
    max_errors: Count = 20
    max_hops: Count = 50
    """RFC 5321, 6.3."""
    bare_newlines: Literal["refuse", "normalise"] = "refuse"
    normalise_from: tuple[AnyNetwork, ...] = ()
    timeouts: TimeoutSettings = TimeoutSettings()

    def faults(self) -> Iterator[Fault]:
        is_open = not self.address.is_loopback
        if is_open and not self.clients and self.users_file is None:
            words = "it is open to the network, and an open relay is never run: name clients or a users_file"
            yield Fault(words, ("address",))
        if self.users and self.users_file is None:
            yield Fault("nobody logs in without a users_file", ("users",))
        if is_open and self.users_file is not None and self.certificate is None:
            yield Fault(
                "passwords would cross the network in the clear: it needs a certificate", ("users_file",)
            )
        if self.key is not None and self.certificate is None:
            yield Fault("a key is of no use without a certificate", ("key",))
        if self.tls is Tls.NONE:
            yield Fault("expected starttls or implicit", ("tls",))
        if self.tls is Tls.IMPLICIT and self.certificate is None:
            yield Fault("implicit TLS needs a certificate", ("tls",))

    def may_send(self, user: str, reverse_path: str) -> bool:
        """Return whether a user may give this at MAIL.  A bounce pretends to be nobody."""
        rule = self._rule_of(user)
        return rule.senders is None or not reverse_path or is_address(rule.senders, reverse_path)

    def most_queued(self, user: str | None) -> int | None:
        """Return how many messages a user, or a client without a login, may have in the queue."""
        return self.max_queued_per_client if user is None else self._rule_of(user).max_queued

    def _rule_of(self, user: str) -> ListenUser:
        return self.users.get(user) or self.users.get(ALL_OTHERS) or ANY_USE


_PASSWORDS = ("password_file", "password_env", "password_credential", "oauth2")


class Auth(Section):
    """The owner's account at the upstream."""

    user: Text
    password_file: PolicyPath | None = None
    password_env: VariableName | None = None
    password_credential: CredentialName | None = None
    """A name under `$CREDENTIALS_DIRECTORY` (systemd LoadCredential=)."""
    oauth2: OAuth2 | None = None
    mechanism: Mechanism = Mechanism.AUTO

    def faults(self) -> Iterator[Fault]:
        given = [key for key in _PASSWORDS if getattr(self, key) is not None]
        if len(given) > 1:
            yield Fault(f"expected one password, got {' and '.join(given)}", (given[-1],))
        if self.mechanism is Mechanism.EXTERNAL:
            if given:
                yield Fault(f"the certificate is what logs in, so {given[-1]} is of no use", ("mechanism",))
        elif not given:
            yield Fault(f"expected one of {', '.join(_PASSWORDS)}")
        elif self.mechanism is not Mechanism.AUTO and self.oauth2 is not None:
            yield Fault("it takes a password; with oauth2 the key is oauth2.mechanism", ("mechanism",))


class ShieldSettings(Section):
    """When refusals that no rule knows are taken for one refusal of the account (`relay.verdicts.shield`)."""

    in_a_row: Annotated[int, Field(strict=True, ge=1, le=100)] = 10


class Upstream(Section):
    """One account at one smarthost, and what may be asked of it."""

    provider: Annotated[str, one_of(providers)] | None = None
    """Fills in what its owner does not write, and knows its refusals (`providers.yaml`)."""
    host: UpstreamHost
    port: Annotated[int, Field(strict=True, ge=1, le=65535)] = 587
    tls: Tls = Tls.STARTTLS
    ca_file: PolicyPath | None = None
    auth: Auth | None = None
    tls_certificate: PolicyPath | None = None
    """PEM chain that is shown to the upstream, which may know the relay by it."""
    tls_key: PolicyPath | None = None
    source_address: SourceAddress | None = None
    connections: Annotated[int, Field(strict=True, ge=1, le=1000)] = 4
    max_recipients: Count = 100
    """Per transaction."""
    max_messages: Count = 100
    """Per connection; then it is closed and another opened."""
    max_age_ns: Duration = Field(default=10 * MINUTE_NS, alias="max_age")
    idle_ns: Duration = Field(default=10 * SECOND_NS, alias="idle")
    pipelining: bool = True
    max_transaction_ns: Duration = Field(default=30 * MINUTE_NS, alias="max_transaction")
    """Of a message; the last third is for the last reply, 10 minutes at most.  A slot whose end nobody saw
    ends then: after a crash, or where a reply was lost."""
    limits: Limits
    """Written, or of the provider: an edit that was cut off must not lose them without a word."""
    guard_ns: Duration | None = Field(default=None, alias="guard")
    shield: ShieldSettings | None = ShieldSettings()
    """Waits instead of bouncing a list; null: every permanent refusal is believed at once."""
    history: Annotated[HistorySettings | None, BeforeValidator(history_settings)] = None
    verdicts: tuple[VerdictRule, ...] = ()

    def faults(self) -> Iterator[Fault]:
        auth = self.auth
        if self.tls is Tls.NONE and auth is not None and not is_loopback_host(self.host):
            words = "the password would cross the network in the clear: auth needs tls: starttls or implicit"
            yield Fault(words, ("tls",))
        if self.tls is Tls.NONE and self.tls_certificate is not None:
            yield Fault("it is shown in TLS only: tls is none", ("tls_certificate",))
        if self.tls_certificate is None:
            if auth is not None and auth.mechanism is Mechanism.EXTERNAL:
                yield Fault(
                    "external logs in by a certificate: it needs tls_certificate", ("auth", "mechanism")
                )
            if self.tls_key is not None:
                yield Fault("a key is of no use without a certificate", ("tls_key",))


class SpoolEngine(enum.StrEnum):
    """How messages are kept; `relay spool convert` leads from one that is on a disk to the other."""

    MAILDIR = "maildir"
    LOG = "log"
    POSTGRESQL = "postgresql"


def _engine(settings: dict[str, Any]) -> SpoolEngine:
    return SpoolEngine.MAILDIR if settings.get("postgresql") is None else SpoolEngine.POSTGRESQL


class SpoolSettings(DatabaseLogin):
    """In a policy a plain path is the whole of it, or a plain URL."""

    path: PolicyPath
    """With a database, what is this host's own."""
    engine: SpoolEngine = Field(default_factory=_engine)

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if (self.engine is SpoolEngine.POSTGRESQL) != (self.postgresql is not None):
            yield Fault("the engine postgresql and the URL postgresql go together", ("engine",))


def _as_settings(value: object) -> object:
    if isinstance(value, Mapping | SpoolSettings):
        return value
    return {"path": SPOOL_OF_A_SERVICE, "postgresql": value} if is_database_url(value) else {"path": value}


def _warn_after_ns(settings: dict[str, Any]) -> int:
    """Return the default, which must not be at fault where a lifetime is short."""
    return min(4 * HOUR_NS, int(settings["lifetime_ns"]) // 2)


class Retry(Section):
    min_ns: Duration = Field(default=5 * MINUTE_NS, alias="min")
    max_ns: Duration = Field(default=4 * HOUR_NS, alias="max")
    lifetime_ns: Duration = Field(default=5 * DAY_NS, alias="lifetime")
    """RFC 5321, 4.5.4.1: at least 4-5 days."""
    warn_after_ns: Duration | None = Field(default_factory=_warn_after_ns, alias="warn_after")

    def faults(self) -> Iterator[Fault]:
        if self.min_ns > self.max_ns:
            key = "min" if "min_ns" in self.model_fields_set else "max"
            yield Fault("min is longer than max", (key,))
        if self.warn_after_ns is not None and self.warn_after_ns >= self.lifetime_ns:
            yield Fault("it is not below lifetime: the bounce would come first", ("warn_after",))


def _is_report_sender(value: str) -> bool:
    # Only the recipient `Postmaster` needs no domain.
    return "@" in value and len(value) <= LONGEST_PATTERN and is_valid_address(value, smtputf8=False)


class Reports(Section):
    upstreams: UpstreamNames | None = None
    sender: Annotated[str, checked(_is_report_sender, "one address, in ASCII")] | None = Field(
        default=None, alias="from"
    )
    per_hour: Count | None = 60


class RecentSettings(Section):
    keep_ns: Duration = Field(default=7 * DAY_NS, alias="keep")
    most_bytes: Size = Field(default=64 * 1024 * 1024, alias="most")

    def faults(self) -> Iterator[Fault]:
        if self.most_bytes < LEAST_RECENT_BYTES:
            yield Fault("expected at least 1M, or `recent: null` to keep nothing", ("most",))


class Practice(Section):
    """A smarthost to practise on: it counts, refuses and cuts off, and sends nothing on."""

    address: Endpoint
    user: Text = "practice"
    password_file: PolicyPath
    limit: LimitSettings
    cut_off_ns: Duration = Field(default=MINUTE_NS, alias="cut_off")
    keep: PolicyPath | None = None

    def faults(self) -> Iterator[Fault]:
        for key in ("connections", "bytes", "for_each"):
            if getattr(self.limit, key) is not None:
                yield Fault("the practice smarthost counts messages or recipients alone", ("limit", key))
        if not self.address.is_loopback:
            yield Fault("it takes a password without TLS: only on 127.0.0.1 or [::1]", ("address",))


class HistoryPlace(NamedTuple):
    path: Path
    """Its file.  Of one in a database this host keeps its mark and its pauses beside that name."""
    account: str
    """What it is called in a database."""
    database: DatabaseLogin | None
    host: str = ""
    """What this one is called there; empty: as the system calls it."""

    def __str__(self) -> str:
        return str(self.path) if self.database is None else f"{self.account} in {self.database.postgresql}"


class Policy(Section):
    storage: Annotated[SpoolSettings, BeforeValidator(_as_settings)] = Field(alias="spool")
    listen: Annotated[tuple[Listen, ...], NotEmpty]
    http: Endpoint | None = None
    hostname: OwnName | None = None
    upstreams: Annotated[dict[Name, Upstream], NotEmpty]
    retry: Retry = Field(default_factory=Retry)
    reports: Reports = Reports()
    lanes: dict[Name, LaneSettings] = Field(default_factory=dict, max_length=MOST_LANES)
    written_routes: Routes = Field(default=(), max_length=MOST_ROUTES, alias="routes")
    notify: tuple[HookSettings, ...] = Field(default=(), max_length=MOST_HOOKS)
    recent: RecentSettings | None = RecentSettings()
    practice: Practice | None = None

    def faults(self) -> Iterator[Fault]:
        for key, found in (
            ("lanes", faults_of_lanes(self.lanes)),
            ("routes", faults_of_routes(self.written_routes)),
            ("notify", faults_of_hooks(self.notify)),
        ):
            yield from (each._replace(at=(key, *each.at)) for each in found)
        of_reports = self.reports.upstreams or ()
        # Without routes the first upstream gets all other mail, which no list says.
        first = (self.default_upstream,) if of_reports and not self.written_routes else ()
        lists: dict[Steps, tuple[str, ...]] = {("upstreams",): first, ("reports", "upstreams"): of_reports}
        for index, route in enumerate(self.written_routes):
            lists["routes", index, "upstreams"] = route.upstreams
        yield from faults_of_names(lists, {name: self.history_path(name) for name in self.upstreams})

    @property
    def spool(self) -> Path:
        return self.storage.path

    @property
    def default_upstream(self) -> str:
        return next(iter(self.upstreams))

    @property
    def routes(self) -> Routes:
        """Return the routes, that of `reports.upstreams` first."""
        if self.reports.upstreams is None:
            return self.written_routes
        first = RouteSettings(sender=(NULL_SENDER,), upstreams=self.reports.upstreams)
        return (first, *(self.written_routes or [RouteSettings(upstreams=(self.default_upstream,))]))

    @property
    def upstreams_of_reports(self) -> tuple[str, ...]:
        """Return those of the first route that takes the sender of reports and asks for nothing else."""
        for route in self.routes:
            is_open = route.asked() in ([], ["sender"])
            if is_open and (route.sender is None or is_address(route.sender, "")):
                return route.upstreams
        return (self.default_upstream,)

    @property
    def listed_upstreams(self) -> frozenset[str]:
        """Return the upstreams that may get mail: those that routes name, or else the first."""
        listed = frozenset(name for route in self.routes for name in route.upstreams)
        return listed or frozenset([self.default_upstream])

    @property
    def stand_ins(self) -> tuple[tuple[str, str], ...]:
        """Return each upstream that routes use instead of another one, with that one."""
        return tuple(
            dict.fromkeys(
                (name, before)
                for route in self.routes
                for index, name in enumerate(route.upstreams)
                for before in route.upstreams[:index]
            )
        )

    @property
    def reports_history(self) -> Path:
        """Return where the reports of the last hour are counted."""
        return self.spool / "reports"

    def history_of(self, upstream: str) -> HistoryPlace:
        """Name the default by the account, not by the upstream.

        A new name in the policy must not forget what was sent; upstreams of one account share its limits.
        """
        its = self.upstreams[upstream]
        account = (f"{its.auth.user}@{its.host}" if its.auth else its.host).lower()
        # Quoted, so that no account can name a file elsewhere; cut, so that any name fits.
        name = _NOT_IN_A_FILE_NAME.sub(lambda found: f"%{ord(found[0]):02x}", account)[:200]
        default, settings = self.spool.parent / "history" / name, its.history
        if settings is None or settings.path is not None:
            return HistoryPlace(default if settings is None else settings.path or default, account, None)
        return HistoryPlace(default, account, settings, self.hostname or "")

    def history_path(self, upstream: str) -> Path:
        return self.history_of(upstream).path
