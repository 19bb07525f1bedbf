r"""Reports: what a sender is told when mail failed, is late, or went on (RFC 3464 in RFC 6522).  Pure.

Guarantees: the same input gives the same bytes, so that a report published twice after a crash is one
report; every line ends in CRLF; no foreign text can begin a header field, end a part or reach a terminal
as a control character; the cost is linear in the recipients.  Every line is at most 998 octets and 7-bit,
but for the To: line of a sender whose address is not ASCII, who can only be reached by SMTPUTF8 anyway,
and for a message that is returned whole.  Non-ASCII recipients stand as `utf-8; …\x{HEX}…`
(utf-8-addr-xtext, RFC 6533, 3).  Mailman's parser takes no such address, and guesses from the text who else
has failed: where all are such, every other part is base64.
A report of failures returns the whole message where the sender asked for that (RET=FULL), octet for octet
as `message/rfc822`, which knows no encoding (RFC 2046, 5.2.1); never where Mailman would guess from it, nor
one with NUL, which few servers take.
Does not: decide what became of whom, whether a report is owed, or who is told.
"""

import base64
import binascii
import enum
import hashlib
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from ipaddress import ip_address
from typing import NamedTuple

from relay.clock import SECOND_NS
from relay.mail.dsn import Ret, decode_xtext, original_recipient
from relay.mail.envelope import Envelope, QueueId
from relay.mail.formats import LAST_SECOND
from relay.mail.text import clean

MAX_HEADER_BYTES = 64 * 1024
"""How much of the original header is returned; cut at the end of a line."""
MAX_TEXT = 900
"""Of an address or a reply: a line ends at 998 (RFC 5322, 2.1.1)."""
SPELLED_OUT = 100
"""How many recipients the part for people names; the part for machines names all."""

_STATUS = re.compile(r"[245]\.[0-9]{1,3}\.[0-9]{1,3}\Z")
_SMTP_REPLY = re.compile(r"[2-5][0-9][0-9](?: |\Z)")
_EIGHT_BIT = "Content-Transfer-Encoding: 8bit"
_PLAIN_CHARACTER = re.compile(r"[!-*,-<>-\[\]-~]")
_PLAIN_LINES = re.compile(rb"(?:[\t\x20-\x7e]{0,998}\r\n)*\Z")


class Action(enum.StrEnum):
    """What became of a recipient (RFC 3464, 2.3.3)."""

    FAILED = "failed"
    DELAYED = "delayed"
    RELAYED = "relayed"
    """Passed on to a server that tells the sender nothing: never `delivered`."""


_UNSPECIFIED = {Action.FAILED: "5.0.0", Action.DELAYED: "4.0.0", Action.RELAYED: "2.0.0"}


class Reason(enum.StrEnum):
    BOUNCED = "bounced"
    """The upstream refused it for good."""
    EXPIRED = "expired"
    """It was tried for as long as the policy allows."""
    OPERATOR = "operator"
    RELAYED = "relayed"
    """No failure."""


@dataclass(frozen=True, slots=True)
class ReportedMessage:
    queue_id: QueueId
    envelope: Envelope
    header: bytes
    """Its header section as received; whatever follows the first empty line is returned only if asked for."""
    is_whole: bool = False
    """`header` is all of the content."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What is told of one recipient."""

    recipient: str
    status: str
    """Enhanced status code, RFC 3463."""
    action: Action
    diagnostic: str | None
    """The upstream's reply, or what else there is to say."""
    remote: str | None
    """The upstream, as `host`; None where nobody was asked, as for what is delayed without an attempt."""
    at_ns: int
    """Wall clock of the last attempt."""
    reason: Reason
    """Of no meaning where the action is DELAYED."""
    orcpt: str = ""
    """As the client gave it (RFC 3461, 4.2)."""


_TITLES = {
    Reason.BOUNCED: "Refused by the next mail server:",
    Reason.EXPIRED: "Not passed on within the time allowed, so given up:",
    Reason.OPERATOR: "Removed from the queue by an operator of this relay:",
    Reason.RELAYED: "Passed on to the next mail server, which will not say more:",
    None: "Still waiting:",
}


