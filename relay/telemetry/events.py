"""The log: one line for each event, as text or as JSON, on stderr.

Guarantees: no call raises (a closed stderr must not stop mail).  No text from outside can end a line or move
a terminal's cursor.  Assumes: one thread, and the fields of the event's row in `KINDS`.

A line of text begins as in rsyslog's file format.  Under the journal, which adds that itself, it begins with
`<N>`, the priority (sd-daemon(3)).  The event's template follows, then ` event=NAME`, for `grep`.
A line of JSON is one object: `time`, `event`, `level`, and the event's fields.
The table of events in docs/events-and-metrics.md is made from `KINDS`.
"""

import enum
import json
import os
import socket
import traceback as tracebacks
from collections.abc import Callable, Iterable, Mapping
from string import Formatter
from typing import Any, Literal, NamedTuple, TextIO

from relay.clock import SECOND_NS, Clock
from relay.mail.formats import Value, described, postfix_delay, rfc3339, rfc3339_or_none
from relay.mail.header import NO_NAMES, Names
from relay.queue.queued import DEFAULT_LANE
from relay.smtp.reply import Phase
from relay.spool.interface import Message
from relay.verdicts.decision import Fate
from relay.verdicts.outcome import Answer

LogStyle = Literal["text", "json"]


class Level(enum.IntEnum):
    """The severity of an event, with the numbers of syslog (RFC 5424, 6.2.1)."""

    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6
    DEBUG = 7


class Kind(NamedTuple):
    name: str
    level: Level
    template: str
    """`{name}` is a field.  `{name:text with %}` is that text with the field for `%`, or nothing if the field
    is null, 0, false or empty.  `{_name}` is a piece that only the text has."""
    only_json: str
    """The fields that only JSON has."""
    pieces: list[tuple[str, str | None, str]]
    """The template as text, the field behind it, and the text around that field."""


_ERROR, _WARNING, _NOTICE, _INFO, _DEBUG = Level.ERROR, Level.WARNING, Level.NOTICE, Level.INFO, Level.DEBUG

