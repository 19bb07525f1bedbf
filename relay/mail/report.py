r"""Reports: what a sender is told when mail failed, is late, or was relayed (RFC 3464 in RFC 6522).  Pure.

Guarantees: the same input gives the same bytes, so that a report published again after a crash is one
report; lines end in CRLF and have at most 998 octets, but for a message that is returned whole; no foreign
text can begin a header field or end a part; the cost is linear in the recipients.  All is ASCII, but for the
address in To:.  Recipients outside ASCII stand as `utf-8; …\x{HEX}…` (RFC 6533, 3).
Assumes: addresses passed `relay.mail.address`; host names, ids and status codes are ours or were checked;
nobody is told where the sender is `<>`.
"""

import base64
import binascii
import enum
import hashlib
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime

from relay.clock import SECOND_NS
from relay.mail.dsn import Ret, decode_xtext, original_recipient, utf8_address
from relay.mail.envelope import Envelope, QueueId
from relay.mail.formats import LAST_SECOND
from relay.mail.text import clean

MAX_TEXT = 900
"""Of an address or a reply: a line ends at 998 (RFC 5322, 2.1.1)."""
SPELLED_OUT = 100
"""How many recipients the part for people names; the part for machines names all."""

_SMTP_REPLY = re.compile(r"[2-5][0-9][0-9](?: |\Z)")
_PLAIN_LINES = re.compile(rb"(?:[\t\x20-\x7e]{0,998}\r\n)*\Z")


class Reason(enum.StrEnum):
    """Why a sender is told of a recipient."""

    BOUNCED = "bounced"
    EXPIRED = "expired"
    OPERATOR = "operator"
    RELAYED = "relayed"
    DELAYED = "delayed"

    @property
    def action(self) -> str:
        """Return the Action of RFC 3464, 2.3.3; never `delivered`, which no upstream tells us."""
        return self.value if self in {Reason.RELAYED, Reason.DELAYED} else "failed"


_TITLES = {
    Reason.BOUNCED: "Refused by the next mail server:",
    Reason.EXPIRED: "Not passed on within the time allowed, so given up:",
    Reason.OPERATOR: "Removed from the queue by an operator of this relay:",
    Reason.RELAYED: "Passed on to the next mail server, which will not say more:",
    Reason.DELAYED: "Still waiting:",
}


@dataclass(frozen=True, slots=True)
class ReportedMessage:
    queue_id: QueueId
    envelope: Envelope
    content: bytes
    """From its first octet, as received; at least its header."""
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class ReportedRecipient:
    recipient: str
    status: str
    """Enhanced status code, RFC 3463."""
    diagnostic: str | None
    """The upstream's reply, or what else there is to say."""
    remote: str | None
    """The upstream, as `host`; None where none was asked."""
    at_ns: int
    """Wall clock of the last attempt."""
    reason: Reason
    orcpt: str = ""
    """As the client gave it (RFC 3461, 4.2)."""


def report(
    message: ReportedMessage,
    recipients: Sequence[ReportedRecipient],
    *,
    hostname: str,
    sender: str,
    at_ns: int,
    suffix: str = "r",
    until_ns: int | None = None,
) -> bytes:
    """Return the content of a report of what ended; with `until_ns`, of a warning about what waits till then.

    `sender` is in ASCII; `suffix` tells its Message-ID from those of other reports of the message.
    """
    actions = {each.reason.action for each in recipients}
    # Mailman's parser takes failed and late recipients in ASCII; without one it guesses from the text.
    guessed = not any(each.recipient.isascii() and each.reason is not Reason.RELAYED for each in recipients)
    returns_all = (
        "failed" in actions  # RFC 3461, 4.3: RET is about failures
        and not guessed
        and message.envelope.dsn.ret is Ret.FULL
        and message.is_whole
        and message.content.isascii()  # other content might not leave by each upstream
        and b"\0" not in message.content
    )
    subject, opening = _opening(actions, _date(message.envelope.arrival_at_ns), until_ns)
    opening += f"  The {'message' if returns_all else 'header of the message'}\nis attached."
    parts = [
        _for_people(f"This is the mail relay at {hostname}.\n\n{opening}", recipients, guessed=guessed),
        _for_machines(message, recipients, hostname, until_ns),
        _returned_message(message.content)
        if returns_all
        else _returned_header(message.content, guessed=guessed),
    ]
    # No content can hold its own SHA-256, so no part can hold its own boundary.
    boundary = f"=_{hashlib.sha256(b'|'.join(parts)).hexdigest()[:32]}"
    head = [
        f"From: Mail Delivery System <{sender}>",
        f"To: <{message.envelope.reverse_path}>",
        f"Subject: {subject}",
        f"Date: {_date(at_ns)}",
        f"Message-ID: <{message.queue_id}{suffix}@{hostname}>",
        "Auto-Submitted: auto-replied",
        "MIME-Version: 1.0",
        f'Content-Type: multipart/report; report-type=delivery-status;\r\n boundary="{boundary}"',
        "\r\nThis is a MIME-encapsulated message.\r\n",
    ]
    delimiter = f"--{boundary}".encode()
    return (
        _lines(head) + b"".join(b"%b\r\n%b\r\n" % (delimiter, part) for part in parts) + delimiter + b"--\r\n"
    )


