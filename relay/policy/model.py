"""The types of a policy, with their defaults: the reference for every key.  Pure.

Guarantees: a `Policy` is whole and consistent; its holders check nothing again.
Durations are integer nanoseconds and end in `_ns`; in YAML the same key has no suffix
and a unit (`per: 1m`).  Paths are absolute, resolved against the policy's own folder.
A rule between keys is a validator of the last of them, so that a fault elsewhere in the section
does not hide it.  A refused value is not in `data`, and then a rule about it is silent.
Does not: read any file (see `surroundings`), look up any name, or know YAML (see `source`).
"""

import enum
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from relay.policy.hook import NotifySettings
from relay.policy.lane import (
    LaneSettings,
    Routes,
    RouteSettings,
    faults_of,
    faults_of_routes,
    faults_of_shared_files,
    listed_upstreams,
    report_sender,
    sender_pattern,
    stand_ins,
    upstreams_of_reports,
    with_reports,
)
from relay.policy.limits import Limits, LimitSettings
from relay.policy.oauth2 import OAuth2
from relay.policy.provider_names import provider_names
from relay.policy.rules import Rules
from relay.policy.surroundings import (
    CertificateFile,
    PasswordCredential,
    PasswordFile,
    PasswordVariable,
    PolicyPath,
    UnusableSetting,
    UsersFile,
    absolute_path,
    broken,
    broken_rules,
    inspector_of,
)
from relay.policy.units import (
    AnyNetwork,
    AnyOrder,
    Duration,
    Endpoint,
    HostPort,
    LaneName,
    Network,
    NotEmpty,
    OwnName,
    PositiveInt,
    Section,
    Size,
    SourceAddress,
    Text,
    Unfit,
    UpstreamHost,
    UpstreamName,
    choice,
    choose,
    each,
    is_loopback_host,
    text,
    whole_number,
    whole_number_or,
)
from relay.queue.sorting import is_address

MINUTE_NS = 60 * 1_000_000_000
HOUR_NS = 60 * MINUTE_NS
DAY_NS = 24 * HOUR_NS
LEAST_RECENT_BYTES = 1024 * 1024

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
    """From one reply to the next whole command; of who may not relay a minute at most."""
    content_ns: Duration = Field(default=3 * MINUTE_NS, alias="content")
    """Between two reads of content."""
    transfer_ns: Duration = Field(default=HOUR_NS, alias="transfer")
    """From 354 to the final dot, whatever arrives in between."""
    session_ns: Duration = Field(default=DAY_NS, alias="session")
    """A whole connection, of who may not relay two minutes at most; it ends with 421 between two commands."""


class ListenUser(Section):
    senders: Annotated[tuple[str, ...], each(sender_pattern)] | None = None
    """Reverse-paths that this user may give at MAIL, and `<>`, of bounces; default: any."""
    max_queued: PositiveInt | None = None
    """Messages of this user in the queue; at more than that MAIL gets 452.  Default: any number."""


ANY_USE = ListenUser()
ALL_OTHERS = "*"
"""In `users`, whoever has no entry."""