_ROWS: tuple[tuple[str, Level, str, str], ...] = (
    ("started", _NOTICE, "started: version {version}, host {hostname}, policy {path}", ""),
    ("hostname_without_domain", _WARNING,
     "the host name {hostname} has no domain: write hostname in the policy", ""),
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
     "NOQUEUE: {untold} more refusals within a second are not listed", ""),
    ("accepted", _INFO,
     ("{queue_id}: from=<{reverse_path}>, size={size_bytes}, nrcpt={nrcpt}, client={client}, helo=<{helo}>, "
      "proto={protocol}{user:, sasl_username=%}"), "listener message_id commit_seconds"),
    ("waiting", _INFO, "{queue_id}: waiting for {upstream} until {until_at}: {reason}", "lane"),
    ("upstream_connected", _DEBUG, "connected to {relay} for {upstream}{tls:, TLS %}", ""),
    ("delivery", _INFO,
     ("{queue_id}: to=<{recipient}>, relay={relay}, {_conn_use}delay={_delay}, delays={_delays}, "
      "{tls:tls=%, }dsn={dsn}, status={_status} ({text}){message_id:, message-id=%}"),
     "upstream reverse_path conn_use delay_seconds delays_seconds status command code"),
    ("removed", _INFO, "{queue_id}: removed", ""),
    ("report_published", _NOTICE, "{queue_id}: sender non-delivery notification: {report_id}", "size_bytes"),
    ("success_published", _NOTICE,
     "{queue_id}: sender delivery status notification: {report_id}", "size_bytes"),
    ("warning_published", _NOTICE, "{queue_id}: sender delay notification: {report_id}", "size_bytes"),
    ("reports_capped", _ERROR,
     "reports.per_hour is reached, and the next report waits until {until_at}: see why so much mail fails",
     ""),
    ("reports_uncounted", _ERROR,
     "reports cannot be counted, so reports.per_hour is not enforced: {error}", ""),
    ("report_dropped", _ERROR,
     "{queue_id}: a report to {recipient} could not be relayed, and is dropped: see reports.upstreams", ""),
    ("report_omitted", _WARNING,
     ("{queue_id}: no report of {nrcpt} failed recipients: the sender is <>, NOTIFY excludes it, or the "
      "message was deleted"), ""),
    ("upstream_paused", _WARNING, "upstream {upstream} paused{until_at: until %}: {reason}", ""),
    ("sender_paused", _ERROR,
     "mail from <{reverse_path}> paused{until_at: until %}, refused by {upstream}: {reason}", ""),
    ("upstream_stopped", _ERROR, "upstream {upstream} stopped: {reason}", ""),
    ("upstream_proving", _NOTICE, "upstream {upstream} is tested with one message", ""),
    ("upstream_resumed", _NOTICE, "upstream {upstream} resumed", ""),
    ("operator_paused", _NOTICE, "upstream {upstream} paused by {by}{until_at: until %}", ""),
    ("operator_pause_ended", _NOTICE, "upstream {upstream}: the operator's pause has ended: {reason}", ""),
    ("route_diverted", _WARNING,
     "route {routes}: mail goes through {upstream} instead of {instead_of}: {because}", ""),
    ("route_down", _ERROR, "route {routes}: every upstream is down, and mail waits for {upstream}", ""),
    ("route_restored", _NOTICE,
     "route {routes}: mail goes through {upstream} again; the diversion ended: {because}", ""),
    ("history_begun", _NOTICE,
     "new history of {upstream}, at {path}: earlier mail is not counted", ""),
    ("history_failed", _ERROR, "history of {upstream} cannot be used, so nothing is sent: {error}", ""),
    ("token_granted", _INFO,
     ("upstream {upstream}: a new access token, valid for {life_seconds} s"
      "{is_rotated:, and a new refresh token}"), ""),
    ("refresh_token_unrecorded", _ERROR,
     "upstream {upstream}: no access token is requested until its new refresh token is saved: {error}", ""),
    ("pause_unrecorded", _WARNING, "pause state of {upstream} cannot be saved or read: {error}", ""),
    ("cut_off", _WARNING,
     ("upstream {upstream} reports an exceeded limit{named_slots: of %}; "
      "the windows of the relay held {windows}"), ""),
    ("shortage", _WARNING, "{where} waits, out of descriptors or memory: {error}", ""),
    ("descriptors_short", _WARNING,
     ("{where} may open {descriptors} descriptors, and the policy needs {needed}: "
      "only {connections} clients can connect at once; raise LimitNOFILE="), ""),
    ("spool_failed", _ERROR, "spool failed: {error}", ""),
    ("corrupt", _ERROR, "{queue_id}: corrupt, set aside: {reason}", ""),
    ("policy_loaded", _NOTICE, "policy loaded: {changes:%; }{path}, sha256 {sha256}", ""),
    ("policy_refused", _ERROR, "policy refused, the last good one stays: {fault}", "path"),
    ("policy_needs_restart", _WARNING, "policy {path}: needs a restart to take effect: {keys}", ""),
    ("listener_files_loaded", _NOTICE,
     "listener {listener}: files loaded{users:, % users}{certificate:, certificate with SHA-256 %}", ""),
    ("listener_files_refused", _ERROR,
     "listener {listener}: files refused, the last good users and certificate stay: {error}", ""),
    ("listener_died", _ERROR, "listener {listener} died: pid {pid}, {status}", ""),
    ("listener_restarted", _NOTICE, "listener {listener} restarted: pid {pid}", ""),
    ("hook_failed", _WARNING, "notices to {hook} fail, and are tried again: {error}", ""),
    ("hook_resumed", _NOTICE, "notices to {hook} arrive again", ""),
    ("notices_dropped", _ERROR, "dropped {notices} of the notices to {hook}: {reason}", ""),
    ("recent_unrecorded", _WARNING, "outcomes are not recorded for `relay find`: {error}", ""),
    ("held", _NOTICE, "{queue_id}: held by the operator", ""),
    ("released", _NOTICE, "{queue_id}: released by the operator", ""),
    ("retried", _NOTICE, "{queue_id}: back-off ended by the operator", ""),
    ("deleted", _NOTICE,
     "{queue_id}: deleted by the operator, recipients left: {nrcpt}{message_id:, message-id=%}", ""),
    ("recipient_deleted", _DEBUG,
     "{queue_id}: to=<{recipient}>, deleted by the operator", "message_id reverse_path"),
    ("fault", _ERROR, "fault in {where}: {error}{client: (client %)}; {traceback}", ""),
)  # fmt: skip

