"""Every line that the relay logs: its name, level, text and fields.  Pure, data only.

The table of events in docs/events-and-metrics.md is made from `KINDS`.  As text an event is its template,
and ends with ` event=NAME`.  As JSON it is one object: `time`, `event`, `level`, and its fields.

In a template `{name}` is a field; `{name:text with %}` is that text with the field in place of `%`, and
nothing where the field is null, 0, false or empty; `{_name}` is a piece that only the text has.
"""

import enum
from string import Formatter
from typing import NamedTuple


class Level(enum.IntEnum):
    """How much an event matters: the numbers of syslog (RFC 5424, 6.2.1)."""

    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6
    DEBUG = 7


class Kind(NamedTuple):
    """One row."""

    name: str
    level: Level
    pattern: str
    """The template with `%s` for each field."""
    shown: tuple[tuple[str, str], ...]
    """The fields in it, each with the text around one that may be left out, or nothing."""
    only_json: tuple[str, ...]
    """The fields that the text does not have."""


_ERROR, _WARNING, _NOTICE, _INFO, _DEBUG = Level.ERROR, Level.WARNING, Level.NOTICE, Level.INFO, Level.DEBUG

_ROWS: tuple[tuple[str, Level, str, str], ...] = (
    ("started", _NOTICE, "started: version {version}, host {hostname}, policy {path}", ""),
    ("hostname_without_domain", _WARNING,
     "this host is called {hostname}, without a domain: write hostname in the policy", ""),
    ("recovered", _NOTICE, "recovered in {duration_seconds}s: {counts}", ""),
    ("listening", _NOTICE, "listening on {listener} for {protocol}", ""),
    ("stopping", _NOTICE, "stopping: {reason}; transactions in flight: {in_flight}", ""),
    ("stopped", _NOTICE, "stopped; messages queued: {queued}", ""),
    ("connected", _DEBUG, "connect from {client} on {listener}", ""),
    ("disconnected", _DEBUG, "disconnect from {client} on {listener}: {reason}", ""),
    ("refused", _INFO,
     "NOQUEUE: reject: {_phase} from {client}: {reply}; listener={listener}{user:, sasl_username=%}",
     "phase"),
    ("refusals_untold", _WARNING,
     "NOQUEUE: {untold} more refusals within a second have no line of their own", ""),
    ("accepted", _INFO,
     ("{queue_id}: from=<{reverse_path}>, size={size_bytes}, nrcpt={nrcpt}, client={client}, helo=<{helo}>, "
      "proto={protocol}{user:, sasl_username=%}"), "listener message_id commit_seconds"),
    ("waiting", _INFO, "{queue_id}: waiting for {upstream} until {until_at}: {reason}", "lane"),
    ("upstream_connected", _DEBUG, "connected to {relay} for {upstream}, TLS {tls}", ""),
    ("delivery", _INFO,
     ("{queue_id}: to=<{recipient}>, relay={relay}, {_conn_use}delay={_delay}, delays={_delays}, "
      "{tls:tls=%, }dsn={dsn}, status={_status} ({text}){message_id:, message-id=%}"),
     "upstream reverse_path conn_use delay_seconds delays_seconds status command code"),
    ("removed", _INFO, "{queue_id}: removed", ""),
    ("report_published", _NOTICE, "{queue_id}: sender non-delivery notification: {report_id}", "size_bytes"),
    ("success_published", _NOTICE,
     "{queue_id}: sender delivery status notification: {report_id}", "size_bytes"),
    ("warning_published", _NOTICE, "{queue_id}: sender delay notification: {report_id}", "size_bytes"),
    ("report_waiting", _NOTICE, "{queue_id}: its report waits for room in reports.per_hour", ""),
    ("reports_capped", _ERROR,
     "reports are at reports.per_hour and wait, the next one until {until_at}: see why so much mail fails",
     ""),
    ("reports_uncounted", _ERROR, "reports cannot be counted, and go without a limit: {error}", ""),
    ("report_dropped", _ERROR,
     "{queue_id}: a report to {recipient} could not be relayed, and is dropped: see reports.upstreams", ""),
    ("report_omitted", _WARNING,
     "{queue_id}: no report of {nrcpt} failed recipients: it is from <>, wants none (NOTIFY), or is deleted",
     ""),
    ("upstream_paused", _WARNING, "upstream {upstream} paused until {until_at}: {reason}", ""),
    ("sender_paused", _ERROR,
     "mail from <{reverse_path}> paused until {until_at}, refused by {upstream}: {reason}", ""),
    ("upstream_stopped", _ERROR, "upstream {upstream} stopped: {reason}", ""),
    ("upstream_proving", _NOTICE, "upstream {upstream} is tried again: one message goes first", ""),
    ("upstream_resumed", _NOTICE, "upstream {upstream} resumed", ""),
    ("operator_paused", _NOTICE, "upstream {upstream} paused by {by} until {until_at}", ""),
    ("operator_pause_ended", _NOTICE, "upstream {upstream}: the operator's pause has ended: {reason}", ""),
    ("route_diverted", _WARNING,
     "route {routes}: mail goes through {upstream} instead of {instead_of}: {because}", ""),
    ("route_down", _ERROR, "route {routes}: every upstream is down, and mail waits for {upstream}", ""),
    ("route_restored", _NOTICE,
     "route {routes}: mail goes through {upstream} again; what is over: {because}", ""),
    ("history_begun", _NOTICE,
     "history of {upstream} begins empty, at {path}: nothing that was sent before counts", ""),
    ("history_failed", _ERROR, "history of {upstream} failed, nothing is sent: {error}", ""),
    ("token_granted", _INFO,
     ("upstream {upstream}: a new access token, good for {life_seconds} s"
      "{is_rotated:, and a new refresh token}"), ""),
    ("refresh_token_unrecorded", _ERROR,
     "upstream {upstream}: no new access token until its new refresh token is on disk: {error}", ""),
    ("pause_unrecorded", _WARNING, "pause of {upstream} is not kept on disk: {error}", ""),
    ("cut_off", _WARNING,
     ("upstream {upstream}: it says that this was too much{named_slots:, and names %}; "
      "our windows held {windows}"), ""),
    ("shortage", _WARNING, "{where} waits, out of descriptors or memory: {error}", ""),
    ("descriptors_short", _WARNING,
     ("{where}: {descriptors} descriptors where the policy needs {needed}; "
      "connections at once: {connections}"), ""),
    ("spool_failed", _ERROR, "spool failed: {error}", ""),
    ("corrupt", _ERROR, "{queue_id}: corrupt, set aside: {reason}", ""),
    ("policy_loaded", _NOTICE, "policy loaded: {changes:%; }{path}, sha256 {sha256}", ""),
    ("policy_refused", _ERROR, "policy refused, the last good one stays: {fault}", "path"),
    ("policy_needs_restart", _WARNING, "policy {path}: needs a restart to take effect: {keys}", ""),
    ("listener_files_loaded", _NOTICE,
     "listener {listener}: loaded{users: % users}{certificate: certificate with SHA-256 %}", ""),
    ("listener_files_refused", _ERROR,
     "listener {listener}: the last good users and certificate stay: {error}", ""),
    ("client_certificate_loaded", _NOTICE,
     "upstream {upstream}: shows it the certificate with SHA-256 {certificate}", ""),
    ("client_certificate_refused", _ERROR,
     "upstream {upstream}: the last good certificate stays: {error}", ""),
    ("listener_died", _ERROR, "listener {listener} died: pid {pid}, {status}", ""),
    ("listener_restarted", _NOTICE, "listener {listener} restarted: pid {pid}", ""),
    ("hook_failed", _WARNING, "notices to {hook} fail, and are tried again: {error}", ""),
    ("hook_resumed", _NOTICE, "notices to {hook} arrive again", ""),
    ("notices_dropped", _ERROR, "notices to {hook} were dropped: {notices}, {reason}", ""),
    ("recent_unrecorded", _WARNING, "what became of messages is not kept for `relay find`: {error}", ""),
    ("held", _NOTICE, "{queue_id}: held by the operator", ""),
    ("released", _NOTICE, "{queue_id}: released by the operator", ""),
    ("retried", _NOTICE, "{queue_id}: to be tried at once, by the operator", ""),
    ("put_first", _NOTICE, "{queue_id}: to go next in its account, by the operator", ""),
    ("deleted", _NOTICE,
     "{queue_id}: deleted by the operator, recipients left: {nrcpt}{message_id:, message-id=%}", ""),
    ("recipient_deleted", _DEBUG,
     "{queue_id}: to=<{recipient}>, deleted by the operator", "message_id reverse_path"),
    ("clock_stepped", _WARNING, "the clock of this host was set by {by_seconds} s", ""),
    ("log_lines_dropped", _WARNING, "log lines were dropped: {lines} that nobody read", ""),
    ("fault", _ERROR, "fault in {where}: {error}{client: (client %)}; {traceback}", ""),
)  # fmt: skip


def _kind(name: str, level: Level, template: str, only_json: str) -> Kind:
    pattern, shown = "", []
    for literal, field, optional, _ in Formatter().parse(template):
        pattern += literal.replace("%", "%%")
        if field is not None:
            pattern += "%s"
            shown.append((field, optional or ""))
    return Kind(name, level, pattern, tuple(shown), tuple(only_json.split()))


KINDS: dict[str, Kind] = {row[0]: _kind(*row) for row in _ROWS}