class Listen(Section):
    address: Endpoint
    clients: Annotated[tuple[Network, ...], AnyOrder] = ()
    """Networks that may relay without AUTH."""
    proxies: Annotated[tuple[Network, ...], AnyOrder] = ()
    """Networks of load balancers, whose connections begin with a PROXY header."""
    users_file: Annotated[UsersFile | None, Field(validate_default=True)] = None
    """Lines `name:$argon2id$…` as `relay hash-password` prints them; AUTH needs it."""
    users: dict[Text, ListenUser] = Field(default_factory=dict)
    """What those of `users_file` may do; `*` stands for all that are not named."""
    certificate: Annotated[CertificateFile | None, Field(validate_default=True)] = None
    """PEM chain; STARTTLS is offered only with one.  Never self-made: clients verify."""
    key: Annotated[PolicyPath | None, Field(validate_default=True)] = None
    """PEM private key; default: in the file of the certificate."""
    tls: Annotated[Literal[Tls.STARTTLS, Tls.IMPLICIT], choice([Tls.STARTTLS, Tls.IMPLICIT])] = Tls.STARTTLS
    processes: Annotated[int | Literal["auto"], whole_number_or("auto", 0, 64)] = "auto"
    """Listener processes of their own; 0: inside the sender's.  `daemon.processes` says what auto is."""
    max_size: Size = 50 * 1024 * 1024
    """Octets of content, as SIZE advertises it."""
    max_recipients: PositiveInt = 1000
    max_connections: PositiveInt = 200
    """At once, per listener process; more get 421.  Who may not relay gives way (`listener.access`)."""
    max_connections_per_client: PositiveInt = 50
    max_queued_per_client: PositiveInt | None = None
    """Messages in the queue that one address handed over without a login; at more MAIL gets 452."""
    max_errors: PositiveInt = 20
    """Refused commands in one session before 421, and very many without mail."""
    max_hops: PositiveInt = 50
    """Received: lines in a message before it counts as looping (RFC 5321, 6.3)."""
    bare_newlines: Annotated[Literal["refuse", "normalise"], choice(["refuse", "normalise"])] = "refuse"
    """What a CR or LF alone in content means: 550, or made CRLF."""
    normalise_from: Annotated[tuple[AnyNetwork, ...], AnyOrder] = ()
    """Networks whose CR or LF alone is made CRLF, though `bare_newlines` refuses that of others."""
    timeouts: TimeoutSettings = TimeoutSettings()

    @field_validator("users_file")
    @classmethod
    def _somebody_may_relay(cls, users_file: Path | None, info: ValidationInfo) -> Path | None:
        address, clients = info.data.get("address"), info.data.get("clients")
        if users_file is None and clients == () and address is not None and not address.is_loopback:
            words = (
                "is open to the network: name the clients or a users_file that may relay, "
                "since an open relay is never run"
            )
            raise broken(f"it {words}", "..", "address", shown=f"{address} {words}")
        return users_file

    @field_validator("users")
    @classmethod
    def _users_can_log_in(cls, users: dict[str, ListenUser], info: ValidationInfo) -> dict[str, ListenUser]:
        if users and info.data.get("users_file", "refused") is None:
            raise ValueError("nobody logs in without a users_file, so there is nobody to say this of")
        return users

    @field_validator("certificate")
    @classmethod
    def _auth_only_under_tls(cls, certificate: Path | None, info: ValidationInfo) -> Path | None:
        address, users_file = info.data.get("address"), info.data.get("users_file")
        if certificate is None and users_file is not None and address is not None and not address.is_loopback:
            clear, needed = "passwords would cross the network in the clear", "AUTH needs a certificate"
            raise broken(f"{clear}: {needed}", "..", "users_file", shown=f"{clear} on {address}: {needed}")
        return certificate

    @field_validator("key")
    @classmethod
    def _key_fits_certificate(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        if "certificate" not in info.data:
            return key
        return _fitting_key(info, info.data["certificate"], key, "certificate")

    @field_validator("tls")
    @classmethod
    def _implicit_tls_has_certificate(
        cls, tls: Literal[Tls.STARTTLS, Tls.IMPLICIT], info: ValidationInfo
    ) -> Literal[Tls.STARTTLS, Tls.IMPLICIT]:
        if tls is Tls.IMPLICIT and info.data.get("certificate", "refused") is None:
            raise ValueError("implicit TLS needs a certificate")
        return tls

    def may_send(self, user: str, reverse_path: str) -> bool:
        """Return whether who logged in may give this at MAIL.  A bounce pretends to be nobody."""
        rule = self._rule_of(user)
        return rule.senders is None or not reverse_path or is_address(rule.senders, reverse_path)

    def most_queued(self, user: str | None) -> int | None:
        """Return how many messages a user, or a client without a login, may have in the queue."""
        return self.max_queued_per_client if user is None else self._rule_of(user).max_queued

    def _rule_of(self, user: str) -> ListenUser:
        return self.users.get(user) or self.users.get(ALL_OTHERS) or ANY_USE


def _fitting_key(info: ValidationInfo, certificate: Path | None, key: Path | None, named: str) -> Path | None:
    """Return the key if it is that of the certificate; `named` is the key of that in the policy."""
    if certificate is None and key is not None:
        raise ValueError("a key is of no use without a certificate")
    if certificate is not None and (inspector := inspector_of(info)):
        try:
            inspector.key_pair(certificate, key)
        except Unfit as error:
            at = named if key is None else str(info.field_name)
            raise broken(error.plain, "..", at, shown=error.shown) from None
    return key


class Auth(Section):
    """The owner's account at the upstream.

    Exactly one of the three password keys and `oauth2`, or none with `mechanism: external`.
    """

    user: Text
    password_file: PasswordFile | None = None
    """A file that only its owner can read; one trailing newline is cut."""
    password_env: PasswordVariable | None = None
    oauth2: OAuth2 | None = None
    """Access tokens instead of a password."""
    password_credential: Annotated[PasswordCredential | None, Field(validate_default=True)] = None
    """A name under `$CREDENTIALS_DIRECTORY` (systemd LoadCredential=)."""
    mechanism: Annotated[Mechanism, choice(Mechanism), Field(validate_default=True)] = Mechanism.AUTO

    @field_validator("password_credential")
    @classmethod
    def _at_most_one_password(cls, credential: str | None, info: ValidationInfo) -> str | None:
        given = [key for key in _PASSWORDS if info.data.get(key) is not None]
        given += ["password_credential"] if credential is not None else []
        if len(given) > 1:
            raise broken(f"expected one password, got {' and '.join(given)}", "..", given[-1])
        return credential

    @field_validator("mechanism")
    @classmethod
    def _mechanism_has_its_password(cls, mechanism: Mechanism, info: ValidationInfo) -> Mechanism:
        keys = (*_PASSWORDS, "password_credential")
        given = [key for key in keys if info.data.get(key) is not None]
        if mechanism is Mechanism.EXTERNAL and given:
            raise ValueError(f"the certificate is what logs in, so {given[-1]} is of no use")
        if mechanism is not Mechanism.EXTERNAL and not given and all(key in info.data for key in keys):
            raise broken("expected one of password_file, password_env, password_credential and oauth2", "..")
        if mechanism is not Mechanism.AUTO and info.data.get("oauth2") is not None:
            raise ValueError("it takes a password; with oauth2 the key is oauth2.mechanism")
        return mechanism


_PASSWORDS = ("password_file", "password_env", "oauth2")


class ShieldSettings(Section):
    """When refusals that no rule knows are taken for one refusal of the account (`relay.verdicts.shield`)."""

    in_a_row: Annotated[int, whole_number(1, 100)] = 10
    """So many recipients refused alike, in words that no rule knows, with nothing relayed in between."""


class Upstream(Section):
    """One account at one smarthost, and what may be asked of it."""

    retired: ClassVar = {
        "adapt": "adapt is no key any more: the log says what a refusal found our windows at"
    }

    provider: Annotated[str | None, BeforeValidator(lambda value: choose(value, provider_names()))] = None
    """Fills in what its owner does not write, and knows its refusals (`providers.yaml`)."""
    host: UpstreamHost
    port: Annotated[int, whole_number(1, 65535)] = 587
    tls: Annotated[Tls, choice(Tls)] = Tls.STARTTLS
    ca_file: CertificateFile | None = None
    """Trust these instead of the system's certificate authorities."""
    auth: Auth | None = None
    tls_certificate: Annotated[CertificateFile | None, Field(validate_default=True)] = None
    """PEM chain that is shown to the upstream, which may know the relay by it."""
    tls_key: Annotated[PolicyPath | None, Field(validate_default=True)] = None
    """PEM private key; default: in the file of the certificate."""
    source_address: SourceAddress | None = None
    """Connections are made from this address of this host; only addresses of its family are tried."""
    connections: Annotated[int, whole_number(1, 1000)] = 4
    """The most that are open at once."""
    max_recipients: PositiveInt = 100
    """Per transaction; what an upstream announces by LIMITS RCPTMAX (RFC 9422) lowers it."""
    max_messages: PositiveInt = 100
    """Per connection; then it is closed and another opened."""
    max_age_ns: Duration = Field(default=10 * MINUTE_NS, alias="max_age")
    """Of a connection; it is closed after its transaction."""
    idle_ns: Duration = Field(default=10 * 1_000_000_000, alias="idle")
    """How long a connection is kept without a transaction."""
    pipelining: bool = True
    """Send MAIL, RCPT and DATA at once where that is offered (RFC 2920)."""
    max_transaction_ns: Duration = Field(default=30 * MINUTE_NS, alias="max_transaction")
    """Of a message; the last third is for the last reply, 10 minutes at most.  A slot whose end nobody saw
    ends then: after a crash, or where a reply was lost."""
    limits: Limits = ()
    guard_ns: Duration | None = Field(default=None, alias="guard")
    """Widens every window; default: 1 % of it, at most one second."""
    shield: ShieldSettings | None = ShieldSettings()
    """Waits instead of bouncing a list; null: every permanent refusal is believed at once."""
    history: PolicyPath | None = None
    """Default: `history/USER@HOST` beside the spool."""
    verdicts: Rules = ()
    """What this upstream's refusals mean; asked before all others."""

    @field_validator("auth")
    @classmethod
    def _auth_only_under_tls(cls, auth: Auth | None, info: ValidationInfo) -> Auth | None:
        host, tls = info.data.get("host"), info.data.get("tls")
        if auth is not None and host is not None and tls is Tls.NONE and not is_loopback_host(host):
            raise broken(
                "the password would cross the network in the clear: auth needs tls: starttls or implicit",
                "..",
                "tls",
            )
        return auth

    @field_validator("tls_certificate")
    @classmethod
    def _certificate_is_shown(cls, certificate: Path | None, info: ValidationInfo) -> Path | None:
        if certificate is not None and info.data.get("tls") is Tls.NONE:
            raise ValueError("it is shown in TLS only: tls is none")
        auth = info.data.get("auth")
        if certificate is None and auth is not None and auth.mechanism is Mechanism.EXTERNAL:
            raise broken(
                "it logs in by a certificate, so it needs tls_certificate", "..", "auth", "mechanism"
            )
        return certificate

    @field_validator("tls_key")
    @classmethod
    def _key_fits_certificate(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        if "tls_certificate" not in info.data:
            return key
        return _fitting_key(info, info.data["tls_certificate"], key, "tls_certificate")


class SpoolEngine(enum.StrEnum):
    """How messages are kept on disk; `relay spool convert` leads from one to the other."""

    MAILDIR = "maildir"
    """A file each."""
    LOG = "log"
    """One after the other in long files, for floods and slow disks."""


class SpoolSettings(Section):
    """In a policy a plain path is the whole of it."""

    path: PolicyPath
    engine: Annotated[SpoolEngine, choice(SpoolEngine)] = SpoolEngine.MAILDIR


def _as_settings(value: object, info: ValidationInfo) -> object:
    if isinstance(value, Mapping | SpoolSettings):
        return value
    return {"path": absolute_path(value, info)}


class Retry(Section):
    min_ns: Duration = Field(default=5 * MINUTE_NS, alias="min")
    max_ns: Duration = Field(default=4 * HOUR_NS, alias="max")
    lifetime_ns: Duration = Field(default=5 * DAY_NS, alias="lifetime")
    """RFC 5321, 4.5.4.1: at least 4-5 days."""
    warn_after_ns: Duration | None = Field(default=4 * HOUR_NS, alias="warn_after")
    """Tell the sender once that the message is late; null: never.  Unwritten, half of a short lifetime."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        rules = []
        if self.min_ns > self.max_ns:
            key = "min" if "min_ns" in self.model_fields_set else "max"
            rules.append(UnusableSetting("min is longer than max", (key,)))
        if "warn_after_ns" not in self.model_fields_set:
            # A default must not be at fault; past pydantic, since a section is frozen.
            object.__setattr__(self, "warn_after_ns", min(4 * HOUR_NS, self.lifetime_ns // 2))
        elif self.warn_after_ns is not None and self.warn_after_ns >= self.lifetime_ns:
            rules.append(
                UnusableSetting(
                    "warn_after is not below lifetime: the bounce would come first", ("warn_after",)
                )
            )
        if rules:
            raise broken_rules(rules)
        return self


class Reports(Section):
    upstreams: Annotated[tuple[str, ...], each(text)] | None = None
    """Mail from `<>` goes through these, before any route is asked; default: as `routes` say."""
    sender: Annotated[str | None, BeforeValidator(report_sender)] = Field(default=None, alias="from")
    """The address in `From:` of reports and warnings; default: MAILER-DAEMON at our own name."""
    per_hour: PositiveInt | None = 60
    """The most reports and warnings in any hour; what is beyond waits.  null: any number."""


class RecentSettings(Section):
    """How much of what became of messages is kept, for `relay find`."""

    keep_ns: Duration = Field(default=7 * DAY_NS, alias="keep")
    """From the end of a recipient; what is older goes, in pieces of an eighth of this."""
    most_bytes: Size = Field(default=64 * 1024 * 1024, alias="most")
    """On disk; the oldest goes first."""

    @field_validator("most_bytes")
    @classmethod
    def _is_worth_it(cls, most_bytes: int) -> int:
        if most_bytes < LEAST_RECENT_BYTES:
            raise ValueError("expected at least 1M, or `recent: null` to keep nothing")
        return most_bytes


class Practice(Section):
    """(restart) A smarthost to practise on: it counts, refuses and cuts off, and sends nothing on."""

    address: Endpoint
    user: Text = "practice"
    password_file: PasswordFile
    limit: LimitSettings
    cut_off_ns: Duration = Field(default=MINUTE_NS, alias="cut_off")
    """How long it refuses everything once the limit was exceeded."""
    keep: PolicyPath | None = None
    """A folder to write what arrived to; default: only counted."""

    @field_validator("limit")
    @classmethod
    def _it_counts_what_it_can(cls, limit: LimitSettings) -> LimitSettings:
        for key in ("connections", "bytes", "for_each"):
            if getattr(limit, key) is not None:
                raise broken("the practice smarthost counts messages or recipients in any T, no more", key)
        return limit

    @field_validator("address")
    @classmethod
    def _is_ours_alone(cls, address: HostPort) -> HostPort:
        if not address.is_loopback:
            raise broken(
                "it has no TLS and takes a password, so it may only be on this host: 127.0.0.1 or [::1]"
            )
        return address


class Policy(Section):
    """The whole of `policy.yaml`.  `spool`, `listen`, `http`, `practice` and `hostname` need a restart."""

    storage: Annotated[SpoolSettings, BeforeValidator(_as_settings)] = Field(alias="spool")
    listen: Annotated[tuple[Listen, ...], AnyOrder, NotEmpty]
    http: Endpoint | None = None
    hostname: OwnName | None = None
    """Our name in the banner, in HELO, in `Received:` and reports; default: this host's."""
    upstreams: Annotated[dict[UpstreamName, Upstream], NotEmpty]
    """The first is the default: without `routes` it gets all mail."""
    retry: Retry = Retry()
    reports: Reports = Reports()
    lanes: dict[LaneName, LaneSettings] = Field(default_factory=dict)
    """The first that matches a message; without any, first come is first served."""
    written_routes: Routes = Field(default=(), alias="routes", validate_default=True)
    """The first that matches a recipient; without any, the first upstream gets all mail."""
    notify: NotifySettings = ()
    """Who is told of bounces, pauses and stops, beside the log."""
    recent: RecentSettings | None = RecentSettings()
    """What became of messages, kept for `relay find`; null: nothing is kept, and what was is removed."""
    practice: Practice | None = None

    @field_validator("lanes")
    @classmethod
    def _lanes_fit_together(cls, lanes: dict[str, LaneSettings]) -> dict[str, LaneSettings]:
        if rules := faults_of(lanes):
            raise broken_rules(rules)
        return lanes

    @field_validator("written_routes")
    @classmethod
    def _routes_lead_somewhere(
        cls, routes: tuple[RouteSettings, ...], info: ValidationInfo
    ) -> tuple[RouteSettings, ...]:
        storage, upstreams = info.data.get("storage"), info.data.get("upstreams")
        of_reports = info.data.get("reports", Reports()).upstreams or ()
        rules = faults_of_routes(routes, of_reports, upstreams)
        if storage is not None and upstreams is not None:
            histories = {name: _history_of(storage.path, of) for name, of in upstreams.items()}
            rules += faults_of_shared_files(routes, of_reports, histories)
        if rules:
            raise broken_rules(rules)
        return routes

    @field_validator("listen")
    @classmethod
    def _addresses_differ(cls, listen: tuple[Listen, ...]) -> tuple[Listen, ...]:
        seen: set[HostPort] = set()
        rules = []
        for index, listener in enumerate(listen):
            if listener.address in seen:
                shown = f"a second listener on {listener.address}"
                rules.append(UnusableSetting("a second listener on this address", (index, "address"), shown))
            # Port 0 asks the kernel for a free one, which is another each time.
            if listener.address.port != 0:
                seen.add(listener.address)
        if rules:
            raise broken_rules(rules)
        return listen

    @field_validator("http")
    @classmethod
    def _http_has_its_own_address(cls, http: HostPort | None, info: ValidationInfo) -> HostPort | None:
        if http is not None and http.port != 0 and http in _addresses(info.data.get("listen", ())):
            raise Unfit("it is already an address of listen", f"{http} is already an address of listen")
        return http

    @field_validator("practice")
    @classmethod
    def _practice_has_its_own_address(
        cls, practice: Practice | None, info: ValidationInfo
    ) -> Practice | None:
        taken = {*_addresses(info.data.get("listen", ())), info.data.get("http")}
        if practice is not None and practice.address.port != 0 and practice.address in taken:
            words = "is already in use by listen or http"
            raise broken(f"it {words}", "address", shown=f"{practice.address} {words}")
        return practice

    @property
    def spool(self) -> Path:
        """Return the folder of accepted messages."""
        return self.storage.path

    @property
    def default_upstream(self) -> str:
        return next(iter(self.upstreams))

    @property
    def routes(self) -> tuple[RouteSettings, ...]:
        """Return the routes, that of `reports.upstreams` first."""
        return with_reports(self.written_routes, self.reports.upstreams or (), self.default_upstream)

    @property
    def upstreams_of_reports(self) -> tuple[str, ...]:
        return upstreams_of_reports(self.routes, self.default_upstream)

    @property
    def listed_upstreams(self) -> frozenset[str]:
        """Return the upstreams that may get mail: those that routes name, or else the first."""
        return listed_upstreams(self.routes, self.default_upstream)

    @property
    def stand_ins(self) -> tuple[tuple[str, str], ...]:
        """Return each upstream that routes use instead of another one, with that one."""
        return stand_ins(self.routes)

    @property
    def reports_history(self) -> Path:
        """Return where the reports of the last hour are counted."""
        return self.spool / "reports"

    def history_path(self, upstream: str) -> Path:
        """Name the default by the account, not by the upstream.

        A new name in the policy must not forget what was sent; upstreams of one account share its limits.
        """
        return _history_of(self.spool, self.upstreams[upstream])


def _history_of(spool: Path, of: Upstream) -> Path:
    account = f"{of.auth.user}@{of.host}" if of.auth else of.host
    # Quoted, so that no account can name a file elsewhere; cut, so that any name fits.
    name = _NOT_IN_A_FILE_NAME.sub(lambda found: f"%{ord(found[0]):02x}", account.lower())[:200]
    return of.history or spool.parent / "history" / name


def _addresses(listen: tuple[Listen, ...]) -> set[HostPort]:
    return {listener.address for listener in listen}
