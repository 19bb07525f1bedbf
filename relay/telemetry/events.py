"""The log: one line for everything that happens, as text or as JSON, on stderr.

Guarantees: no call raises (a closed stderr must not stop mail); no text from outside can end a line or move
a terminal's cursor.  Assumes: one thread, and fields as `event_table` has them.

As text, a line begins like one of rsyslog's file format; under the journal, which adds its own
beginning, with `<N>`, the priority (sd-daemon(3)).  It ends with the event's name, for `grep`.
"""

import json
import os
import socket
import traceback as tracebacks
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TextIO

from relay.clock import SECOND_NS, Clock
from relay.mail.envelope import QueueId
from relay.mail.formats import Value, described, postfix_delay, rfc3339, rfc3339_or_none, shown_as_text
from relay.mail.header import NO_NAMES, Names
from relay.queue.lanes import DEFAULT_LANE
from relay.smtp.reply import Phase
from relay.spool.interface import Message
from relay.telemetry.event_table import KINDS, Kind, Level
from relay.telemetry.stderr import LogStream
from relay.verdicts.decision import Fate
from relay.verdicts.outcome import Answer

LogStyle = Literal["text", "json"]

SHORTAGE_AGAIN_NS = 60 * SECOND_NS
MOST_REFUSALS = 100
"""Refusals of clients that are logged in a second: a flood of them must not flood the log."""
LONGEST_LINE = 8000
"""Characters; a reply of 2,000 and two addresses of the longest kind fit."""
LONGEST_NAME = 100
"""Characters of a user who may be nobody, as Postfix logs him."""


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
        self._stream, self._style, self._clock, self._level = stream, style, clock, level
        self._log = stream if isinstance(stream, LogStream) else None
        self._unwritten = self._counted = self._dropped = 0
        """Lines: that could not be written, that `take_lines_lost` told of, that the log tells of."""
        self._watchers: dict[str, tuple[Watcher, ...]] = {}
        """By the name of the event."""
        self._refusals = self._refusals_untold = self._refusals_since_ns = 0
        self._tells_shortage_at_ns: dict[str, int] = {}
        """By where it was; boottime.  There is a handful of places."""
        self._is_journal = _is_journal(stream)
        self._begins = f" {hostname or socket.gethostname()} relay[{os.getpid()}]: "

    def take_lines_lost(self) -> int:
        """Return how many lines more were dropped, or could not be written, since the last call."""
        lost = self._unwritten + (self._log.lines_lost if self._log else 0)
        counted, self._counted = self._counted, lost
        return lost - counted

    def watch(self, watcher: Watcher, names: Iterable[str]) -> None:
        """Call a watcher with each of these events, logged or not: its name, its fields, and its subject.

        The subject is there where an event tells of one recipient.
        """
        for name in names:
            self._watchers[KINDS[name].name] = (*self._watchers.get(name, ()), watcher)

    def flush(self) -> None:
        """Tell of what was only counted so far: to be called now and then, and at the end."""
        untold, self._refusals_untold = self._refusals_untold, 0
        if untold:
            self.tell("refusals_untold", untold=untold)
        self._tell_dropped()

    def tell(self, name: str, subject: Subject | None = None, /, **fields: Any) -> None:
        """Log an event with the fields of its row.

        Of an instant of the wall clock `NAME_at_ns` makes the field NAME_at, and of a span `NAME_ns`
        NAME_seconds.  What begins with an underscore is only in the text.
        """
        try:
            kind = KINDS[name]
            is_logged = kind.level <= self._level
            if not is_logged and name not in self._watchers:
                return
            for given in [field for field in fields if field.endswith("_ns")]:
                ns, field = fields.pop(given), given.removesuffix("_ns")
                if field.endswith("_at"):
                    fields[field] = rfc3339_or_none(ns)
                else:
                    fields[f"{field}_seconds"] = ns / SECOND_NS
            for watcher in self._watchers.get(name, ()):
                watcher(name, fields, subject)
            if is_logged:
                self._tell_dropped()
                self._stream.write(self._line(kind, fields) + "\n")
                self._stream.flush()
        except Exception:  # noqa: BLE001 - mail goes on whatever is wrong with a line about it
            self._unwritten += 1

    def refused(self, *, listener: str, client: str, phase: str, reply: str, user: str | None) -> None:
        """Tell of a 4yz or 5yz reply; of very many in a second, only their number."""
        now_ns = self._clock.boottime_ns()
        if now_ns - self._refusals_since_ns >= SECOND_NS:
            self.flush()
            self._refusals, self._refusals_since_ns = 0, now_ns
        self._refusals += 1
        if self._refusals > MOST_REFUSALS:
            self._refusals_untold += 1
            return
        # Postfix names the reply to the final dot after what ended.
        shown = "END-OF-MESSAGE" if phase == "eod" else phase.upper()
        user = user[:LONGEST_NAME] if user else None
        self.tell(
            "refused", listener=listener, client=client, phase=phase, reply=reply, user=user, _phase=shown
        )

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
        # Each style has delays of its own: only those that are written are made.
        style: dict[str, Any] = {"delays_seconds": [delay_ns / SECOND_NS for delay_ns in delays]}
        if self._style == "text":
            style = {
                "_conn_use": f"conn_use={via.conn_use}, " if via.conn_use > 1 else "",
                "_delay": postfix_delay(sum(delays)),
                "_delays": "/".join([postfix_delay(delay_ns) if delay_ns else "0" for delay_ns in delays]),
                "_status": "sent" if fate is Fate.RELAYED else fate.value,
            }
        self.tell(
            "delivery",
            subject,
            queue_id=queue_id,
            upstream=via.upstream,
            message_id=None if subject is None else subject.names.message_id,
            reverse_path=reverse_path,
            recipient=recipient,
            relay=via.relay,
            conn_use=via.conn_use,
            delay_ns=sum(delays),
            tls=via.tls,
            dsn=answer.status,
            status=fate.value,
            command="." if answer.phase is Phase.EOD else answer.phase.value,
            code=answer.reply.code if answer.reply else None,
            text=answer.text,
            **style,
        )

    def shortage(self, *, where: str, error: str) -> None:
        """Tell of too few descriptors or too little memory; once a minute for each place."""
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

    def _tell_dropped(self) -> None:
        """Say in front of the next line that has room, or of none, how many lines are missing."""
        if self._log is not None and self._log.lines_lost > self._dropped and self._log.has_room:
            dropped, self._dropped = self._dropped, self._log.lines_lost
            self.tell("log_lines_dropped", lines=self._dropped - dropped)

    def _line(self, kind: Kind, fields: Mapping[str, Any]) -> str:
        now, level = rfc3339(self._clock.wall_ns()), kind.level.name.lower()
        priority = f"<{kind.level.value}>" if self._is_journal else ""
        if self._style == "json":
            told = {name: value for name, value in fields.items() if not name.startswith("_")}
            # JSON itself escapes whatever is not printable ASCII, all but DEL.
            line = json.dumps({"time": now, "event": kind.name, "level": level, **told})
            return priority + line.replace("\x7f", "\\u007f")
        beginning = priority or now + self._begins
        shown_level = f"{level}: " if kind.level <= Level.WARNING else ""
        # Foreign text is in no template, and the line is cleaned with that text in it.
        return f"{beginning}{shown_level}{_one_line(_text(kind, fields))} event={kind.name}"


def _text(kind: Kind, fields: Mapping[str, Any]) -> str:
    return kind.pattern % tuple([_shown(fields[field], optional) for field, optional in kind.shown])


def _shown(value: Any, optional: str) -> str:
    if optional and not value:
        return ""
    text = value if isinstance(value, str) else shown_as_text(value)
    return optional.replace("%", text) if optional else text


def _one_line(text: str) -> str:
    """Return text on one line, without anything that is not printable."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " if c in "\t\r\n" else "?" for c in text)
    return text[:LONGEST_LINE]


def _is_journal(stream: TextIO) -> bool:
    """Compare device and inode (systemd.exec(5)): a child may inherit the variable and write elsewhere."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
