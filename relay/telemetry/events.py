"""The log: one line for everything that happens, as text or as JSON, on stderr.

`Events` has a method for each row of `event_table`.  Guarantees: no call raises (a closed stderr must
not stop mail); no text from outside can end a line or move a terminal's cursor; no registered secret
is written.  One thread only.

As text, a line begins like one of rsyslog's file format; under the journal, which adds its own
beginning, with `<N>`, the priority (sd-daemon(3)).  It ends with the event's name, for `grep`.
"""

import json
import os
import socket
import traceback as tracebacks
from collections.abc import Callable, Iterable, Mapping, Sequence
from string import Formatter
from typing import Literal, NamedTuple, TextIO

from relay.clock import SECOND_NS, Clock
from relay.mail.envelope import Envelope, QueueId
from relay.mail.formats import Value, described, postfix_delay, rfc3339, rfc3339_or_none, shown_as_text
from relay.mail.header import NO_NAMES, Names
from relay.queue.lanes import DEFAULT_LANE
from relay.smtp.reply import Phase
from relay.spool.interface import Message
from relay.telemetry.event_table import KINDS, Kind, Level
from relay.telemetry.stderr import UnwaitingStream, is_journal, one_line
from relay.verdicts.decision import Fate
from relay.verdicts.outcome import Answer

_LEVEL_NAMES = {level: level.name.lower() for level in Level}
LogStyle = Literal["text", "json"]
_SHOWN = {
    name: frozenset(field for _, field, _, _ in Formatter().parse(kind.template) if field)
    for name, kind in KINDS.items()
}
_LEVEL_TEXT = {level: f"{level.name.lower()}: " if level <= Level.WARNING else "" for level in Level}
SHORTAGE_AGAIN_NS = 60 * SECOND_NS


MOST_REFUSALS = 100
"""Refusals of clients that are logged in a second: a flood of them must not flood the log."""

LONGEST_NAME = 100
"""Characters of a user who may be nobody, as Postfix logs him."""

NO_PIECES: Mapping[str, str] = {}


