"""The sections of a policy, with their defaults.  docs/policy.md says what each key means.  Pure.

Guarantees: a `Policy` is complete and consistent; its users check nothing again.
Durations are integer nanoseconds, in fields that end in `_ns`; in YAML the key has no suffix and the value a
unit (`per: 1m`).  Paths are absolute, resolved against the policy's folder.
Rules between keys are checked once all keys of the section are good by themselves.
Does not: read the files that a policy names (see `secrets`), look up names, or know YAML (see `document`).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationInfo

from relay.clock import SECOND_NS
from relay.mail.address import is_valid_address
from relay.policy import lane, units
from relay.policy.document import Fault, Steps
from relay.policy.shipped import KnownProvider, VerdictRule, with_preset
from relay.queue.sorting import NULL_SENDER, is_address

MOST_HOOKS = 8
RESTART_KEYS = ("storage", "listen", "http", "hostname", "practice")
"""Fields that take effect only at a start; all other fields are live."""

_NOT_IN_A_FILE_NAME = re.compile(r"[^a-z0-9@._+-]|^\.")

Tls = Literal["starttls", "implicit", "none"]
"""How a connection is protected.  Towards an upstream TLS is never opportunistic."""
Mechanism = Literal["auto", "cram-md5", "plain", "login", "external"]
"""A SASL mechanism for the login at an upstream.  `auto` uses the strongest one offered.  With `external` the
client certificate logs in (RFC 4422, A); `auto` never uses it."""
TokenMechanism = Literal["auto", "xoauth2", "oauthbearer"]
"""A SASL mechanism for an access token.  `auto` uses one that is offered, OAUTHBEARER before XOAUTH2."""


class TimeoutSettings(units.Section):
    """How long a client may take (RFC 5321, 4.5.3.2: 5 min for a command, 3 min for a block of content)."""

    command_ns: units.Duration = 5 * units.MINUTE_NS
    content_ns: units.Duration = 3 * units.MINUTE_NS
    transfer_ns: units.Duration = units.HOUR_NS
    session_ns: units.Duration = units.DAY_NS


class ListenUser(units.Section):
    senders: units.Several[lane.SenderPattern] | None = None
    max_queued: units.Count | None = None


ANY_USE = ListenUser.model_construct()
ALL_OTHERS = "*"
"""The key in `users` for all users without an entry."""


def _processes(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 64):
        return value
    raise ValueError("expected auto or a whole number from 0 to 64")


class Listen(units.Section):
    address: units.Endpoint
    clients: tuple[units.Network, ...] = ()
    proxies: tuple[units.Network, ...] = ()
    users_file: units.PolicyPath | None = None
    users: dict[units.Text, ListenUser] = Field(default_factory=dict)
    certificate: units.PolicyPath | None = None
    """Without a certificate STARTTLS is not offered.  The relay makes none itself: clients verify it."""
    key: units.PolicyPath | None = None
    tls: Literal["starttls", "implicit"] = "starttls"
    processes: Annotated[int | Literal["auto"], BeforeValidator(_processes)] = "auto"
    """Listener processes; 0: the sender's process listens.  `daemon.capacity` decides what auto means."""
    max_size: units.Size = 50 * 1024 * 1024
    max_recipients: units.Count = 1000
    max_connections: units.Count = 200
    """In each listener process.  Strangers get a share of it (`listener.access`)."""
    max_connections_per_client: units.Count = 50
    max_queued_per_client: units.Count | None = None
    max_errors: units.Count = 20
    max_hops: units.Count = 50
    """A message with more `Received:` lines loops (RFC 5321, 6.3)."""
    bare_newlines: Literal["refuse", "normalise"] = "refuse"
    normalise_from: tuple[units.AnyNetwork, ...] = ()
    timeouts: TimeoutSettings = TimeoutSettings.model_construct()

    def faults(self) -> Iterator[Fault]:
        is_open = not self.address.is_loopback
        if is_open and not self.clients and self.users_file is None:
            yield Fault("nobody could relay through this address: name clients or a users_file", ("address",))
        if self.users and self.users_file is None:
            yield Fault("users needs a users_file", ("users",))
        if is_open and self.users_file is not None and self.certificate is None:
            yield Fault("a users_file needs a certificate: passwords need TLS", ("users_file",))
        if self.key is not None and self.certificate is None:
            yield Fault("a key needs a certificate", ("key",))
        if self.tls == "implicit" and self.certificate is None:
            yield Fault("implicit TLS needs a certificate", ("tls",))

    def may_send(self, user: str, reverse_path: str) -> bool:
        """Return whether a user may give a reverse-path at MAIL.  Each user may give `<>`."""
        senders = self._rule_of(user).senders
        return senders is None or not reverse_path or is_address(senders, reverse_path)

    def most_queued(self, user: str | None) -> int | None:
        """Return how many messages a user, or a client without a login, may have queued; None: no limit."""
        return self.max_queued_per_client if user is None else self._rule_of(user).max_queued

    def _rule_of(self, user: str) -> ListenUser:
        return self.users.get(user) or self.users.get(ALL_OTHERS) or ANY_USE