KINDS = {
    row[0]: Kind(*row, [(text, name, around or "") for text, name, around, _ in Formatter().parse(row[2])])
    for row in _ROWS
}

SHORTAGE_AGAIN_NS = 60 * SECOND_NS
LONGEST_LINE = 8000
"""Characters; a reply of 2,000 and two addresses of the maximum length fit."""


class Subject(NamedTuple):
    """The message whose recipient an event is about."""

    message: Message
    names: Names = NO_NAMES
    lane: str = DEFAULT_LANE


Watcher = Callable[[str, Mapping[str, Value], Subject | None], None]


class Via(NamedTuple):
    upstream: str
    relay: str
    """`host[address]:port`."""
    conn_use: int
    tls: str | None


NO_TRANSACTION = Via("", "none", 1, None)


class Delays(NamedTuple):
    queued_ns: int = 0
    """In the queue and the throttle."""
    transmitting_ns: int = 0


class Events:
    def __init__(
        self,
        stream: TextIO,
        style: LogStyle,
        clock: Clock,
        *,
        level: Level = Level.INFO,
        hostname: str | None = None,
    ) -> None:
        self._stream, self._style, self._clock, self._level = stream, style, clock, level
        self._unwritten = self._counted = 0
        """Lines not written, except those that a `LogStream` lost; lines that `take_lines_lost` returned."""
        self._watchers: dict[str, tuple[Watcher, ...]] = {}
        """By the name of the event."""
        self._tells_shortage_at_ns: dict[str, int] = {}
        """For each place, when it may be logged again (boottime).  There is a handful of places."""
        self._is_journal = _is_journal(stream)
        self._begins = f" {hostname or socket.gethostname()} relay[{os.getpid()}]: "

    def take_lines_lost(self) -> int:
        """Return how many lines were dropped, or could not be written, since the last call."""
        lost = self._unwritten + getattr(self._stream, "lines_lost", 0)
        counted, self._counted = self._counted, lost
        return lost - counted

    def watch(self, watcher: Watcher, names: Iterable[str]) -> None:
        """Call a watcher with each of these events, logged or not: its name, its fields, and its subject.

        The subject is None unless the event is about one recipient.
        """
        for name in names:
            self._watchers[KINDS[name].name] = (*self._watchers.get(name, ()), watcher)

    def tell(self, name: str, subject: Subject | None = None, /, **fields: Any) -> None:
        """Log an event with the fields of its row.

        `NAME_at_ns`, an instant of the wall clock, becomes the field NAME_at; `NAME_ns`, a span, becomes
        NAME_seconds.  A field that begins with an underscore is only in the text.
        """
        try:
            kind = KINDS[name]
            is_logged = kind.level <= self._level
            if not is_logged and name not in self._watchers:
                return
            for given in [field for field in fields if field[-3:] == "_ns"]:
                ns, field = fields.pop(given), given.removesuffix("_ns")
                if field.endswith("_at"):
                    fields[field] = rfc3339_or_none(ns)
                else:
                    fields[f"{field}_seconds"] = ns / SECOND_NS
            for watcher in self._watchers.get(name, ()):
                watcher(name, fields, subject)
            if is_logged:
                self._stream.write(self._line(kind, fields) + "\n")
                self._stream.flush()
        except Exception:  # noqa: BLE001 - mail goes on whatever is wrong with a line about it
            self._unwritten += 1

    def delivery(
        self,
        subject: Subject,
        index: int,
        fate: Fate,
        answer: Answer,
        *,
        delays: Delays,
        via: Via = NO_TRANSACTION,
    ) -> None:
        """Log what became of the recipient with this index in the envelope."""
        envelope = subject.message.envelope
        # Postfix's four.  Before the queue and connecting are 0: a message is queued at once, and its
        # connection is ready before its slot is reserved.
        delays_ns = 0, delays.queued_ns, 0, delays.transmitting_ns
        self.tell(
            "delivery",
            subject,
            queue_id=subject.message.queue_id,
            upstream=via.upstream,
            message_id=subject.names.message_id,
            reverse_path=envelope.reverse_path,
            recipient=envelope.recipients[index],
            relay=via.relay,
            conn_use=via.conn_use,
            delay_ns=sum(delays),
            tls=via.tls,
            dsn=answer.status,
            status=fate.value,
            command="." if answer.phase is Phase.EOD else answer.phase.value,
            code=answer.reply.code if answer.reply else None,
            text=answer.text,
            delays_seconds=[delay_ns / SECOND_NS for delay_ns in delays_ns],
            _conn_use=f"conn_use={via.conn_use}, " if via.conn_use > 1 else "",
            _delay=postfix_delay(sum(delays)),
            _delays="/".join([postfix_delay(delay_ns) if delay_ns else "0" for delay_ns in delays_ns]),
            _status="sent" if fate is Fate.RELAYED else fate.value,
        )

    def shortage(self, *, where: str, error: str) -> None:
        """Log a lack of descriptors or memory, at most once a minute for each place."""
        now_ns = self._clock.boottime_ns()
        if now_ns >= self._tells_shortage_at_ns.get(where, now_ns):
            self._tells_shortage_at_ns[where] = now_ns + SHORTAGE_AGAIN_NS
            self.tell("shortage", where=where, error=error)

    def fault(self, *, where: str, error: BaseException, client: str | None = None) -> None:
        frames = [
            f"{os.path.basename(frame.filename)}:{frame.lineno} {frame.name}"  # noqa: PTH119 - a name, no file
            for frame in tracebacks.extract_tb(error.__traceback__)[-8:]
        ]
        self.tell("fault", where=where, client=client, error=described(error), traceback=frames)

    def _line(self, kind: Kind, fields: Mapping[str, Any]) -> str:
        now, level = rfc3339(self._clock.wall_ns()), kind.level.name.lower()
        priority = f"<{kind.level.value}>" if self._is_journal else ""
        if self._style == "json":
            told = {name: value for name, value in fields.items() if not name.startswith("_")}
            # json.dumps escapes everything that is not printable ASCII, except DEL.
            line = json.dumps({"time": now, "event": kind.name, "level": level, **told})
            return priority + line.replace("\x7f", "\\u007f")
        beginning = priority or now + self._begins
        shown_level = f"{level}: " if kind.level <= Level.WARNING else ""
        shown = list[str]()
        for text, name, around in kind.pieces:
            value = fields[name] if name else ""
            # Most fields are text.
            shown += text, value if type(value) is str and not around else _shown(value, around)
        # No template has foreign text.  The fields have, so the whole line is cleaned.
        return f"{beginning}{shown_level}{_one_line(''.join(shown))} event={kind.name}"


def _shown(value: Value, around: str) -> str:
    if around:
        return around.replace("%", _shown(value, "")) if value else ""
    if isinstance(value, str | int):
        return str(value)
    if value is None:
        return "-"  # only an instant or an option can be null
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return " ".join(f"{name}={count}" for name, count in value.items())


def _one_line(text: str) -> str:
    """Return at most LONGEST_LINE characters of the text, on one line and printable."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " if c in "\t\r\n" else "?" for c in text)
    return text[:LONGEST_LINE]


def _is_journal(stream: TextIO) -> bool:
    """Compare device and inode (systemd.exec(5)): a child that inherits the variable may write elsewhere."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
