r"""Writes reports to a sender: mail failed, is late, or was relayed (RFC 3464 in RFC 6522).  Pure.

Guarantees: the same input gives the same bytes, so a report that is published again after a crash is the same
report.  Lines end in CRLF and have at most 998 octets, except in a message that is returned whole.  Foreign
text cannot begin a header field or end a part.  The cost is linear in the recipients.  All octets are ASCII,
except the address in To:.  Recipients outside ASCII stand as `utf-8; …\x{HEX}…` (RFC 6533, 3).
Assumes: addresses passed `relay.mail.address`; host names, ids and status codes are ours or were checked; the
sender is not `<>`.
"""

import binascii
import enum
import hashlib
import re
from collections.abc import Mapping, Sequence
from email.message import Message, MIMEPart
from email.policy import compat32
from email.utils import format_datetime

from relay.mail.dsn import Note, Ret, decode_xtext, original_recipient, utf8_xtext
from relay.mail.envelope import Envelope, QueueId
from relay.mail.formats import instant
from relay.mail.text import clean

MAX_TEXT = 900
"""The most characters of an address or a reply: a line has at most 998 octets (RFC 5322, 2.1.1)."""
_SMTP_REPLY = re.compile(r"[2-5][0-9][0-9](?: |\Z)")
_PLAIN_LINES = re.compile(rb"(?:[\t\x20-\x7e]{0,998}\r\n)*\Z")
_AS_WRITTEN = compat32.clone(linesep="\r\n", max_line_length=0)
"""Never folds: readers of delivery status may not know folded fields."""


class Reason(enum.StrEnum):
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
    Reason.RELAYED: "Passed on to the next mail server, which does not confirm delivery:",
    Reason.DELAYED: "Still waiting:",
}
_OPENINGS = {
    "delayed": "Delayed Mail (still being retried)\n"
    "Your message of {date}\n"
    "is late for the recipients below.  THIS IS A WARNING ONLY: there is no\n"
    "need to send it again.  It will be tried until\n{until}.",
    "failed": "Undelivered Mail Returned to Sender\n"
    "This relay could not pass on your message of {date}\n"
    "to the recipients below, and will not try again for those that failed.",
    "relayed": "Mail Passed On\n"
    "You asked to be told about your message of {date}.\n"
    "It was passed on for the recipients below.  THIS IS NO PROOF OF DELIVERY:\n"
    "the next mail server does not confirm delivery.",
}
"""Subject and beginning of the part for people, by action; the first that a report has applies."""


def report(
    report_id: QueueId,
    envelope: Envelope,
    content: bytes,
    notes: Sequence[Note],
    *,
    is_whole: bool,
    hostname: str,
    sender: str,
    until_ns: int | None = None,
) -> bytes:
    """Return the content of a report; with `until_ns`, of a warning that mail is retried until then.

    `envelope` and `content` are those of the message, whose id begins `report_id`.  `content` goes from its
    first octet as received to the end of the header or further.  `notes` has one note for each recipient that
    the report tells of.  `sender` is in ASCII.
    """
    actions = {Reason(each.reason).action for each in notes}
    returns_all = (
        "failed" in actions  # RFC 3461, 4.3: RET is about failures
        and envelope.dsn.ret is Ret.FULL
        and is_whole
        and content.isascii()  # some upstreams may not take other content
        and b"\0" not in content
    )
    if returns_all:
        # message/rfc822 allows no encoding (RFC 2046, 5.2.1).
        returned = _part({"Content-Type": "message/rfc822"}, content.decode("ascii"))
    else:
        header = (b"\r\n" + content).partition(b"\r\n\r\n")[0][2:].removesuffix(b"\r\n") + b"\r\n"
        returned = _text("text/rfc822-headers", header)  # RFC 6522, 4
    opening = next(text for action, text in _OPENINGS.items() if action in actions)
    subject, _, opening = opening.partition("\n")
    opening = opening.format(date=_date(envelope.arrival_at_ns), until=_date(until_ns or 0))
    attached = "message" if returns_all else "header of the message"
    opening = f"This is the mail relay at {hostname}.\n\n{opening}  The {attached}\nis attached."
    text = _text("text/plain; charset=utf-8", _for_people(opening, envelope, notes))
    # A text cannot contain its own SHA-256, so no part can contain the boundary.
    digest = hashlib.sha256(repr((report_id, envelope, content, notes)).encode()).hexdigest()
    fields = {
        "From": f"Mail Delivery System <{sender}>",
        "To": f"<{envelope.reverse_path}>".encode().decode("ascii", "surrogateescape"),
        "Subject": subject,
        "Date": _date(max(each.at_ns for each in notes)),
        "Message-ID": f"<{report_id}@{hostname}>",
        "Auto-Submitted": "auto-replied",
        "MIME-Version": "1.0",
        "Content-Type": f'multipart/report; report-type=delivery-status; boundary="=_{digest[:32]}"',
    }
    of_message = {
        "Reporting-MTA": f"dns; {hostname}",
        "X-relay-Queue-ID": report_id[:16],
        "X-relay-Sender": _typed("rfc822", envelope.reverse_path),
        "Arrival-Date": _date(envelope.arrival_at_ns),
        "Original-Envelope-Id": decode_xtext(envelope.dsn.envid),
    }
    of_recipients = [_recipient_fields(envelope, each, until_ns) for each in notes]
    # The fields of the message, then those of each recipient (RFC 3464, 2.1).
    status = _part({"Content-Type": "message/delivery-status"}, [*map(_part, (of_message, *of_recipients))])
    whole = _part(fields, [text, status, returned])
    whole.preamble = "This is a MIME-encapsulated message."
    return whole.as_bytes()


