"""Every line that the relay logs: its name, level, fields and text.  Pure, data only.

A test holds docs/events-and-metrics.md, which says what each event and field means, to `KINDS`.  As text
an event is its template, and ends with ` event=NAME`.  As JSON it is one object: `time`, `event`,
`level`, and its fields.
"""

import enum
from dataclasses import dataclass


class Level(enum.IntEnum):
    """How much an event matters: the numbers of syslog (RFC 5424, 6.2.1)."""

    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6
    DEBUG = 7


@dataclass(frozen=True, slots=True)
class Kind:
    """One row.  `{name}` in the template is a field, `{_name}` a piece that only text has."""

    name: str
    level: Level
    fields: tuple[str, ...]
    template: str


_ERROR, _WARNING, _NOTICE, _INFO, _DEBUG = Level.ERROR, Level.WARNING, Level.NOTICE, Level.INFO, Level.DEBUG

_ROWS: tuple[tuple[str, Level, str, str], ...] = (
    ("started", _NOTICE, "version hostname path",
     "started: version {version}, host {hostname}, policy {path}"),
    ("hostname_without_domain", _WARNING, "hostname",
     "this host is called {hostname}, without a domain: write hostname in the policy"),
    ("recovered", _NOTICE, "counts duration_seconds", "recovered in {duration_seconds}s: {counts}"),
    ("listening", _NOTICE, "listener protocol", "listening on {listener} for {protocol}"),
    ("stopping", _NOTICE, "reason in_flight", "stopping: {reason}; transactions in flight: {in_flight}"),
    ("stopped", _NOTICE, "queued", "stopped; messages queued: {queued}"),
    ("connected", _DEBUG, "listener client", "connect from {client} on {listener}"),
    ("disconnected", _DEBUG, "listener client reason", "disconnect from {client} on {listener}: {reason}"),
    ("refused", _INFO, "listener client phase reply user",
     "NOQUEUE: reject: {_phase} from {client}: {reply}; listener={listener}{_user}"),
    ("refusals_untold", _WARNING, "untold",
     "NOQUEUE: {untold} more refusals within a second have no line of their own"),
    ("accepted", _INFO,
     "queue_id listener client helo protocol user message_id reverse_path size_bytes nrcpt commit_seconds",
     ("{queue_id}: from=<{reverse_path}>, size={size_bytes}, nrcpt={nrcpt}, client={client}, helo=<{helo}>, "
      "proto={protocol}{_user}")),
    ("waiting", _INFO, "queue_id upstream lane reason until_at",
     "{queue_id}: waiting for {upstream} until {until_at}: {reason}"),
    ("upstream_connected", _DEBUG, "upstream relay tls", "connected to {relay} for {upstream}, TLS {tls}"),
    ("delivery", _INFO,
     ("queue_id upstream message_id reverse_path recipient relay conn_use delay_seconds delays_seconds tls "
      "dsn status command code text"),
     ("{queue_id}: to=<{recipient}>, relay={relay}, {_conn_use}delay={_delay}, delays={_delays}, {_tls}"
      "dsn={dsn}, status={_status} ({text}){_message_id}")),
    ("removed", _INFO, "queue_id", "{queue_id}: removed"),
    ("report_published", _NOTICE, "queue_id report_id size_bytes",
     "{queue_id}: sender non-delivery notification: {report_id}"),
    ("success_published", _NOTICE, "queue_id report_id size_bytes",
     "{queue_id}: sender delivery status notification: {report_id}"),
    ("warning_published", _NOTICE, "queue_id report_id size_bytes",
     "{queue_id}: sender delay notification: {report_id}"),
    ("report_waiting", _NOTICE, "queue_id",
     "{queue_id}: its report waits for room in reports.per_hour"),
    ("reports_capped", _ERROR, "until_at",
     "reports are at reports.per_hour and wait, the next one until {until_at}: see why so much mail fails"),
    ("reports_uncounted", _ERROR, "error", "reports cannot be counted, and go without a limit: {error}"),
    ("report_dropped", _ERROR, "queue_id recipient",
     "{queue_id}: a report to {recipient} could not be relayed, and is dropped: see reports.upstreams"),
    ("report_omitted", _WARNING, "queue_id nrcpt",
     "{queue_id}: no report of {nrcpt} failed recipients: it is from <>, wants none (NOTIFY), or is deleted"),
    ("upstream_paused", _WARNING, "upstream until_at reason",
     "upstream {upstream} paused until {until_at}: {reason}"),
    ("sender_paused", _ERROR, "upstream reverse_path until_at reason",
     "mail from <{reverse_path}> paused until {until_at}, refused by {upstream}: {reason}"),
    ("upstream_stopped", _ERROR, "upstream reason", "upstream {upstream} stopped: {reason}"),
    ("upstream_proving", _NOTICE, "upstream",
     "upstream {upstream} is tried again: one message goes first"),
    ("upstream_resumed", _NOTICE, "upstream", "upstream {upstream} resumed"),
    ("operator_paused", _NOTICE, "upstream by until_at",
     "upstream {upstream} paused by {by} until {until_at}"),
    ("operator_pause_ended", _NOTICE, "upstream reason",
     "upstream {upstream}: the operator's pause has ended: {reason}"),
    ("route_diverted", _WARNING, "routes upstream instead_of because",
     "route {routes}: mail goes through {upstream} instead of {instead_of}: {because}"),
    ("route_down", _ERROR, "routes upstream",
     "route {routes}: every upstream is down, and mail waits for {upstream}"),
    ("route_restored", _NOTICE, "routes upstream because",
     "route {routes}: mail goes through {upstream} again; what is over: {because}"),
    ("history_begun", _NOTICE, "upstream path",
     "history of {upstream} begins empty, at {path}: nothing that was sent before counts"),
    ("history_failed", _ERROR, "upstream error", "history of {upstream} failed, nothing is sent: {error}"),
    ("token_granted", _INFO, "upstream life_seconds is_rotated",
     "upstream {upstream}: a new access token, good for {life_seconds} s{_rotated}"),
    ("refresh_token_unrecorded", _ERROR, "upstream error",
     "upstream {upstream}: no new access token until its new refresh token is on disk: {error}"),
    ("pause_unrecorded", _WARNING, "upstream error", "pause of {upstream} is not kept on disk: {error}"),
    ("cut_off", _WARNING, "upstream windows named_slots",
     "upstream {upstream}: it says that this was too much{_named}; our windows held {windows}"),
    ("keys_crowded", _WARNING, "upstream limit",
     "upstream {upstream}: limit {limit}: more keys than are kept apart, its mail waits"),
    ("shortage", _WARNING, "where error", "{where} waits, out of descriptors or memory: {error}"),
    ("descriptors_short", _WARNING, "where descriptors needed connections",
     ("{where}: {descriptors} descriptors where the policy needs {needed}; "
      "connections at once: {connections}")),
    ("spool_failed", _ERROR, "error", "spool failed: {error}"),
    ("corrupt", _ERROR, "queue_id reason", "{queue_id}: corrupt, set aside: {reason}"),
    ("policy_loaded", _NOTICE, "path sha256 changes",
     "policy loaded: {_changes}{path}, sha256 {sha256}"),
    ("policy_refused", _ERROR, "path fault", "policy refused, the last good one stays: {fault}"),
    ("listener_files_loaded", _NOTICE, "listener users certificate",
     "listener {listener}: loaded {_what}"),
    ("listener_files_refused", _ERROR, "listener error",
     "listener {listener}: the last good users and certificate stay: {error}"),
    ("client_certificate_loaded", _NOTICE, "upstream certificate",
     "upstream {upstream}: shows it the certificate with SHA-256 {certificate}"),
    ("client_certificate_refused", _ERROR, "upstream error",
     "upstream {upstream}: the last good certificate stays: {error}"),
    ("policy_needs_restart", _WARNING, "path keys", "policy {path}: needs a restart to take effect: {keys}"),
    ("listener_died", _ERROR, "listener pid status", "listener {listener} died: pid {pid}, {status}"),
    ("listener_restarted", _NOTICE, "listener pid", "listener {listener} restarted: pid {pid}"),
    ("hook_failed", _WARNING, "hook error", "notices to {hook} fail, and are tried again: {error}"),
    ("hook_resumed", _NOTICE, "hook", "notices to {hook} arrive again"),
    ("notices_dropped", _ERROR, "notices hook reason", "notices to {hook} were dropped: {notices}, {reason}"),
    ("recent_unrecorded", _WARNING, "error",
     "what became of messages is not kept for `relay find`: {error}"),
    ("held", _NOTICE, "queue_id", "{queue_id}: held by the operator"),
    ("released", _NOTICE, "queue_id", "{queue_id}: released by the operator"),
    ("retried", _NOTICE, "queue_id", "{queue_id}: to be tried at once, by the operator"),
    ("put_first", _NOTICE, "queue_id", "{queue_id}: to go next in its account, by the operator"),
    ("deleted", _NOTICE, "queue_id message_id nrcpt",
     "{queue_id}: deleted by the operator, recipients left: {nrcpt}{_message_id}"),
    ("recipient_deleted", _DEBUG, "queue_id message_id reverse_path recipient",
     "{queue_id}: to=<{recipient}>, deleted by the operator"),
    ("clock_stepped", _WARNING, "by_seconds", "the clock of this host was set by {by_seconds} s"),
    ("log_lines_dropped", _WARNING, "lines", "log lines were dropped: {lines} that nobody read"),
    ("fault", _ERROR, "where client error traceback", "fault in {where}: {error}{_client}; {traceback}"),
)  # fmt: skip

KINDS: dict[str, Kind] = {
    name: Kind(name, level, tuple(fields.split()), template) for name, level, fields, template in _ROWS
}
