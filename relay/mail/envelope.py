"""The envelope, what is known about a message apart from its content, and the draft of one.  Pure.

An address is a `str` that passed `relay.mail.address`: what the client sent between the angle brackets, byte
for byte, without a source route.  It has UTF-8 only if SMTPUTF8 was asked for (RFC 6531).
Does not: parse, fold case or compare domains.
"""

import re
from dataclasses import dataclass, field
from typing import NewType, Protocol

from relay.mail.dsn import NOTHING_ASKED, DsnRequest, Notify

QueueId = NewType("QueueId", str)
"""The name of a message while it is queued: unique for ever, sorts by time."""

QUEUE_ID_PATTERN = re.compile(r"\A[0-9a-z]{16}(?:r[0-9]{0,7}|w)?\Z")
"""Sixteen characters.  For a report on a message follow `r` and perhaps a number, for a delay warning `w`.
Every id is checked before it becomes part of a path.
"""


def is_notice(queue_id: QueueId) -> bool:
    """Return whether a message is our own report or delay warning, not from a client."""
    return len(queue_id) > 16


@dataclass(frozen=True, slots=True)
class Envelope:
    """`reverse_path` is `""` for the null reverse-path `<>` (RFC 5321, 4.5.5), as reports have it."""

    reverse_path: str
    recipients: tuple[str, ...]
    arrival_at_ns: int
    """Wall clock at acceptance, nanoseconds since 1970 UTC."""
    client: str
    """The client as `name[address]` or `unknown[address]`; `local` for reports."""
    helo: str
    """The argument of HELO or EHLO in printable ASCII; `""` for reports."""
    protocol: str
    """The `with` of the Received line: SMTP, ESMTP, ESMTPS, ESMTPA, ESMTPSA, UTF8SMTP… (RFC 3848, 6531)."""
    user: str | None = None
    smtputf8: bool = False
    """The client asked for SMTPUTF8, and an address or the header is beyond ASCII (RFC 6531, 3.4, 3.6)."""
    boot_id: str = field(default="", compare=False)
    """The boot id at acceptance; empty if the accepting version stored none."""
    boottime_ns: int = field(default=0, compare=False)
    """Boottime at acceptance.  Within that boot no step of the wall clock changes the message's age."""
    dsn: DsnRequest = NOTHING_ASKED

    def arrived_at_ns(self, boot_id: str, now_ns: int, wall_ns: int) -> int:
        """Return the boottime of arrival: exact in the boot of acceptance, by the wall clock in another."""
        if self.boot_id == boot_id:
            return min(self.boottime_ns, now_ns)
        return now_ns - max(0, wall_ns - self.arrival_at_ns)

    def tells_of(self, index: int, what: Notify) -> bool:
        """Return whether the sender is to get a report of `what` on a recipient; never if it is `<>`."""
        return self.reverse_path != "" and self.dsn.of(index).wants(what)


@dataclass(frozen=True, slots=True)
class Shape:
    size_bytes: int
    """Octets of the content as it will be sent, before dot-stuffing; for SIZE= (RFC 1870)."""
    eight_bit: bool
    """The content has an octet above 127 and needs 8BITMIME (RFC 6152)."""
    smtputf8: bool
    """An address or a header needs SMTPUTF8 (RFC 6531)."""


class Draft(Protocol):
    """A message that is still arriving, for which the relay has not taken responsibility."""

    queue_id: QueueId
    """The id of the message if it is accepted; it also stands in `Received:`."""

    def append(self, chunk: bytes) -> None:
        """Add content, in memory only; never blocks, never fails."""

    @property
    def buffered_bytes(self) -> int:
        """Return the size of the content in memory that waits for `spill`."""

    @property
    def is_on_disk(self) -> bool:
        """Whether a part of it is written; if not, `discard` does no I/O."""

    def spill(self) -> None:
        """Write the buffered content.  Raises SpoolError of the engine; the draft is then discarded."""

    def discard(self) -> None:
        """Drop the draft and remove what it wrote; never raises."""