SECRETS = ("client_secret_file", "client_secret_env", "client_secret_credential")
_KEYS = ("key_file", "key_credential")
_NEEDS = {
    "refresh_token": (("client_id",), ("refresh_token_file",), ("token_url",)),
    "client_credentials": (("client_id",), SECRETS, ("token_url",), ("scope",)),
    "service_account": (_KEYS, ("scope",)),
}
"""By grant: groups of keys; one key of each group is required.  With refresh_token a secret is optional."""

ServerUrl = Annotated[
    str, BeforeValidator(lambda value: units.https_url(value, "https://login.example.net/token", "secrets"))
]


class OAuth2(units.Section):
    """OAuth2 in place of a password.  `provider` fills in the URLs and the scope."""

    grant: Literal["refresh_token", "client_credentials", "service_account"]
    """How the relay requests an access token (RFC 6749; for a service account RFC 7523)."""
    client_id: units.Text | None = None
    client_secret_file: units.PolicyPath | None = None
    """With the refresh_token grant a public client has no secret."""
    client_secret_env: units.VariableName | None = None
    client_secret_credential: units.CredentialName | None = None
    refresh_token_file: units.PolicyPath | None = None
    key_file: units.PolicyPath | None = None
    key_credential: units.CredentialName | None = None
    tenant: units.Text | None = None
    token_url: ServerUrl | None = None
    device_url: ServerUrl | None = None
    login_url: ServerUrl | None = None
    scope: units.Text | None = None
    mechanism: TokenMechanism = "auto"

    def faults(self) -> Iterator[Fault]:
        for keys in _NEEDS[self.grant]:
            if not self.given(keys):
                words = f"grant {self.grant} needs {' or '.join(keys)}"
                hint = "; a provider fills it in (microsoft365 only with tenant)"
                yield Fault(words + hint * (keys[0] in ("token_url", "scope")), ("grant",))
        for keys in SECRETS, _KEYS:
            yield from self.at_most_one(keys, "secret")


class Auth(units.PasswordKeys):
    user: units.Text
    oauth2: OAuth2 | None = None
    mechanism: Mechanism = "auto"

    def faults(self) -> Iterator[Fault]:
        keys = (*units.PASSWORDS, "oauth2")
        given = self.given(keys)
        yield from self.at_most_one(keys, "password")
        if self.mechanism == "external":
            if given:
                yield Fault(f"external logs in by the certificate: remove {given[-1]}", ("mechanism",))
        elif not given:
            yield Fault(f"expected one of {', '.join(keys)}")
        elif self.mechanism != "auto" and self.oauth2 is not None:
            yield Fault("this mechanism takes a password; with oauth2 write oauth2.mechanism", ("mechanism",))


class ShieldSettings(units.Section):
    """When refusals that no rule knows count as one refusal of the account (`relay.verdicts.shield`)."""

    in_a_row: Annotated[int, Field(strict=True, ge=1, le=100)] = 10


class Upstream(units.Section):
    """One account at one smarthost: connection, login and limits."""

    provider: KnownProvider | None = None
    """Supplies keys that the owner leaves out, and rules for the provider's replies (`providers.yaml`)."""
    host: units.UpstreamHost
    port: Annotated[int, Field(strict=True, ge=1, le=65535)] = 587
    tls: Tls = "starttls"
    ca_file: units.PolicyPath | None = None
    auth: Auth | None = None
    tls_certificate: units.PolicyPath | None = None
    """PEM chain of the client certificate that the relay presents to the upstream."""
    tls_key: units.PolicyPath | None = None
    source_address: units.SourceAddress | None = None
    connections: Annotated[int, Field(strict=True, ge=1, le=1000)] = 4
    max_recipients: units.Count = 100
    """In each transaction."""
    max_messages: units.Count = 100
    """On each connection; then the relay closes it and opens another."""
    max_age_ns: units.Duration = 10 * units.MINUTE_NS
    idle_ns: units.Duration = 10 * SECOND_NS
    pipelining: bool = True
    max_transaction_ns: units.Duration = 30 * units.MINUTE_NS
    """The last third, at most 10 minutes, is for the last reply (RFC 5321, 4.5.3.2.6).  If the end of a
    transaction is unknown (a crash, a lost reply), its slot counts as ended at this deadline."""
    limits: lane.Limits
    """Required unless the provider supplies them: a half-written edit must not drop them silently."""
    guard_ns: units.Duration | None = None
    shield: ShieldSettings | None = ShieldSettings.model_construct()
    """Pauses instead of bouncing a list; null: the relay believes each permanent refusal at once."""
    history: Annotated[units.HistorySettings | None, BeforeValidator(units.with_key)] = None
    verdicts: tuple[VerdictRule, ...] = ()

    def faults(self) -> Iterator[Fault]:
        auth = self.auth
        if self.tls == "none" and auth is not None and not units.is_loopback_host(self.host):
            yield Fault("a password needs TLS: write starttls or implicit", ("tls",))
        if self.tls == "none" and self.tls_certificate is not None:
            yield Fault("a client certificate needs TLS, and tls is none", ("tls_certificate",))
        if self.tls_certificate is None:
            if auth is not None and auth.mechanism == "external":
                yield Fault("external needs tls_certificate", ("auth", "mechanism"))
            if self.tls_key is not None:
                yield Fault("tls_key needs tls_certificate", ("tls_key",))