class _Origin(NamedTuple):
    host: str
    at_ns: int
    sender: str | None


class _Letter(NamedTuple):
    subject: str
    suffix: str
    """Tells its Message-ID from those of other reports of the message."""
    opening: str
    """What the part for people begins with, behind our name."""
    will_retry_until_ns: int | None = None


def final_report(
    message: ReportedMessage,
    endings: Sequence[Failure],
    *,
    hostname: str,
    at_ns: int,
    suffix: str = "r",
    sender: str | None = None,
) -> bytes:
    """Return the whole content of a report of failures, or of successes, or of both.

    `sender` is an address in ASCII, or None for MAILER-DAEMON at the host.
    Raises ValueError for the null reverse-path (a report is never answered by another: RFC 5321, 4.5.5)
    and when there is nobody to report.
    """
    actions = {ending.action for ending in endings}
    date = _date(message.envelope.arrival_at_ns)
    if Action.FAILED in actions:
        subject = "Undelivered Mail Returned to Sender"
        told = (
            f"It could not pass on your message of {date}\n"
            "to the recipients below, and will not try again for them."
        )
        if Action.RELAYED in actions:
            told += "  For others\nit was passed on, as is said below."
    else:
        subject = "Mail Passed On"
        told = (
            f"You asked to be told about your message of {date}.\n"
            "It was passed on for the recipients below.  THIS IS NO PROOF OF DELIVERY:\n"
            "the next mail server does not tell what becomes of it."
        )
    # RFC 3461, 4.3: RET is about failures.
    is_asked = Action.FAILED in actions and message.envelope.dsn.ret is Ret.FULL
    is_whole = is_asked and message.is_whole and not _is_guessed_at(endings) and b"\0" not in message.header
    told += f"  The {'message' if is_whole else 'header of the message'}\nis attached."
    letter = _Letter(subject, suffix, told)
    returned = (
        _returned_message(message.header)
        if is_whole
        else _returned_header(message.header, is_guessed_at=_is_guessed_at(endings))
    )
    return _report(message, endings, letter, returned, _Origin(_word(hostname), at_ns, sender))


def delay_warning(
    message: ReportedMessage,
    failures: Sequence[Failure],
    *,
    hostname: str,
    at_ns: int,
    will_retry_until_ns: int,
    sender: str | None = None,
) -> bytes:
    """Return the whole content.  Raises ValueError as `final_report` does."""
    told = (
        f"Your message of {_date(message.envelope.arrival_at_ns)}\n"
        "is late for the recipients below.  THIS IS A WARNING ONLY: there is no\n"
        "need to send it again.  It will be tried until\n"
        f"{_date(will_retry_until_ns)}."
    )
    letter = _Letter("Delayed Mail (still being retried)", "w", told, will_retry_until_ns)
    returned = _returned_header(message.header, is_guessed_at=_is_guessed_at(failures))
    return _report(message, failures, letter, returned, _Origin(_word(hostname), at_ns, sender))


def _report(
    message: ReportedMessage, failures: Sequence[Failure], letter: _Letter, returned: bytes, origin: _Origin
) -> bytes:
    if message.envelope.is_null:
        raise ValueError("a message with the null reverse-path is never answered by a report")
    if not failures:
        raise ValueError("a report needs at least one recipient")
    parts = [
        _explanation(failures, f"This is the mail relay at {origin.host}.\n\n{letter.opening}"),
        _delivery_status(message, failures, origin.host, letter.will_retry_until_ns),
        returned,
    ]
    # No content can hold its own SHA-256, so no part can hold its own boundary.
    boundary = f"=_{hashlib.sha256(b'|'.join(parts)).hexdigest()[:32]}"
    fields = [
        f"From: Mail Delivery System <{origin.sender or f'MAILER-DAEMON@{origin.host}'}>",
        f"To: <{_mailbox(message.envelope.reverse_path)}>",
        f"Subject: {letter.subject}",
        f"Date: {_date(origin.at_ns)}",
        f"Message-ID: <{_word(message.queue_id)}{letter.suffix}@{origin.host}>",
        "Auto-Submitted: auto-replied",
        "MIME-Version: 1.0",
        # RFC 2045, 6.4: a part of 8 bits makes the whole one.
        *([] if all(map(bytes.isascii, parts)) else [_EIGHT_BIT]),
        "Content-Type: multipart/report; report-type=delivery-status;",
        f' boundary="{boundary}"',
        "",
        "This is a MIME-encapsulated message.",
        "",
    ]
    delimiter = f"--{boundary}\r\n".encode("ascii")
    return (
        _crlf(fields)
        + b"".join(delimiter + part + b"\r\n" for part in parts)
        + f"--{boundary}--\r\n".encode()
    )