class Subject(NamedTuple):
    """The message of which a line about one of its recipients tells."""

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
    """Where a message spent its time, in the order of Postfix."""

    before_ns: int = 0
    queued_ns: int = 0
    """In the queue and the throttle."""
    connecting_ns: int = 0
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
        self._stream = stream
        self._unwritten = 0
        self._watchers: dict[str, tuple[Watcher, ...]] = {}
        """By the name of the event."""
        self._refusals = self._refusals_untold = self._refusals_since_ns = 0
        self._tells_shortage_at_ns: dict[str, int] = {}
        """By where it was; boottime.  There is a handful of places."""
        self._style = style
        self._clock = clock
        self._level = level
        self._is_journal = is_journal(stream)
        self._hostname, self._pid = hostname or socket.gethostname(), os.getpid()
        if isinstance(stream, UnwaitingStream):
            stream.tell_gap = self._gap

    @property
    def lines_lost(self) -> int:
        """Lines that could not be written, or were dropped because nobody read them."""
        dropped = self._stream.lines_lost if isinstance(self._stream, UnwaitingStream) else 0
        return self._unwritten + dropped

    def watch(self, watcher: Watcher, names: Iterable[str]) -> None:
        """Call a watcher with each of these events, logged or not: its name, its fields, and its subject.

        Secrets are in them; the subject is there where an event tells of one recipient.
        """
        for name in names:
            if name not in KINDS:
                raise ValueError(f"there is no event {name}")
            self._watchers[name] = (*self._watchers.get(name, ()), watcher)

    def flush(self) -> None:
        """Tell of what was only counted so far."""
        self._tell_untold()

    def started(self, *, version: str, hostname: str, path: str) -> None:
        self._tell("started", version=version, hostname=hostname, path=path)

    def hostname_without_domain(self, *, hostname: str) -> None:
        self._tell("hostname_without_domain", hostname=hostname)

    def recovered(self, *, counts: Mapping[str, int], duration_ns: int) -> None:
        self._tell("recovered", counts=counts, duration_seconds=_seconds(duration_ns))

    def listening(self, *, listener: str, protocol: str) -> None:
        """`protocol` is smtp, http or control."""
        self._tell("listening", listener=listener, protocol=protocol)

    def stopping(self, *, reason: str, in_flight: int) -> None:
        self._tell("stopping", reason=reason, in_flight=in_flight)

    def stopped(self, *, queued: int) -> None:
        self._tell("stopped", queued=queued)

    def connected(self, *, listener: str, client: str) -> None:
        self._tell("connected", listener=listener, client=client)

    def disconnected(self, *, listener: str, client: str, reason: str) -> None:
        self._tell("disconnected", listener=listener, client=client, reason=reason)

    def refused(self, *, listener: str, client: str, phase: str, reply: str, user: str | None) -> None:
        """Tell of a 4yz or 5yz reply; of very many in a second, only their number."""
        now_ns = self._clock.boottime_ns()
        if now_ns - self._refusals_since_ns >= SECOND_NS:
            self._tell_untold()
            self._refusals, self._refusals_since_ns = 0, now_ns
        self._refusals += 1
        if self._refusals > MOST_REFUSALS:
            self._refusals_untold += 1
            return
        # Postfix names the reply to the final dot after what ended.
        shown = "END-OF-MESSAGE" if phase == "eod" else phase.upper()
        user = user[:LONGEST_NAME] if user else None
        self._tell(
            "refused",
            {"_phase": shown, "_user": _as_sasl(user)},
            listener=listener,
            client=client,
            phase=phase,
            reply=reply,
            user=user,
        )

    def refusals_untold(self, *, untold: int) -> None:
        self._tell("refusals_untold", untold=untold)

    def accepted(
        self,
        *,
        listener: str,
        queue_id: QueueId,
        envelope: Envelope,
        message_id: str | None,
        size_bytes: int,
        commit_ns: int,
    ) -> None:
        self._tell(
            "accepted",
            {"_user": _as_sasl(envelope.user)},
            queue_id=queue_id,
            listener=listener,
            client=envelope.client,
            helo=envelope.helo,
            protocol=envelope.protocol,
            user=envelope.user,
            message_id=message_id,
            reverse_path=envelope.reverse_path,
            size_bytes=size_bytes,
            nrcpt=len(envelope.recipients),
            commit_seconds=_seconds(commit_ns),
        )

    def waiting(
        self,
        *,
        queue_id: QueueId,
        upstream: str,
        reason: str,
        until_at_ns: int | None,
        lane: str | None = None,
    ) -> None:
        """Call it once for a message, not per wake-up."""
        self._tell(
            "waiting",
            queue_id=queue_id,
            upstream=upstream,
            lane=lane,
            reason=reason,
            until_at=rfc3339_or_none(until_at_ns),
        )

    def upstream_connected(self, *, upstream: str, relay: str, tls: str | None) -> None:
        self._tell("upstream_connected", upstream=upstream, relay=relay, tls=tls)

    def delivery(
        self,
        *,
        queue_id: QueueId,
        reverse_path: str,
        recipient: str,
        fate: Fate,
        answer: Answer,
        delays: Delays,
        via: Via = NO_TRANSACTION,
        subject: Subject | None = None,
    ) -> None:
        message_id = None if subject is None else subject.names.message_id
        # Each style has delays of its own: only those that are written are made.
        seconds: list[str | float] = []
        pieces = NO_PIECES
        if self._style == "json":
            seconds += [delay_ns / SECOND_NS for delay_ns in delays]
        else:
            pieces = {
                "_conn_use": f"conn_use={via.conn_use}, " if via.conn_use > 1 else "",
                "_delay": postfix_delay(sum(delays)),
                "_delays": "/".join([postfix_delay(delay_ns) if delay_ns else "0" for delay_ns in delays]),
                "_tls": f"tls={via.tls}, " if via.tls else "",
                "_status": "sent" if fate is Fate.RELAYED else fate.value,
                "_message_id": f", message-id={message_id}" if message_id else "",
            }
        self._tell(
            "delivery",
            pieces,
            subject,
            queue_id=queue_id,
            upstream=via.upstream,
            message_id=message_id,
            reverse_path=reverse_path,
            recipient=recipient,
            relay=via.relay,
            conn_use=via.conn_use,
            delay_seconds=sum(delays) / SECOND_NS,
            delays_seconds=seconds,
            tls=via.tls,
            dsn=answer.status,
            status=fate.value,
            command="." if answer.phase is Phase.EOD else answer.phase.value,
            code=answer.reply.code if answer.reply else None,
            text=answer.text,
        )

    def removed(self, *, queue_id: QueueId) -> None:
        self._tell("removed", queue_id=queue_id)

    def report_published(self, *, queue_id: QueueId, report_id: QueueId, size_bytes: int) -> None:
        self._tell("report_published", queue_id=queue_id, report_id=report_id, size_bytes=size_bytes)

    def success_published(self, *, queue_id: QueueId, report_id: QueueId, size_bytes: int) -> None:
        self._tell("success_published", queue_id=queue_id, report_id=report_id, size_bytes=size_bytes)

    def warning_published(self, *, queue_id: QueueId, report_id: QueueId, size_bytes: int) -> None:
        self._tell("warning_published", queue_id=queue_id, report_id=report_id, size_bytes=size_bytes)

    def report_omitted(self, *, queue_id: QueueId, nrcpt: int) -> None:
        self._tell("report_omitted", queue_id=queue_id, nrcpt=nrcpt)

    def report_dropped(self, *, queue_id: QueueId, recipient: str) -> None:
        self._tell("report_dropped", queue_id=queue_id, recipient=recipient)

    def report_waiting(self, *, queue_id: QueueId) -> None:
        self._tell("report_waiting", queue_id=queue_id)

    def reports_capped(self, *, until_at_ns: int) -> None:
        """Tell that reports wait; the next one goes at that instant of the wall clock."""
        self._tell("reports_capped", until_at=rfc3339(until_at_ns))

    def reports_uncounted(self, *, error: str) -> None:
        self._tell("reports_uncounted", error=error)

    def upstream_paused(self, *, upstream: str, reason: str, until_at_ns: int | None) -> None:
        until_at = rfc3339_or_none(until_at_ns)
        self._tell("upstream_paused", upstream=upstream, until_at=until_at, reason=reason)

    def upstream_stopped(self, *, upstream: str, reason: str) -> None:
        self._tell("upstream_stopped", upstream=upstream, reason=reason)

    def sender_paused(self, *, upstream: str, reverse_path: str, reason: str, until_at_ns: int) -> None:
        self._tell(
            "sender_paused",
            upstream=upstream,
            reverse_path=reverse_path,
            until_at=rfc3339(until_at_ns),
            reason=reason,
        )

    def upstream_proving(self, *, upstream: str) -> None:
        self._tell("upstream_proving", upstream=upstream)

    def clock_stepped(self, *, by_ns: int) -> None:
        self._tell("clock_stepped", by_seconds=_seconds(by_ns))

    def upstream_resumed(self, *, upstream: str) -> None:
        self._tell("upstream_resumed", upstream=upstream)

    def operator_paused(self, *, upstream: str, by: str, until_at_ns: int | None) -> None:
        """Tell of `relay pause`; None: until `relay resume`."""
        self._tell("operator_paused", upstream=upstream, by=by, until_at=rfc3339_or_none(until_at_ns))

    def operator_pause_ended(self, *, upstream: str, reason: str) -> None:
        self._tell("operator_pause_ended", upstream=upstream, reason=reason)

    def route_diverted(self, *, routes: Iterable[int], upstream: str, instead_of: str, because: str) -> None:
        """`because` is a value of `relay.queue.routes.Because`."""
        self._tell(
            "route_diverted",
            routes=list(routes),
            upstream=upstream,
            instead_of=instead_of,
            because=because,
        )

    def route_down(self, *, routes: Iterable[int], upstream: str) -> None:
        self._tell("route_down", routes=list(routes), upstream=upstream)

    def route_restored(self, *, routes: Iterable[int], upstream: str, because: str) -> None:
        """`because` is what is over."""
        self._tell("route_restored", routes=list(routes), upstream=upstream, because=because)

    def token_granted(self, *, upstream: str, life_seconds: int, is_rotated: bool) -> None:
        rotated = ", and a new refresh token" if is_rotated else ""
        self._tell(
            "token_granted",
            {"_rotated": rotated},
            upstream=upstream,
            life_seconds=life_seconds,
            is_rotated=is_rotated,
        )

    def refresh_token_unrecorded(self, *, upstream: str, error: str) -> None:
        self._tell("refresh_token_unrecorded", upstream=upstream, error=error)

    def pause_unrecorded(self, *, upstream: str, error: str) -> None:
        self._tell("pause_unrecorded", upstream=upstream, error=error)

    def cut_off(self, *, upstream: str, windows: str, named: int | None) -> None:
        said = "" if named is None else f", and names {named}"
        self._tell("cut_off", {"_named": said}, upstream=upstream, windows=windows, named_slots=named)

    def keys_crowded(self, *, upstream: str, limit: str) -> None:
        self._tell("keys_crowded", upstream=upstream, limit=limit)

    def history_begun(self, *, upstream: str, path: str) -> None:
        self._tell("history_begun", upstream=upstream, path=path)

    def history_failed(self, *, upstream: str, error: str) -> None:
        self._tell("history_failed", upstream=upstream, error=error)

    def shortage(self, *, where: str, error: str) -> None:
        """Tell of too few descriptors or too little memory; once a minute for each place."""
        now_ns = self._clock.boottime_ns()
        if now_ns >= self._tells_shortage_at_ns.get(where, now_ns):
            self._tells_shortage_at_ns[where] = now_ns + SHORTAGE_AGAIN_NS
            self._tell("shortage", where=where, error=error)

    def descriptors_short(self, *, where: str, descriptors: int, needed: int, connections: int) -> None:
        self._tell(
            "descriptors_short", where=where, descriptors=descriptors, needed=needed, connections=connections
        )

    def spool_failed(self, *, error: str) -> None:
        self._tell("spool_failed", error=error)

    def corrupt(self, *, queue_id: str, reason: str) -> None:
        """`queue_id` is the name of the file set aside, which may be no id."""
        self._tell("corrupt", queue_id=queue_id, reason=reason)

    def policy_loaded(self, *, path: str, sha256: str, changes: Sequence[str]) -> None:
        """Tell of an edit in force; `changes` are in words."""
        words = "; ".join(changes) or "no setting changed"
        self._tell("policy_loaded", {"_changes": f"{words}; "}, path=path, sha256=sha256, changes=[*changes])

    def policy_refused(self, *, path: str, faults: Iterable[str]) -> None:
        for fault in faults:
            self._tell("policy_refused", path=path, fault=fault)

    def listener_files_loaded(self, listener: str, users: int, certificate: str | None) -> None:
        what = [f"{users} user{'s' * (users != 1)}"] if users else []
        what += [f"certificate with SHA-256 {certificate}"] if certificate else []
        self._tell(
            "listener_files_loaded",
            {"_what": " and ".join(what)},
            listener=listener,
            users=users,
            certificate=certificate,
        )

    def listener_files_refused(self, *, listener: str, error: str) -> None:
        self._tell("listener_files_refused", listener=listener, error=error)

    def client_certificate_loaded(self, *, upstream: str, certificate: str | None) -> None:
        self._tell("client_certificate_loaded", upstream=upstream, certificate=certificate)

    def client_certificate_refused(self, *, upstream: str, error: str) -> None:
        self._tell("client_certificate_refused", upstream=upstream, error=error)

    def policy_needs_restart(self, *, path: str, keys: Iterable[str]) -> None:
        self._tell("policy_needs_restart", path=path, keys=list(keys))

    def listener_died(self, *, listener: str, pid: int, status: str) -> None:
        self._tell("listener_died", listener=listener, pid=pid, status=status)

    def listener_restarted(self, *, listener: str, pid: int) -> None:
        self._tell("listener_restarted", listener=listener, pid=pid)

    def hook_failed(self, *, hook: str, error: str) -> None:
        self._tell("hook_failed", hook=hook, error=error)

    def hook_resumed(self, *, hook: str) -> None:
        self._tell("hook_resumed", hook=hook)

    def notices_dropped(self, *, notices: int, hook: str, reason: str) -> None:
        self._tell("notices_dropped", notices=notices, hook=hook, reason=reason)

    def recent_unrecorded(self, *, error: str) -> None:
        self._tell("recent_unrecorded", error=error)

    def held(self, *, queue_id: QueueId) -> None:
        self._tell("held", queue_id=queue_id)

    def released(self, *, queue_id: QueueId) -> None:
        self._tell("released", queue_id=queue_id)

    def retried(self, *, queue_id: QueueId) -> None:
        self._tell("retried", queue_id=queue_id)

    def put_first(self, *, queue_id: QueueId) -> None:
        self._tell("put_first", queue_id=queue_id)

    def deleted(self, *, queue_id: QueueId, message_id: str | None, nrcpt: int) -> None:
        pieces = {"_message_id": f", message-id={message_id}" if message_id else ""}
        self._tell("deleted", pieces, queue_id=queue_id, message_id=message_id, nrcpt=nrcpt)

    def recipient_deleted(
        self, *, queue_id: QueueId, subject: Subject | None, reverse_path: str, recipient: str
    ) -> None:
        self._tell(
            "recipient_deleted",
            NO_PIECES,
            subject,
            queue_id=queue_id,
            message_id=None if subject is None else subject.names.message_id,
            reverse_path=reverse_path,
            recipient=recipient,
        )

    def log_lines_dropped(self, *, lines: int) -> None:
        """Tell of lines that are missing.  A stream that drops them tells so itself, in their place."""
        self._tell("log_lines_dropped", lines=lines)

    def fault(self, *, where: str, error: BaseException, client: str | None = None) -> None:
        frames: list[str | float] = [
            f"{os.path.basename(frame.filename)}:{frame.lineno} {frame.name}"  # noqa: PTH119 - a name, no file
            for frame in tracebacks.extract_tb(error.__traceback__)[-8:]
        ]
        self._tell(
            "fault",
            {"_client": f" (client {client})" if client else ""},
            where=where,
            client=client,
            error=described(error),
            traceback=frames,
        )

    def _tell_untold(self) -> None:
        untold, self._refusals_untold = self._refusals_untold, 0
        if untold:
            self.refusals_untold(untold=untold)

    def _gap(self, count: int) -> str:
        """Stand for dropped lines.  Called in any thread."""
        return self._told(KINDS["log_lines_dropped"], {"lines": count}, {})

    def _tell(
        self,
        name: str,
        pieces: Mapping[str, str] = NO_PIECES,
        subject: Subject | None = None,
        /,
        **fields: Value,
    ) -> None:
        kind = KINDS[name]
        try:
            if name in self._watchers:
                for watcher in self._watchers[name]:
                    watcher(name, fields, subject)
            if kind.level > self._level:
                return
            self._stream.write(self._told(kind, fields, pieces) + "\n")
            self._stream.flush()
        except Exception:  # noqa: BLE001 - mail goes on whatever is wrong with a line about it
            self._unwritten += 1

    def _told(self, kind: Kind, fields: Mapping[str, Value], pieces: Mapping[str, str]) -> str:
        now = rfc3339(self._clock.wall_ns())
        priority = f"<{kind.level.value}>" if self._is_journal else ""
        if self._style == "json":
            # JSON itself escapes whatever is not printable ASCII, all but DEL.
            told = {"time": now, "event": kind.name, "level": _LEVEL_NAMES[kind.level], **fields}
            return priority + json.dumps(told).replace("\x7f", "\\u007f")
        shown = {
            name: value if isinstance(value, str) else shown_as_text(value)
            for name in _SHOWN[kind.name]
            for value in (pieces[name] if name in pieces else fields[name],)
        }
        # The template is split before foreign text is in it, and the line cleaned with that text in it.
        line = one_line(kind.template.format_map(shown))
        beginning = priority or f"{now} {self._hostname} relay[{self._pid}]: "
        return f"{beginning}{_LEVEL_TEXT[kind.level]}{line} event={kind.name}"


def _as_sasl(user: str | None) -> str:
    return f", sasl_username={user}" if user else ""


def _seconds(span_ns: int) -> float:
    return span_ns / SECOND_NS