SpoolEngine = Literal["maildir", "log", "postgresql"]
"""The spool's engine.  `relay spool convert` converts between maildir and log."""


class SpoolSettings(units.DatabaseLogin):
    path: units.PolicyPath = Path("/var/lib/relay/spool")
    """By default in StateDirectory= of deploy/relay.service.  With a database, this host's own files."""
    engine: SpoolEngine = Field(
        default_factory=lambda given: "postgresql" if given.get("postgresql") else "maildir"
    )

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if (self.engine == "postgresql") != (self.postgresql is not None):
            yield Fault("engine and key postgresql belong together: write both or neither", ("engine",))


class Retry(units.Section):
    min_ns: units.Duration = 5 * units.MINUTE_NS
    max_ns: units.Duration = 4 * units.HOUR_NS
    lifetime_ns: units.Duration = 5 * units.DAY_NS
    """RFC 5321, 4.5.4.1: a client gives up after at least 4-5 days."""
    warn_after_ns: units.Duration | None = 4 * units.HOUR_NS

    def faults(self) -> Iterator[Fault]:
        if self.min_ns > self.max_ns:
            yield Fault("min is longer than max", ("min",))


def _is_report_sender(value: str) -> bool:
    # `is_valid_address` accepts `Postmaster` without a domain; only a recipient may be that.
    return "@" in value and len(value) <= lane.LONGEST_PATTERN and is_valid_address(value, smtputf8=False)


ReportSender = Annotated[str, units.checked(_is_report_sender, "one address, in ASCII")]


class Reports(units.Section):
    upstreams: units.Several[units.Text] | None = None
    sender: ReportSender | None = Field(default=None, alias="from")
    per_hour: units.Count | None = 60


HookEvent = Literal[
    "bounced",
    "expired",
    "paused",
    "stopped",
    "resumed",
    "sender_paused",
    "route_diverted",
    "route_down",
    "route_restored",
]


def _server(url: str) -> str:
    """Return a URL for output: without path and query, which may be secret."""
    return re.sub("(?<=[^:/])[/?].*", "", url)


def _beside_the_policy(value: object, info: ValidationInfo) -> object:
    match value:
        case [str() as program, *arguments]:
            return (str(units.absolute_path(program, info)), *arguments)
        case _:
            return value


HookCommand = Annotated[tuple[units.Text, ...], units.NotEmpty, BeforeValidator(_beside_the_policy)]
HookUrl = Annotated[
    str,
    BeforeValidator(lambda value: units.https_url(value, "https://example.net/relay", "addresses")),
    # No policy takes a URL with `…`.
    PlainSerializer(lambda url: f"{_server(url)}/…"),
]


class HookSettings(units.Section):
    url: HookUrl | None = None
    secret_file: units.PolicyPath | None = None
    command: HookCommand | None = None
    events: units.Several[HookEvent] = get_args(HookEvent)
    timeout_ns: units.Duration = 10 * SECOND_NS

    def faults(self) -> Iterator[Fault]:
        if (self.url is None) == (self.command is None):
            yield Fault("expected either a url or a command; write two hooks for both")

    @property
    def shown(self) -> str:
        """Return the receiver for output: a program, or the server of a URL."""
        return _server(self.url or "") if self.command is None else self.command[0]


class RecentSettings(units.Section):
    keep_ns: units.Duration = 7 * units.DAY_NS
    most_bytes: Annotated[
        units.Size,
        units.checked(lambda most: most >= 1 << 20, "at least 1M, or `recent: null` to keep nothing"),
    ] = Field(default=64 << 20, alias="most")


