"""What listeners counted: here, or in processes of their own.

A listener process sends `take_delta()` of its own `ListenerCounts` through a pipe now and then; the
sender's process adds it with `add_delta`.  Counts only grow: a dying process loses only what it had
not sent yet.  `open` alone is a level: each source reports its own, and a dead source is dropped.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from relay.clock import SECOND_NS
from relay.mail.envelope import Envelope, QueueId
from relay.mail.formats import described
from relay.spool.disk.os_errors import is_lack_of_means
from relay.telemetry.events import Events
from relay.telemetry.metric_table import DISK_SECONDS

Count = Annotated[int, Field(ge=0)]

PHASES = frozenset({
    "connect", "helo", "ehlo", "starttls", "auth", "mail", "rcpt", "data", "eod", "rset", "noop", "vrfy",
    "expn", "help", "quit", "unknown",
})  # fmt: skip
"""Values of the label; whatever else a client makes a phase of is `other`."""
USUAL_REJECTS = (
    ("connect", "421"), ("connect", "554"), ("auth", "535"), ("mail", "452"), ("mail", "530"),
    ("mail", "552"), ("rcpt", "452"), ("rcpt", "550"), ("eod", "451"), ("eod", "452"), ("eod", "552"),
    ("eod", "554"),
)  # fmt: skip
"""Rejects that are there, at 0, from the start."""


@dataclass(slots=True)
class OneListener:
    connections: Count = 0
    open: int = 0
    messages: Count = 0
    recipients: Count = 0
    size_bytes: Count = 0
    faults: Count = 0
    lost_lines: Count = 0
    """Of the log of a listener process."""
    commit_ns: Count = 0
    """All commits together."""
    commits: list[Count] = field(default_factory=lambda: [0] * (len(DISK_SECONDS) + 1))
    """How many ended up to each bound of DISK_SECONDS and after the one before; last, after all bounds."""
    rejects: dict[str, Count] = field(default_factory=dict)
    """By `phase code`."""

    def add(self, other: "OneListener") -> None:
        """Add all but `open`."""
        for name in (
            "connections",
            "messages",
            "recipients",
            "size_bytes",
            "faults",
            "lost_lines",
            "commit_ns",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.commits = [mine + theirs for mine, theirs in zip(self.commits, other.commits, strict=True)]
        for name, count in other.rejects.items():
            phase, _, code = name.partition(" ")
            self.count_reject(phase, code, count)

    def count_reject(self, phase: str, code: str, count: int = 1) -> None:
        """Count a reply, under labels of which there is a bounded number."""
        phase = phase if phase in PHASES else "other"
        code = code if len(code) == 3 and code[0] in "45" and code.isascii() and code.isdigit() else "other"
        self.rejects[f"{phase} {code}"] = self.rejects.get(f"{phase} {code}", 0) + count


_DELTA = TypeAdapter(dict[str, OneListener])


class ListenerCounts:
    """By address as the policy writes it."""

    def __init__(self, listeners: Iterable[str]) -> None:
        self._counts = {listener: OneListener() for listener in listeners}
        for counts in self._counts.values():
            for phase, code in USUAL_REJECTS:
                counts.count_reject(phase, code, 0)
        self._open_elsewhere: dict[str, dict[str, int]] = {}

    def __iter__(self) -> Iterator[tuple[str, OneListener, int]]:
        """Go through address, counts, and connections that are open in all processes together."""
        for listener, counts in self._counts.items():
            elsewhere = sum(levels.get(listener, 0) for levels in self._open_elsewhere.values())
            yield listener, counts, counts.open + elsewhere

    def opened(self, listener: str) -> None:
        counts = self._of(listener)
        counts.connections += 1
        counts.open += 1

    def closed(self, listener: str) -> None:
        self._of(listener).open -= 1

    def rejected(self, listener: str, phase: str, code: str) -> None:
        self._of(listener).count_reject(phase, code)

    def accepted(self, listener: str, *, recipients: int, size_bytes: int, commit_ns: int) -> None:
        counts = self._of(listener)
        counts.messages += 1
        counts.recipients += recipients
        counts.size_bytes += size_bytes
        counts.commit_ns += commit_ns
        counts.commits[bisect_left(DISK_SECONDS, commit_ns / SECOND_NS)] += 1

    def fault(self, listener: str) -> None:
        self._of(listener).faults += 1

    def lost_lines(self, listener: str, count: int) -> None:
        self._of(listener).lost_lines += count

    def take_delta(self) -> dict[str, Any]:
        """Return, as JSON can carry it, what was counted since the last call, and start anew."""
        delta = {listener: asdict(counts) for listener, counts in self._counts.items()}
        self._counts = {listener: OneListener(open=counts.open) for listener, counts in self._counts.items()}
        return delta

    def add_delta(self, delta: object, source: str) -> None:
        """Raise ValueError, and add nothing, where `delta` is not what `take_delta` returns."""
        counted = _DELTA.validate_python(delta)
        if any(len(counts.commits) != len(DISK_SECONDS) + 1 for counts in counted.values()):
            raise ValueError("a delta with another number of buckets")
        unknown = counted.keys() - self._counts.keys()
        if unknown:
            raise ValueError(f"a delta of an unknown listener: {sorted(unknown)}")
        for listener, counts in counted.items():
            self._counts[listener].add(counts)
        self._open_elsewhere[source] = {listener: counts.open for listener, counts in counted.items()}

    def drop_source(self, source: str) -> None:
        self._open_elsewhere.pop(source, None)

    def _of(self, listener: str) -> OneListener:
        if (counts := self._counts.get(listener)) is None:
            counts = self._counts[listener] = OneListener()
        return counts


class ListenerObserver:
    """The `Observer` of `relay.listener.ports`: tells the log, and counts; in any process that listens."""

    def __init__(self, events: Events, counts: ListenerCounts) -> None:
        self._events = events
        self._counts = counts

    def connection_opened(self, listener: str, client: str) -> None:
        self._counts.opened(listener)
        self._events.connected(listener=listener, client=client)

    def connection_closed(self, listener: str, client: str, reason: str) -> None:
        self._counts.closed(listener)
        self._events.disconnected(listener=listener, client=client, reason=reason)

    def refused(self, listener: str, client: str, phase: str, reply: str, user: str | None) -> None:
        self._counts.rejected(listener, phase, reply[:3])
        self._events.refused(listener=listener, client=client, phase=phase, reply=reply, user=user)

    def accepted(
        self,
        listener: str,
        queue_id: QueueId,
        envelope: Envelope,
        message_id: str | None,
        *,
        size_bytes: int,
        commit_ns: int,
    ) -> None:
        recipients = len(envelope.recipients)
        self._counts.accepted(listener, recipients=recipients, size_bytes=size_bytes, commit_ns=commit_ns)
        self._events.accepted(
            listener=listener,
            queue_id=queue_id,
            envelope=envelope,
            message_id=message_id,
            size_bytes=size_bytes,
            commit_ns=commit_ns,
        )

    def fault(self, listener: str, client: str, error: BaseException) -> None:
        if is_lack_of_means(error):
            self._events.shortage(where=f"listener {listener}", error=described(error))
            return
        self._counts.fault(listener)
        self._events.fault(where=f"listener {listener}", error=error, client=client)