def _is_guessed_at(failures: Sequence[Failure]) -> bool:
    return not any(failure.recipient.isascii() for failure in failures)


def _explanation(failures: Sequence[Failure], opening: str) -> bytes:
    lines = opening.split("\n")
    shown = failures[:SPELLED_OUT]
    for reason, title in _TITLES.items():
        group = [each for each in shown if (None if each.action is Action.DELAYED else each.reason) is reason]
        lines += ["", title] if group else []
        for failure in group:
            lines += ["", f"  <{_mailbox(failure.recipient)}>"]
            lines += _folded("    ", failure.diagnostic or "")
            if failure.remote is not None:
                lines.append(f"    (upstream: {_word(failure.remote)})")
    if len(failures) > len(shown):
        lines += ["", f"And {len(failures) - len(shown)} more, all named in the next part."]
    fields = ["Content-Description: Notification", "Content-Type: text/plain; charset=utf-8"]
    return _part(fields, _crlf(lines), is_plain=not _is_guessed_at(failures))


def _delivery_status(
    message: ReportedMessage, failures: Sequence[Failure], host: str, until_ns: int | None
) -> bytes:
    """Return the part for machines (RFC 3464, 2.1): fields of the message, then of each recipient."""
    envelope, lines = message.envelope, ["Content-Description: Delivery report"]
    lines += ["Content-Type: message/delivery-status", ""]
    if envelope.dsn.envid:
        # RFC 3464, 2.2.1: as the sender wrote it before it became xtext.
        lines.append(f"Original-Envelope-Id: {clean(decode_xtext(envelope.dsn.envid))}")
    lines += [
        f"Reporting-MTA: dns; {host}",
        f"X-relay-Queue-ID: {_word(message.queue_id)}",
        f"X-relay-Sender: {_typed_address(envelope.reverse_path)}",
        f"Arrival-Date: {_date(envelope.arrival_at_ns)}",
    ]
    for failure in failures:
        lines += ["", *_recipient_fields(failure, until_ns)]
    return _crlf(lines)


def _recipient_fields(failure: Failure, until_ns: int | None) -> Iterator[str]:
    """Return the lines of RFC 3464, 2.3 for one recipient."""
    is_delayed = failure.action is Action.DELAYED
    if failure.orcpt:
        kind, address = original_recipient(failure.orcpt)
        yield f"Original-Recipient: {kind}; {clean(address)[:MAX_TEXT]}"
    yield f"Final-Recipient: {_typed_address(failure.recipient)}"
    yield f"Action: {failure.action.value}"
    yield f"Status: {failure.status if _STATUS.match(failure.status) else _UNSPECIFIED[failure.action]}"
    if failure.remote is not None:
        yield f"Remote-MTA: dns; {_mta_name(failure.remote)}"
    if failure.diagnostic:
        # RFC 3464, 2.3.6: `smtp` promises a reply as the server sent it; ours are not that.
        kind = "smtp" if _SMTP_REPLY.match(clean(failure.diagnostic)) else "X-relay"
        yield from _folded(f"Diagnostic-Code: {kind}; ", failure.diagnostic)
    if not is_delayed or failure.remote is not None:
        # What only waits had no attempt of late.
        yield f"Last-Attempt-Date: {_date(failure.at_ns)}"
    if is_delayed and until_ns is not None:
        yield f"Will-Retry-Until: {_date(until_ns)}"