def _for_people(opening: str, envelope: Envelope, notes: Sequence[Note]) -> bytes:
    lines = opening.split("\n")
    for reason, title in _TITLES.items():
        group = [each for each in notes if each.reason == reason]
        lines += ["", title] if group else []
        for each in group:
            why = clean(each.diagnostic or "")[:MAX_TEXT]
            if each.remote is not None:
                why += f" (upstream: {clean(each.remote)})"
            lines += ["", f"  <{envelope.recipients[each.index]}>", f"    {why}"]
    return "".join(f"{line}\r\n" for line in lines).encode()


def _recipient_fields(envelope: Envelope, note: Note, until_ns: int | None) -> dict[str, str]:
    """Return the fields of a recipient (RFC 3464, 2.3), cleaned: a disk may have damaged its texts."""
    orcpt, reason = envelope.dsn.of(note.index).orcpt, Reason(note.reason)
    diagnostic = clean(note.diagnostic or "")[:MAX_TEXT]
    # RFC 3464, 2.3.6: `smtp` promises the server's own reply, which our texts are not.
    kind = "smtp" if _SMTP_REPLY.match(diagnostic) else "X-relay"
    is_attempted = note.remote is not None or reason is not Reason.DELAYED
    return {
        "Original-Recipient": _typed(*original_recipient(orcpt)) if orcpt else "",
        "Final-Recipient": _typed("rfc822", envelope.recipients[note.index]),
        "Action": reason.action,
        "Status": clean(note.status),
        "Remote-MTA": f"dns; {clean(note.remote)}" if note.remote is not None else "",
        "Diagnostic-Code": f"{kind}; {diagnostic}" if diagnostic else "",
        "Last-Attempt-Date": _date(note.at_ns) if is_attempted else "",
        "Will-Retry-Until": _date(until_ns) if until_ns is not None else "",
    }


def _text(kind: str, text: bytes) -> MIMEPart:
    """Return a part of text, legible and exact to the octet."""
    if _PLAIN_LINES.match(text):
        return _part({"Content-Type": kind}, text.decode())
    # Line by line, so that a bare CR or LF is encoded like any other octet (RFC 2045, 6.7).
    lines = [binascii.b2a_qp(line, istext=False).decode() for line in text.split(b"\r\n")]
    fields = {"Content-Type": kind, "Content-Transfer-Encoding": "quoted-printable"}
    return _part(fields, "\n".join(lines))


def _part(fields: Mapping[str, str], payload: list[Message | str] | str = "") -> MIMEPart:
    part = MIMEPart(_AS_WRITTEN)
    for name, value in fields.items():
        if value:
            part[name] = value
    part.set_payload(payload)
    return part


def _typed(kind: str, address: str) -> str:
    """Return an address for a delivery status; beyond ASCII as utf-8-addr-xtext (RFC 6533, 3)."""
    if address.isascii():
        return f"{kind}; {clean(address)[:MAX_TEXT]}"
    return f"utf-8; {utf8_xtext(address)[:MAX_TEXT]}"


def _date(at_ns: int) -> str:
    return format_datetime(instant(at_ns))  # RFC 5322, 3.3
