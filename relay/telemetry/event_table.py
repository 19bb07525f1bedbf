"""Every line that the relay logs: its name, level, fields and meaning.  Pure, data only.

A test holds docs/events-and-metrics.md to `KINDS` and `FIELDS`.  As text an event is its template.  As
JSON it is one object: `time`, `event`, `level`, and its fields.  For log readers made for Postfix it is
`POSTFIX_LINES`: the lines of the processes that Postfix would be there, in its own shapes (its
src/global/log_adhoc.c, src/smtpd, src/qmgr, src/bounce).
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple


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
    meaning: str


FIELDS: dict[str, str] = {
    "because": "why mail goes elsewhere than its route prefers: failover, spill, or all_down where every "
    "upstream of the route is down",
    "by": "who paused it, by the name of their account",
    "certificate": "SHA-256 of the certificate that is shown, as openssl prints it; null without one",
    "code": "the reply code of the upstream; null where no proper reply came",
    "charged_slots": "all of ours that the upstream may have counted, refused and in flight too; null if not "
    "known",
    "client": "who handed mail over: name[address]",
    "command": "what the reply answered: connect, ehlo, starttls, auth, mail, rcpt, data, or `.` for the "
    "final dot",
    "commit_seconds": "from the final dot to durable",
    "conn_use": "which transaction on its connection this was, from 1",
    "connections": "how many clients may be connected at once",
    "counts": "what the start found, by name",
    "delay_seconds": "the sum of `delays_seconds`",
    "delays_seconds": "before the queue, in the queue and the throttle, connecting, transmitting",
    "descriptors": "how many a process may have",
    "dsn": "the enhanced status code (RFC 3463)",
    "duration_seconds": "how long it took",
    "effective_slots": "the N in force, below the policy's",
    "error": "what went wrong",
    "fault": "one fault of a policy: FILE:LINE:COLUMN: KEY: MESSAGE",
    "helo": "the argument of HELO or EHLO",
    "holds_new": "whether what comes in meanwhile is held",
    "hook": "who is told by `notify`: a program, or a URL without its path",
    "hostname": "our own name",
    "in_flight": "transactions that are not at their end",
    "keys": "the keys of the policy that changed",
    "instead_of": "the upstream that is passed over",
    "lane": "the lane of the message, by its name in the policy; null without lanes",
    "is_rotated": "whether the refresh token changed with it, too",
    "life_seconds": "how long the token is good",
    "limit": "a limit, as `relay status` names it",
    "message_id": "the Message-ID of its header, with its brackets; cut to 998 characters; null without one "
    "in the first 32 KiB",
    "lines": "how many lines of the log",
    "listener": "the address that mail is taken on, as the policy writes it",
    "named_slots": "the N that the upstream says itself; null where it says none",
    "needed": "how many descriptors the policy needs at most",
    "notices": "how many notices",
    "nrcpt": "how many recipients",
    "by_seconds": "by how much, back where negative",
    "over_seconds": "from when the first of it began until the refusal",
    "path": "a file",
    "per_seconds": "T, the length of the window",
    "phase": "what was refused: connect, a command in lower case, or eod for the content",
    "pid": "the number of an operating system process",
    "protocol": "how the message came: SMTP, ESMTPSA and so on; or what is listened for",
    "queue_id": "the message",
    "queued": "how many messages are in the queue",
    "reason": "why",
    "recipient": "the address of a recipient",
    "relay": "the host that was talked to: host[address]:port, or `none`",
    "reply": "the reply that we gave",
    "report_id": "the queue id of the report or warning",
    "reverse_path": "the address of the sender; empty for `<>`",
    "routes": "the routes of the policy that are meant, counted from 1",
    "sent": "how much of the unit was charged in such a window before the refusal",
    "sha256": "of the policy's text",
    "size_bytes": "octets of content",
    "slots": "the N of the policy; null where it has no such limit",
    "status": "relayed (as text: sent), deferred, bounced or expired; of a process: how it ended",
    "suggested_slots": "the N to try instead",
    "text": "what the upstream said, or what there is to say instead",
    "tls": "the version and cipher of the connection; null without TLS",
    "traceback": "where in the program, innermost last",
    "unit": "messages, recipients or connections",
    "untold": "how many events have no line of their own",
    "until_at": "when it is expected to go on; null where nobody can tell",
    "upstream": "the upstream, by its name in the policy",
    "user": "who logged in; of a refused AUTH who tried to, as the client wrote it; null without AUTH",
    "users": "how many users may log in",
    "version": "of the relay",
    "where": "which part of the relay",
}

_ERROR, _WARNING, _NOTICE, _INFO, _DEBUG = Level.ERROR, Level.WARNING, Level.NOTICE, Level.INFO, Level.DEBUG

_ROWS: tuple[tuple[str, Level, str, str, str], ...] = (
    ("started", _NOTICE, "version hostname path",
     "started: version {version}, host {hostname}, policy {path}",
     "The relay begins."),
    ("hostname_without_domain", _WARNING, "hostname",
     "this host is called {hostname}, without a domain: write hostname in the policy",
     "Neither the policy nor the host says our full name."),
    ("recovered", _NOTICE, "counts duration_seconds", "recovered in {duration_seconds}s: {counts}",
     "The spool was read: what the start found."),
    ("listening", _NOTICE, "listener protocol", "listening on {listener} for {protocol}",
     "An address is open."),
    ("stopping", _NOTICE, "reason in_flight", "stopping: {reason}; transactions in flight: {in_flight}",
     "The relay was told to stop; transactions in flight are finished first."),
    ("stopped", _NOTICE, "queued", "stopped; messages queued: {queued}",
     "The last line of a clean stop."),
    ("connected", _DEBUG, "listener client", "connect from {client} on {listener}",
     "A client connected."),
    ("disconnected", _DEBUG, "listener client reason", "disconnect from {client} on {listener}: {reason}",
     "A client's connection ended."),
    ("refused", _INFO, "listener client phase reply user",
     "NOQUEUE: reject: {_phase} from {client}: {reply}; listener={listener}{_user}",
     "A client got a 4yz or 5yz reply; nothing was accepted by it."),
    ("refusals_untold", _WARNING, "untold",
     "NOQUEUE: {untold} more refusals within a second have no line of their own",
     "A flood: of each second's `refused` the first hundred are told; metrics count all."),
    ("accepted", _INFO,
     "queue_id listener client helo protocol user message_id reverse_path size_bytes nrcpt commit_seconds",
     ("{queue_id}: client={client}, helo=<{helo}>, proto={protocol}{_user}\n"
      "{queue_id}: from=<{reverse_path}>, size={size_bytes}, nrcpt={nrcpt}"),
     "A message is durable and ours.  As text, two lines."),
    ("waiting", _INFO, "queue_id upstream lane reason until_at",
     "{queue_id}: waiting for {upstream} until {until_at}: {reason}",
     "A message has to wait for room in a window: once, when it first has to."),
    ("upstream_connected", _DEBUG, "upstream relay tls", "connected to {relay} for {upstream}, TLS {tls}",
     "A connection to an upstream is ready."),
    ("delivery", _INFO,
     ("queue_id upstream message_id reverse_path recipient relay conn_use delay_seconds delays_seconds tls "
      "dsn status command code text"),
     ("{queue_id}: to=<{recipient}>, relay={relay}, {_conn_use}delay={_delay}, delays={_delays}, {_tls}"
      "dsn={dsn}, status={_status} ({text}){_message_id}"),
     "What became of one recipient in one attempt, or at its end in the queue."),
    ("removed", _INFO, "queue_id", "{queue_id}: removed",
     "No recipient is left and the message is gone from the spool."),
    ("report_published", _NOTICE, "queue_id report_id size_bytes",
     "{queue_id}: sender non-delivery notification: {report_id}",
     "The sender is told of failed recipients, by a message of its own."),
    ("success_published", _NOTICE, "queue_id report_id size_bytes",
     "{queue_id}: sender delivery status notification: {report_id}",
     "The sender, who asked for it (NOTIFY=SUCCESS), is told that recipients were relayed."),
    ("warning_published", _NOTICE, "queue_id report_id size_bytes",
     "{queue_id}: sender delay notification: {report_id}",
     "The sender is told that the message is late."),
    ("report_waiting", _NOTICE, "queue_id",
     "{queue_id}: its report waits for room in reports.per_hour",
     "The reasons are kept with the message, which stays in the queue until its report may go."),
    ("reports_capped", _ERROR, "until_at",
     "reports are at reports.per_hour and wait, the next one until {until_at}: see why so much mail fails",
     "The first report since has to wait; those behind it do too."),
    ("reports_uncounted", _ERROR, "error", "reports cannot be counted, and go without a limit: {error}",
     "The history of the reports failed; they are owed, so they go."),
    ("report_dropped", _ERROR, "queue_id recipient",
     "{queue_id}: a report to {recipient} could not be relayed, and is dropped: see reports.upstreams",
     "The sender of a message does not know that it failed or is late: nobody is told but this log."),
    ("report_omitted", _WARNING, "queue_id nrcpt",
     "{queue_id}: no report of {nrcpt} failed recipients: it is from <>, wants none (NOTIFY), or is deleted",
     "A client's bounce could not be relayed, or a message was deleted, or its sender wants no report."),
    ("upstream_paused", _WARNING, "upstream until_at reason",
     "upstream {upstream} paused until {until_at}: {reason}",
     "A refusal that is about us: the upstream rests and its messages stay as they are."),
    ("sender_paused", _ERROR, "upstream reverse_path until_at reason",
     "mail from <{reverse_path}> paused until {until_at}, refused by {upstream}: {reason}",
     "The upstream refuses this sender, not us: its messages stay as they are, and all others go on."),
    ("upstream_stopped", _ERROR, "upstream reason", "upstream {upstream} stopped: {reason}",
     "The upstream is not used until somebody acts."),
    ("upstream_proving", _NOTICE, "upstream",
     "upstream {upstream} is tried again: one message goes first",
     "Its pause or stop is over; it is used again once one transaction has gone well."),
    ("upstream_resumed", _NOTICE, "upstream", "upstream {upstream} resumed",
     "Something went well after a pause or a stop: the upstream is used again."),
    ("operator_paused", _NOTICE, "upstream by until_at holds_new",
     "upstream {upstream} paused by {by} until {until_at}{_holding}",
     "`relay pause`: nothing new is sent through it; told again at a restart."),
    ("operator_pause_ended", _NOTICE, "upstream reason",
     "upstream {upstream}: the operator's pause has ended: {reason}",
     "Its time is over, or `relay resume` ended it."),
    ("route_diverted", _WARNING, "routes upstream instead_of because",
     "route {routes}: mail goes through {upstream} instead of {instead_of}: {because}",
     "The next upstream of a route is used, for all its mail or some: once, when that begins."),
    ("route_down", _ERROR, "routes upstream",
     "route {routes}: every upstream is down, and mail waits for {upstream}",
     "Each upstream of a route has been down for its `failover_after`."),
    ("route_restored", _NOTICE, "routes upstream because",
     "route {routes}: mail goes through {upstream} again; what is over: {because}",
     "A diversion is over, or an edit took its route away; mail goes through the upstream before."),
    ("history_begun", _NOTICE, "upstream path",
     "history of {upstream} begins empty, at {path}: nothing that was sent before counts",
     "There was no history of this account at this place, and mail goes now."),
    ("history_failed", _ERROR, "upstream error", "history of {upstream} failed, nothing is sent: {error}",
     "The history could not be read or written, so nothing may be sent."),
    ("token_granted", _INFO, "upstream life_seconds is_rotated",
     "upstream {upstream}: a new access token, good for {life_seconds} s{_rotated}",
     "A token server gave an access token; all connections of the upstream log in with it."),
    ("token_late", _WARNING, "upstream reason",
     "upstream {upstream}: no new access token yet, the one there is goes on being used: {reason}",
     "The token server could not be asked ahead of the token's end; it is asked again after a while."),
    ("refresh_token_unrecorded", _ERROR, "upstream error",
     "upstream {upstream}: no new access token until its new refresh token is on disk: {error}",
     "The token server gave another refresh token, which could not be written."),
    ("pause_unrecorded", _WARNING, "upstream error", "pause of {upstream} is not kept on disk: {error}",
     "A restart would not know of the pause, and try the upstream at once."),
    ("cut_off", _WARNING,
     "upstream unit sent over_seconds per_seconds slots named_slots charged_slots suggested_slots",
     "upstream {upstream}: {_finding}",
     "What the history says of a refusal for having sent too much; once for each limit in question."),
    ("limit_lowered", _WARNING, "upstream unit per_seconds slots effective_slots",
     "upstream {upstream}: effective {effective_slots} of {slots} {unit} per {per_seconds}s, by `adapt`",
     "A refusal lowered a limit, until its owner edits it."),
    ("keys_crowded", _WARNING, "upstream limit",
     "upstream {upstream}: limit {limit}: more keys than are kept apart, some count for all",
     "A limit has too many senders, domains or clients within T for memory; it sends less than it allows."),
    ("lessons_unrecorded", _WARNING, "upstream error",
     "what refusals of {upstream} taught is not kept on disk: {error}",
     "A restart would not know of it, and go by the policy's limits."),
    ("offers_unrecorded", _WARNING, "upstream error",
     "what {upstream} offers is not kept on disk: {error}",
     "A restart would not know of it, and believe nothing that a connection lacks for a while."),
    ("boots_unrecorded", _WARNING, "error", "the ages of what is queued are not kept on disk: {error}",
     "After a reboot what is queued would count as younger than it is, and expire later."),
    ("shortage", _WARNING, "where error", "{where} waits, out of descriptors or memory: {error}",
     "Nothing is lost or refused for good because of it; at most once a minute for each place."),
    ("descriptors_short", _WARNING, "where descriptors needed connections",
     "{where}: {descriptors} descriptors where the policy needs {needed}; connections at once: {connections}",
     "At the start; raise the limit (LimitNOFILE=), or lower `max_connections`."),
    ("spool_failed", _ERROR, "error", "spool failed: {error}",
     "The disk failed where the spool's state matters."),
    ("corrupt", _ERROR, "queue_id reason", "{queue_id}: corrupt, set aside: {reason}",
     "A file of the spool is damaged; it is kept in corrupt/ and never sent."),
    ("policy_loaded", _NOTICE, "path sha256", "policy {path} loaded, sha256 {sha256}",
     "This policy is in force now."),
    ("policy_refused", _ERROR, "path fault", "policy refused, the last good one stays: {fault}",
     "An edit is not valid: a line for each fault."),
    ("policy_waiting", _WARNING, "path sha256 reason until_at",
     "policy {path}: the edit, sha256 {sha256}, waits{_until}: {reason}",
     "An edit allows more, and might be half of one: it comes into force when its file has rested."),
    ("listener_files_loaded", _NOTICE, "listener users certificate",
     "listener {listener}: loaded {_what}",
     "What a listener, or a process of it, goes by from now on: at the start, after a change, by request."),
    ("listener_files_refused", _ERROR, "listener error",
     "listener {listener}: the last good users and certificate stay: {error}",
     "A listener's `users_file`, `certificate` or `key` changed and cannot be used."),
    ("client_certificate_loaded", _NOTICE, "upstream certificate",
     "upstream {upstream}: shows it the certificate with SHA-256 {certificate}",
     "What new connections show an upstream from now on (`tls_certificate`): at the start, after a change."),
    ("client_certificate_refused", _ERROR, "upstream error",
     "upstream {upstream}: the last good certificate stays: {error}",
     "An upstream's `tls_certificate` or `tls_key` changed and cannot be used."),
    ("policy_needs_restart", _WARNING, "path keys", "policy {path}: needs a restart to take effect: {keys}",
     "An edit changed what cannot change while the relay runs; the rest of it is in force."),
    ("listener_died", _ERROR, "listener pid status", "listener {listener} died: pid {pid}, {status}",
     "A listener process ended by itself."),
    ("listener_restarted", _NOTICE, "listener pid", "listener {listener} restarted: pid {pid}",
     "Another took its place."),
    ("hook_failed", _WARNING, "hook error", "notices to {hook} fail, and are tried again: {error}",
     "The first failure since a notice last arrived."),
    ("hook_resumed", _NOTICE, "hook", "notices to {hook} arrive again",
     "The first notice that arrived after a failure."),
    ("notices_dropped", _ERROR, "notices hook reason", "notices to {hook} were dropped: {notices}, {reason}",
     "Their receiver will not be told; mail is as it was."),
    ("notices_unrecorded", _WARNING, "error", "notices are not kept on disk: {error}",
     "A restart would not know of those that wait; the first time since one was written."),
    ("recent_unrecorded", _WARNING, "error",
     "what became of messages is not kept for `relay find`: {error}",
     "The first time since some of it was kept; mail is as it was."),
    ("held", _NOTICE, "queue_id", "{queue_id}: held by the operator",
     "The message stays until it is released."),
    ("released", _NOTICE, "queue_id", "{queue_id}: released by the operator",
     "A held message goes on."),
    ("retried", _NOTICE, "queue_id", "{queue_id}: to be tried at once, by the operator",
     "A deferred message need not sit out its back-off."),
    ("put_first", _NOTICE, "queue_id", "{queue_id}: to go next in its account, by the operator",
     "A message goes before all others of its account; a restart forgets that."),
    ("deleted", _NOTICE, "queue_id message_id nrcpt",
     "{queue_id}: deleted by the operator, recipients left: {nrcpt}{_message_id}",
     "The message is gone and nobody is told."),
    ("recipient_deleted", _DEBUG, "queue_id message_id reverse_path recipient",
     "{queue_id}: to=<{recipient}>, deleted by the operator",
     "A recipient of a message that was deleted: one line for each."),
    ("clock_stepped", _WARNING, "by_seconds", "the clock of this host was set by {by_seconds} s",
     "Limits, pauses and ages go by a clock that is never set; certificates and the times in here do not."),
    ("log_lines_dropped", _WARNING, "lines", "log lines were dropped: {lines} that nobody read",
     "Stands where they would: whoever reads the log had stopped, and mail does not wait for that."),
    ("fault", _ERROR, "where client error traceback", "fault in {where}: {error}{_client}; {traceback}",
     "A fault in the relay itself; please report it."),
)  # fmt: skip

KINDS: dict[str, Kind] = {
    name: Kind(name, level, tuple(fields.split()), template, meaning)
    for name, level, fields, template, meaning in _ROWS
}


class LogLine(NamedTuple):
    process: str
    """Of Postfix; empty in our own style."""
    template: str


TEXT_LINES: dict[str, tuple[LogLine, ...]] = {
    name: tuple(LogLine("", line) for line in kind.template.split("\n")) for name, kind in KINDS.items()
}

_PROCESSES = {
    "smtpd": "connected disconnected refused refusals_untold",
    "smtp": "upstream_connected delivery",
    "bounce": "report_waiting reports_capped reports_uncounted report_dropped report_omitted",
    "qmgr": "recovered waiting removed upstream_paused sender_paused upstream_stopped upstream_resumed "
    "operator_paused operator_pause_ended route_diverted route_down route_restored "
    "token_late refresh_token_unrecorded "
    "cut_off limit_lowered history_begun history_failed corrupt held released retried put_first "
    "deleted "
    "recipient_deleted",
}
_QUEUED_REPORT = LogLine("qmgr", "{report_id}: from=<>, size={size_bytes}, nrcpt=1 (queue active)")

POSTFIX_LINES: dict[str, tuple[LogLine, ...]] = (
    {name: tuple(line._replace(process="master") for line in lines) for name, lines in TEXT_LINES.items()}
    | {
        name: tuple(line._replace(process=process) for line in TEXT_LINES[name])
        for process, names in _PROCESSES.items()
        for name in names.split()
    }
    | {
        "accepted": (
            LogLine("smtpd", "{queue_id}: client={client}{_user}"),
            LogLine("cleanup", "{queue_id}: message-id={_message_id}"),
            LogLine(
                "qmgr", "{queue_id}: from=<{reverse_path}>, size={size_bytes}, nrcpt={nrcpt} (queue active)"
            ),
        ),
        # As Postfix has it, for programs that count: its own line has no Message-ID.
        "delivery": (LogLine("smtp", KINDS["delivery"].template.removesuffix("{_message_id}")),),
        "report_published": (LogLine("bounce", KINDS["report_published"].template), _QUEUED_REPORT),
        "success_published": (LogLine("bounce", KINDS["success_published"].template), _QUEUED_REPORT),
        "warning_published": (LogLine("bounce", KINDS["warning_published"].template), _QUEUED_REPORT),
    }
)
"""What no process of Postfix would say is the master's."""