def _returned_header(header: bytes, *, is_guessed_at: bool) -> bytes:
    """Return the part with the original header (RFC 6522, 4)."""
    kept = b"" if header.startswith(b"\r\n") else header.partition(b"\r\n\r\n")[0]
    if len(kept) > MAX_HEADER_BYTES:
        end = kept.rfind(b"\r\n", 0, MAX_HEADER_BYTES)
        kept = kept[: end if end > 0 else MAX_HEADER_BYTES]
    if kept and not kept.endswith(b"\r\n"):
        kept += b"\r\n"
    fields = ["Content-Description: Message Headers", "Content-Type: text/rfc822-headers"]
    return _part(fields, kept, is_plain=not is_guessed_at)


def _returned_message(content: bytes) -> bytes:
    """Return the part with the original message (RFC 6522, 3)."""
    fields = ["Content-Description: Undelivered Message", "Content-Type: message/rfc822"]
    return _crlf([*fields, *([] if content.isascii() else [_EIGHT_BIT]), ""]) + content


def _part(fields: Sequence[str], octets: bytes, *, is_plain: bool) -> bytes:
    """Return a part of 7 bits that people can read as it stands; not so where it may not be plain."""
    if not is_plain:
        encoded = base64.encodebytes(octets).replace(b"\n", b"\r\n")
        return _crlf([*fields, "Content-Transfer-Encoding: base64", ""]) + encoded
    if _PLAIN_LINES.match(octets):
        return _crlf([*fields, ""]) + octets
    return _crlf([*fields, "Content-Transfer-Encoding: quoted-printable", ""]) + _quoted_printable(octets)


def _quoted_printable(octets: bytes) -> bytes:
    """Encode whole CRLF lines; a CR or LF that is not one is an octet like any other (RFC 2045, 6.7)."""
    lines = octets.removesuffix(b"\r\n").split(b"\r\n")
    # Without istext every LF left in the output is a soft line break of the encoder's own.
    encoded = (binascii.b2a_qp(line, istext=False).replace(b"\n", b"\r\n") for line in lines)
    return b"\r\n".join(encoded) + b"\r\n"


def _typed_address(address: str) -> str:
    """Return an address as a field of a delivery status has it: `rfc822; …` or `utf-8; …`."""
    if address.isascii():
        return f"rfc822; {clean(address)[:MAX_TEXT]}"
    encoded = ""
    for character in address:
        piece = character if _PLAIN_CHARACTER.match(character) else f"\\x{{{ord(character):02X}}}"
        if len(encoded) + len(piece) > MAX_TEXT:
            break
        encoded += piece
    return f"utf-8; {encoded}"


def _mailbox(address: str) -> str:
    """Return an address for people and for To:, UTF-8 kept, nothing in it that could end a line."""
    if address.isascii():
        return clean(address)[:MAX_TEXT]
    visible = "".join("?" if unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"} else c for c in address)
    return visible.encode("utf-8")[:MAX_TEXT].decode("utf-8", "ignore")


def _word(text: str) -> str:
    """Return a host name or an id as one printable ASCII word of at most 255 characters."""
    return clean(text).replace(" ", "")[:255]


def _mta_name(host: str) -> str:
    """Return a host as RFC 3464, 9.3 names an MTA: by its name, or by its address as a literal."""
    word = _word(host)
    try:
        version = ip_address(word).version
    except ValueError:
        return word
    return f"[{word}]" if version == 4 else f"[IPv6:{word}]"


def _folded(lead: str, text: str) -> list[str]:
    return textwrap.wrap(
        clean(text)[:MAX_TEXT],
        76,
        initial_indent=lead,
        subsequent_indent=" " * (len(lead) - len(lead.lstrip()) or 1),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _date(at_ns: int) -> str:
    """Return an instant as RFC 5322, 3.3 writes it, in UTC; one without a four-digit year, the nearest."""
    seconds = min(max(at_ns // SECOND_NS, 0), LAST_SECOND)
    return format_datetime(datetime.fromtimestamp(seconds, UTC))


def _crlf(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\r\n" for line in lines).encode("utf-8")
