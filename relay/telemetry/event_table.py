"""Every line that the relay logs: its name, level, fields and meaning.  Pure, data only.

A test holds docs/events-and-metrics.md to `KINDS` and `FIELDS`.  As text an event is its template, in
the shapes that Postfix uses where it has the same event, so that log readers made for Postfix
understand them.  As JSON it is one object: `time`, `event`, `level`, and its fields.
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
    meaning: str


FIELDS: dict[str, str] = {
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
    "hostname": "our own name",
    "in_flight": "transactions that are not at their end",
    "keys": "the keys of the policy that changed",
    "lane": "the lane of the message, by its name in the policy; null without lanes",
    "limit": "a limit, as `relay status` names it",
    "lines": "how many lines of the log",
    "listener": "the address that mail is taken on, as the policy writes it",
    "named_slots": "the N that the upstream says itself; null where it says none",
    "needed": "how many descriptors the policy needs at most",
    "nrcpt": "how many recipients",
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
    "user": "the authenticated user; null without AUTH",
    "version": "of the relay",
    "where": "which part of the relay",
}

_ERROR, _WARNING, _NOTICE, _INFO, _DEBUG = Level.ERROR, Level.WARNING, Level.NOTICE, Level.INFO, Level.DEBUG

_ROWS: tuple[tuple[str, Level, str, str, str], ...] = (
    ("started", _NOTICE, "version hostname path",
     "started: version {version}, host {hostname}, policy {path}",
     "The relay begins."),
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
    ("refused", _INFO, "listener client phase reply",
     "NOQUEUE: reject: {_phase} from {client}: {reply}; listener={listener}",
     "A client got a 4yz or 5yz reply; nothing was accepted by it."),
    ("refusals_untold", _WARNING, "untold",
     "NOQUEUE: {untold} more refusals within a second have no line of their own",
     "A flood: of each second's `refused` the first hundred are told; metrics count all."),
    ("accepted", _INFO,
     "queue_id listener client helo protocol user reverse_path size_bytes nrcpt commit_seconds",
     ("{queue_id}: client={client}, helo=<{helo}>, proto={protocol}{_user}\n"
      "{queue_id}: from=<{reverse_path}>, size={size_bytes}, nrcpt={nrcpt}"),
     "A message is durable and ours.  As text, two lines."),
    ("waiting", _INFO, "queue_id upstream lane reason until_at",
     "{queue_id}: waiting for {upstream} until {until_at}: {reason}",
     "A message has to wait for room in a window: once, when it first has to."),
    ("upstream_connected", _DEBUG, "upstream relay tls", "connected to {relay} for {upstream}, TLS {tls}",
     "A connection to an upstream is ready."),
    ("delivery", _INFO,
     ("queue_id upstream recipient relay conn_use delay_seconds delays_seconds tls dsn status "
      "command code text"),
     ("{queue_id}: to=<{recipient}>, relay={relay}, {_conn_use}delay={_delay}, delays={_delays}, {_tls}"
      "dsn={dsn}, status={_status} ({text})"),
     "What became of one recipient in one attempt, or at its end in the queue."),
    ("removed", _INFO, "queue_id", "{queue_id}: removed",
     "No recipient is left and the message is gone from the spool."),
    ("report_published", _NOTICE, "queue_id report_id",
     "{queue_id}: sender non-delivery notification: {report_id}",
     "The sender is told of failed recipients, by a message of its own."),
    ("warning_published", _NOTICE, "queue_id report_id",
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
    ("report_omitted", _WARNING, "queue_id nrcpt",
     "{queue_id}: no report of {nrcpt} failed recipients, it is from <> or deleted",
     "A report could itself not be relayed, or was deleted; nobody is told but this log."),
    ("upstream_paused", _WARNING, "upstream until_at reason",
     "upstream {upstream} paused until {until_at}: {reason}",
     "A refusal that is about us: the upstream rests and its messages stay as they are."),
    ("sender_paused", _ERROR, "upstream reverse_path until_at reason",
     "mail from <{reverse_path}> paused until {until_at}, refused by {upstream}: {reason}",
     "The upstream refuses this sender, not us: its messages stay as they are, and all others go on."),
    ("upstream_stopped", _ERROR, "upstream reason", "upstream {upstream} stopped: {reason}",
     "The upstream is not used until somebody acts."),
    ("upstream_resumed", _NOTICE, "upstream", "upstream {upstream} resumed",
     "The upstream is used again."),
    ("history_begun", _NOTICE, "upstream path",
     "history of {upstream} begins empty, at {path}: nothing that was sent before counts",
     "There was no history of this account at this place, and mail goes now."),
    ("history_failed", _ERROR, "upstream error", "history of {upstream} failed, nothing is sent: {error}",
     "The history could not be read or written, so nothing may be sent."),
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
    ("policy_needs_restart", _WARNING, "path keys", "policy {path}: needs a restart to take effect: {keys}",
     "An edit changed what cannot change while the relay runs; the rest of it is in force."),
    ("listener_died", _ERROR, "listener pid status", "listener {listener} died: pid {pid}, {status}",
     "A listener process ended by itself."),
    ("listener_restarted", _NOTICE, "listener pid", "listener {listener} restarted: pid {pid}",
     "Another took its place."),
    ("held", _NOTICE, "queue_id", "{queue_id}: held by the operator",
     "The message stays until it is released."),
    ("released", _NOTICE, "queue_id", "{queue_id}: released by the operator",
     "A held message goes on."),
    ("retried", _NOTICE, "queue_id", "{queue_id}: to be tried at once, by the operator",
     "A deferred message need not sit out its back-off."),
    ("deleted", _NOTICE, "queue_id nrcpt", "{queue_id}: deleted by the operator, recipients left: {nrcpt}",
     "The message is gone and nobody is told."),
    ("log_lines_dropped", _WARNING, "lines", "log lines were dropped: {lines} that nobody read",
     "Stands where they would: whoever reads the log had stopped, and mail does not wait for that."),
    ("fault", _ERROR, "where client error traceback", "fault in {where}: {error}{_client}; {traceback}",
     "A fault in the relay itself; please report it."),
)  # fmt: skip

KINDS: dict[str, Kind] = {
    name: Kind(name, level, tuple(fields.split()), template, meaning)
    for name, level, fields, template, meaning in _ROWS
}