class Practice(units.Section):
    """The practice smarthost: it counts, refuses and cuts off, and sends nothing on."""

    address: units.Endpoint
    user: units.Text = "practice"
    password_file: units.PolicyPath
    limit: lane.LimitSettings
    cut_off_ns: units.Duration = units.MINUTE_NS
    keep: units.PolicyPath | None = None

    def faults(self) -> Iterator[Fault]:
        for key in ("connections", "bytes", "for_each"):
            if getattr(self.limit, key) is not None:
                yield Fault("practice counts only messages or recipients of all mail", ("limit", key))
        if not self.address.is_loopback:
            yield Fault("practice takes passwords without TLS: write 127.0.0.1 or [::1]", ("address",))


class HistoryPlace(NamedTuple):
    path: Path
    """The history's file.  With a database, this host keeps its mark and its pauses beside this path."""
    account: str
    """The name of the account in a database."""
    database: units.DatabaseLogin | None
    host: str = ""
    """The name of this host in the database; empty: the system's host name."""

    def __str__(self) -> str:
        return str(self.path) if self.database is None else f"{self.account} in {self.database.postgresql}"


class Policy(units.Section):
    storage: Annotated[SpoolSettings, BeforeValidator(units.with_key)] = Field(alias="spool")
    listen: Annotated[tuple[Listen, ...], units.NotEmpty]
    http: units.Endpoint | None = None
    hostname: units.OwnName | None = None
    upstreams: Annotated[dict[units.Name, Annotated[Upstream, BeforeValidator(with_preset)]], units.NotEmpty]
    retry: Retry = Retry.model_construct()
    reports: Reports = Reports.model_construct()
    lanes: dict[units.Name, lane.LaneSettings] = Field(default_factory=dict, max_length=lane.MOST_LANES)
    written_routes: lane.Routes = Field(default=(), max_length=lane.MOST_ROUTES, alias="routes")
    notify: tuple[HookSettings, ...] = Field(default=(), max_length=MOST_HOOKS)
    recent: RecentSettings | None = RecentSettings.model_construct()
    practice: Practice | None = None

    def faults(self) -> Iterator[Fault]:
        yield from lane.faults_of_lanes(self.lanes)
        yield from lane.faults_of_routes(self.written_routes)
        lists: dict[Steps, tuple[str, ...]] = {
            # Without routes the first upstream gets all mail but reports.
            ("upstreams",): () if self.written_routes else (self.default_upstream,),
            ("reports", "upstreams"): self.reports.upstreams or (),
            **{("routes", at, "upstreams"): its.upstreams for at, its in enumerate(self.written_routes)},
        }
        user_of: dict[Path, str] = {}
        for at, names in lists.items():
            for number, name in enumerate(names):
                if name in names[:number]:
                    yield Fault("this upstream is listed twice", (*at, number))
                elif name not in self.upstreams:
                    yield Fault("the policy has no upstream of this name", (*at, number))
                # Both would write the file of pauses beside the history.
                elif user_of.setdefault(self.history_path(name), name) != name:
                    yield Fault("another upstream of the routes has the same history", (*at, number))

    @property
    def spool(self) -> Path:
        return self.storage.path

    @property
    def default_upstream(self) -> str:
        return next(iter(self.upstreams))

    @property
    def routes(self) -> lane.Routes:
        """Return the routes; the route of `reports.upstreams` is the first."""
        if self.reports.upstreams is None:
            return self.written_routes
        first = lane.RouteSettings(sender=(NULL_SENDER,), upstreams=self.reports.upstreams)
        return (first, *(self.written_routes or [lane.RouteSettings(upstreams=(self.default_upstream,))]))

    @property
    def listed_upstreams(self) -> frozenset[str]:
        """Return the upstreams that may get mail: those of the routes, or without routes the first."""
        listed = frozenset(name for route in self.routes for name in route.upstreams)
        return listed or frozenset([self.default_upstream])

    @property
    def reports_history(self) -> Path:
        """Return the path of the history that counts the reports of the last hour."""
        return self.spool / "reports"

    def history_of(self, upstream: str) -> HistoryPlace:
        """Return the place of an upstream's history, by default named after the account.

        So a renamed upstream keeps its history, and upstreams with the same account share its limits.
        """
        its = self.upstreams[upstream]
        account = (f"{its.auth.user}@{its.host}" if its.auth else its.host).lower()
        # Quoted, so that no account names a file in another folder; cut to fit NAME_MAX.
        name = _NOT_IN_A_FILE_NAME.sub(lambda found: f"%{ord(found[0]):02x}", account)[:200]
        path = (its.history and its.history.path) or self.spool.parent / "history" / name
        database = its.history if its.history and its.history.postgresql else None
        return HistoryPlace(path, account, database, (self.hostname or "") if database else "")

    def history_path(self, upstream: str) -> Path:
        return self.history_of(upstream).path