def _opening(actions: set[str], date: str, until_ns: int | None) -> tuple[str, str]:
    """Return the subject, and what the part for people begins with."""
    if until_ns is not None:
        return "Delayed Mail (still being retried)", (
            f"Your message of {date}\n"
            "is late for the recipients below.  THIS IS A WARNING ONLY: there is no\n"
            f"need to send it again.  It will be tried until\n{_date(until_ns)}."
        )
    if "failed" in actions:
        others = "  For others\nit was passed on, as is said below." if "relayed" in actions else ""
        return "Undelivered Mail Returned to Sender", (
            f"It could not pass on your message of {date}\n"
            f"to the recipients below, and will not try again for them.{others}"
        )
    return "Mail Passed On", (
        f"You asked to be told about your message of {date}.\n"
        "It was passed on for the recipients below.  THIS IS NO PROOF OF DELIVERY:\n"
        "the next mail server does not tell what becomes of it."
    )


def _for_people(opening: str, recipients: Sequence[ReportedRecipient], *, guessed: bool) -> bytes:
    lines, shown = opening.split("\n"), recipients[:SPELLED_OUT]
    for reason, title in _TITLES.items():
        group = [each for each in shown if each.reason is reason]
        lines += ["", title] if group else []
        for each in group:
            lines += ["", f"  <{each.recipient}>"]
            text = clean(each.diagnostic or "")[:MAX_TEXT]
            lines += [f"    {line}" for line in textwrap.wrap(text, 72, break_long_words=False)]
            lines += [f"    (upstream: {clean(each.remote)})"] if each.remote is not None else []
    if len(recipients) > len(shown):
        lines += ["", f"And {len(recipients) - len(shown)} more, all named in the next part."]
    kind = ["Content-Description: Notification", "Content-Type: text/plain; charset=utf-8"]
    return _part(kind, _lines(lines), guessed=guessed)


def _for_machines(
    message: ReportedMessage, recipients: Sequence[ReportedRecipient], hostname: str, until_ns: int | None
) -> bytes:
    """Return the fields of the message, then those of each recipient (RFC 3464, 2.1)."""
    envelope = message.envelope
    lines = ["Content-Description: Delivery report", "Content-Type: message/delivery-status", ""]
    if envelope.dsn.envid:
        lines.append(f"Original-Envelope-Id: {decode_xtext(envelope.dsn.envid)}")
    lines += [
        f"Reporting-MTA: dns; {hostname}",
        f"X-relay-Queue-ID: {message.queue_id}",
        f"X-relay-Sender: {_typed(envelope.reverse_path)}",
        f"Arrival-Date: {_date(envelope.arrival_at_ns)}",
    ]
    for each in recipients:
        lines += ["", *_recipient_fields(each)]
        if until_ns is not None:
            lines.append(f"Will-Retry-Until: {_date(until_ns)}")
    return _lines(lines)


def _recipient_fields(each: ReportedRecipient) -> Iterator[str]:
    """Yield the lines of RFC 3464, 2.3."""
    if each.orcpt:
        kind, address = original_recipient(each.orcpt)
        yield f"Original-Recipient: {_typed(address, kind)}"
    yield f"Final-Recipient: {_typed(each.recipient)}"
    yield f"Action: {each.reason.action}"
    # Damage on the disk may have reached these two.
    yield f"Status: {clean(each.status)}"
    if each.remote is not None:
        yield f"Remote-MTA: dns; {clean(each.remote)}"
    if diagnostic := clean(each.diagnostic or "")[:MAX_TEXT]:
        # RFC 3464, 2.3.6: `smtp` promises a reply as the server sent it; ours are not that.
        yield f"Diagnostic-Code: {'smtp' if _SMTP_REPLY.match(diagnostic) else 'X-relay'}; {diagnostic}"
    if each.remote is not None or each.reason is not Reason.DELAYED:
        yield f"Last-Attempt-Date: {_date(each.at_ns)}"


def _returned_header(content: bytes, *, guessed: bool) -> bytes:
    """Return the part with the original header (RFC 6522, 4)."""
    end = (b"\r\n" + content).find(b"\r\n\r\n")
    header = content if end < 0 else content[:end]
    header += b"\r\n" if header and not header.endswith(b"\r\n") else b""
    kind = ["Content-Description: Message Headers", "Content-Type: text/rfc822-headers"]
    return _part(kind, header, guessed=guessed)


def _returned_message(content: bytes) -> bytes:
    """Return the part with the original message, which knows no encoding (RFC 2046, 5.2.1)."""
    kind = ["Content-Description: Undelivered Message", "Content-Type: message/rfc822"]
    return _lines([*kind, ""]) + content


def _part(kind: list[str], octets: bytes, *, guessed: bool) -> bytes:
    """Encode what is not plain, and where Mailman would guess everything."""
    if guessed:
        encoded = base64.encodebytes(octets).replace(b"\n", b"\r\n")
        return _lines([*kind, "Content-Transfer-Encoding: base64", ""]) + encoded
    if _PLAIN_LINES.match(octets):
        return _lines([*kind, ""]) + octets
    # By lines, since an end of line other than CRLF is to be an octet like any other (RFC 2045, 6.7).
    encoded = b"\n".join(binascii.b2a_qp(line, istext=False) for line in octets.split(b"\r\n"))
    return _lines([*kind, "Content-Transfer-Encoding: quoted-printable", ""]) + encoded.replace(
        b"\n", b"\r\n"
    )


def _typed(address: str, kind: str = "rfc822") -> str:
    """Return an address as a delivery status has it, beyond ASCII as utf-8-addr-xtext (RFC 6533, 3)."""
    if address.isascii():
        return f"{kind}; {clean(address)[:MAX_TEXT]}"
    return f"utf-8; {utf8_address(address)[:MAX_TEXT]}"


def _date(at_ns: int) -> str:
    """Return an instant in UTC as RFC 5322, 3.3 writes it; the nearest that has a year of four digits."""
    seconds = min(max(at_ns // SECOND_NS, 0), LAST_SECOND)
    return format_datetime(datetime.fromtimestamp(seconds, UTC))


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\r\n" for line in lines).encode()
