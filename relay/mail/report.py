r"""Reports: what a sender is told when mail failed, is late, or went on (RFC 3464 in RFC 6522).  Pure.

Guarantees: the same input gives the same bytes, so that a report published twice after a crash is one
report; every line ends in CRLF; no foreign text can begin a header field, end a part or reach a terminal
as a control character; the cost is linear in the recipients.  Every line is at most 998 octets and 7-bit,
but for the To: line of a sender whose address is not ASCII, who can only be reached by SMTPUTF8 anyway,
and for a message that is returned whole.  Non-ASCII recipients stand as `utf-8; …\x{HEX}…`
(utf-8-addr-xtext, RFC 6533, 3), right inside a 7-bit `message/delivery-status`.  Where all are such, the
other parts are base64: Mailman's parser takes no such address, and guesses from whatever text it finds who
else has failed.
A report of failures returns the whole message where the sender asked for that (RET=FULL), octet for octet
as `message/rfc822`, which knows no encoding (RFC 2046, 5.2.1).  The header comes instead where Mailman's
parser would guess from the text, and of a message with NUL, which few servers take.
Does not: decide what became of whom, whether a report is owed, or who is told.
"""

import binascii
import enum
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from ipaddress import ip_address

from relay.clock import SECOND_NS
from relay.mail.dsn import Ret, decode_xtext, original_recipient
from relay.mail.envelope import Envelope, QueueId
from relay.mail.formats import LAST_SECOND
from relay.mail.text import clean

MAX_HEADER_BYTES = 64 * 1024
"""How much of the original header is returned; cut at the end of a line."""
MAX_ADDRESS_OCTETS = 900
"""RFC 5321, 4.5.3.1.3 allows 256; a longer one is cut, since a line ends at 998 (RFC 5322, 2.1.1)."""
SPELLED_OUT = 100
"""How many recipients the part for people names; the part for machines names all."""

_LINE_CHARACTERS = 76
_STATUS = re.compile(r"[245]\.[0-9]{1,3}\.[0-9]{1,3}\Z")
_SMTP_REPLY = re.compile(r"[2-5][0-9][0-9](?: |\Z)")
_EIGHT_BIT = "Content-Transfer-Encoding: 8bit"
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

    `suffix` tells its Message-ID from those of other reports of the message.  `sender` is an address in
    ASCII, or None for MAILER-DAEMON at the host.
    Raises ValueError for the null reverse-path (a report is never answered by another: RFC 5321, 4.5.5)
    and when there is nobody to report.
    """
    host = _word(hostname)
    is_failure = any(ending.action is Action.FAILED for ending in endings)
    # RFC 3461, 4.3: RET is about failures.
    is_asked = is_failure and message.envelope.dsn.ret is Ret.FULL
    returns_all = (
        is_asked and message.is_whole and not _is_guessed_at(endings) and b"\0" not in message.header
    )
    attached = "The message\nis attached." if returns_all else "The header\nof the message is attached."
    date = _date(message.envelope.arrival_at_ns)
    if is_failure:
        subject = "Undelivered Mail Returned to Sender"
        told = (
            f"It could not pass on your message of {date}\n"
            "to the recipients below, and will not try again for them.  "
        )
    else:
        subject = "Mail Passed On"
        told = (
            f"You asked to be told about your message of {date}.\n"
            "It was passed on for the recipients below.  THIS IS NO PROOF OF DELIVERY:\n"
            "the next mail server does not tell what becomes of it.  "
        )
    if is_failure and any(ending.action is Action.RELAYED for ending in endings):
        told += "For others\nit was passed on, as is said below.  "
    opening = f"This is the mail relay at {host}.\n\n{told}{attached}"
    kind = _Kind(subject, suffix, opening, host, at_ns, returns_all=returns_all, is_failure=is_failure)
    return _report(message, endings, kind, sender)


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
    host = _word(hostname)
    opening = (
        f"This is the mail relay at {host}.\n\n"
        f"Your message of {_date(message.envelope.arrival_at_ns)}\n"
        "is late for the recipients below.  THIS IS A WARNING ONLY: there is no\n"
        "need to send it again.  It will be tried until\n"
        f"{_date(will_retry_until_ns)}."
    )
    return _report(
        message,
        failures,
        _Kind("Delayed Mail (still being retried)", "w", opening, host, at_ns, will_retry_until_ns),
        sender,
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    subject: str
    id_suffix: str
    opening: str
    host: str
    at_ns: int
    will_retry_until_ns: int | None = None
    returns_all: bool = False
    is_failure: bool = True


def _report(message: ReportedMessage, failures: Sequence[Failure], kind: _Kind, sender: str | None) -> bytes:
    if message.envelope.is_null:
        raise ValueError("a message with the null reverse-path is never answered by a report")
    if not failures:
        raise ValueError("a report needs at least one recipient")
    queue_id = _word(message.queue_id)
    is_guessed_at = _is_guessed_at(failures)
    parts = [
        _explanation(failures, kind, is_guessed_at=is_guessed_at),
        _delivery_status(message, failures, kind, queue_id),
        _returned_message(message.header)
        if kind.returns_all
        else _returned_header(message.header, kind, is_guessed_at=is_guessed_at),
    ]
    # No content can hold its own SHA-256, so no part can hold its own boundary.
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]
    boundary = f"=_{digest}"
    fields = [
        f"From: Mail Delivery System <{sender or f'MAILER-DAEMON@{kind.host}'}>",
        f"To: <{_mailbox(message.envelope.reverse_path)}>",
        f"Subject: {kind.subject}",
        f"Date: {_date(kind.at_ns)}",
        f"Message-ID: <{queue_id}{kind.id_suffix}@{kind.host}>",
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
    end = f"--{boundary}--\r\n".encode("ascii")
    return _crlf(fields) + b"".join(delimiter + part + b"\r\n" for part in parts) + end


def _is_guessed_at(failures: Sequence[Failure]) -> bool:
    return not any(failure.recipient.isascii() for failure in failures)


def _explanation(failures: Sequence[Failure], kind: _Kind, *, is_guessed_at: bool) -> bytes:
    lines = kind.opening.split("\n")
    shown = failures[:SPELLED_OUT]
    for reason, title in _TITLES.items():
        group = [failure for failure in shown if _reason(failure) is reason]
        if group:
            lines += ["", title]
        for failure in group:
            lines += ["", f"  <{_mailbox(failure.recipient)}>"]
            lines += _folded("   ", clean(failure.diagnostic or ""), "    ")
            if failure.remote is not None:
                lines += _folded("    (upstream:", f"{_word(failure.remote)})", "    ")
    if len(failures) > len(shown):
        lines += ["", f"And {len(failures) - len(shown)} more, all named in the next part."]
    text = _crlf(lines)
    fields = ["Content-Description: Notification"]
    if text.isascii() and not is_guessed_at:
        return _crlf([*fields, "Content-Type: text/plain; charset=us-ascii", ""]) + text
    return _encoded([*fields, "Content-Type: text/plain; charset=utf-8"], text, is_guessed_at=is_guessed_at)


def _reason(failure: Failure) -> Reason | None:
    return None if failure.action is Action.DELAYED else failure.reason


def _delivery_status(
    message: ReportedMessage, failures: Sequence[Failure], kind: _Kind, queue_id: str
) -> bytes:
    """Return the part for machines (RFC 3464, 2.1): fields of the message, then of each recipient."""
    lines = [
        "Content-Description: Delivery report",
        "Content-Type: message/delivery-status",
        "",
        *_original_envelope_id(message.envelope.dsn.envid),
        f"Reporting-MTA: dns; {kind.host}",
        f"X-relay-Queue-ID: {queue_id}",
        f"X-relay-Sender: {_typed_address(message.envelope.reverse_path)}",
        f"Arrival-Date: {_date(message.envelope.arrival_at_ns)}",
    ]
    for failure in failures:
        lines += ["", *_recipient_fields(failure, kind.will_retry_until_ns)]
    return _crlf(lines)


def _original_envelope_id(envid: str) -> Iterator[str]:
    if envid:
        # RFC 3464, 2.2.1: as the sender wrote it before it became xtext.
        yield f"Original-Envelope-Id: {clean(decode_xtext(envid))}"


def _recipient_fields(failure: Failure, will_retry_until_ns: int | None) -> Iterator[str]:
    """Return the lines of RFC 3464, 2.3 for one recipient."""
    is_delayed = failure.action is Action.DELAYED
    unspecified = _UNSPECIFIED[failure.action]
    if failure.orcpt:
        kind, address = original_recipient(failure.orcpt)
        yield f"Original-Recipient: {kind}; {clean(address)[:MAX_ADDRESS_OCTETS]}"
    yield f"Final-Recipient: {_typed_address(failure.recipient)}"
    yield f"Action: {failure.action.value}"
    yield f"Status: {failure.status if _STATUS.match(failure.status) else unspecified}"
    if failure.remote is not None:
        yield from _folded("Remote-MTA: dns;", _mta_name(failure.remote))
    if failure.diagnostic:
        diagnostic = clean(failure.diagnostic)
        # RFC 3464, 2.3.6: `smtp` promises a reply as the server sent it; ours are not that.
        kind = "smtp" if _SMTP_REPLY.match(diagnostic) else "X-relay"
        yield from _folded(f"Diagnostic-Code: {kind};", diagnostic)
    if not is_delayed or failure.remote is not None:
        # What only waits had no attempt of late.
        yield f"Last-Attempt-Date: {_date(failure.at_ns)}"
    if is_delayed and will_retry_until_ns is not None:
        yield f"Will-Retry-Until: {_date(will_retry_until_ns)}"


def _returned_header(header: bytes, kind: _Kind, *, is_guessed_at: bool) -> bytes:
    """Return the part with the original header (RFC 6522, 4), encoded where it is not plain text."""
    kept = b"" if header.startswith(b"\r\n") else header.partition(b"\r\n\r\n")[0]
    if len(kept) > MAX_HEADER_BYTES:
        end = kept.rfind(b"\r\n", 0, MAX_HEADER_BYTES)
        kept = kept[: end if end > 0 else MAX_HEADER_BYTES]
    if kept and not kept.endswith(b"\r\n"):
        kept += b"\r\n"
    fields = [f"Content-Description: {'Undelivered ' if kind.is_failure else ''}Message Headers"]
    if _PLAIN_LINES.match(kept) and not is_guessed_at:
        return _crlf([*fields, "Content-Type: text/rfc822-headers", ""]) + kept
    charset = "; charset=utf-8" if _is_utf8(kept) else ""
    fields += [f"Content-Type: text/rfc822-headers{charset}"]
    return _encoded(fields, kept, is_guessed_at=is_guessed_at)


def _returned_message(content: bytes) -> bytes:
    """Return the part with the original message (RFC 6522, 3)."""
    fields = ["Content-Description: Undelivered Message", "Content-Type: message/rfc822"]
    return _crlf([*fields, *([] if content.isascii() else [_EIGHT_BIT]), ""]) + content


def _encoded(fields: Sequence[str], octets: bytes, *, is_guessed_at: bool) -> bytes:
    """Return a part of 7 bits: in words that can be read as they are, or in none."""
    encoding, encode = ("base64", _base64) if is_guessed_at else ("quoted-printable", _quoted_printable)
    return _crlf([*fields, f"Content-Transfer-Encoding: {encoding}", ""]) + encode(octets)


def _base64(octets: bytes) -> bytes:
    """Encode any octets; 57 make a line of 76 characters."""
    starts = range(0, len(octets), 57)
    return b"".join(binascii.b2a_base64(octets[at : at + 57], newline=False) + b"\r\n" for at in starts)


def _is_utf8(octets: bytes) -> bool:
    try:
        octets.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return not octets.isascii()


def _quoted_printable(octets: bytes) -> bytes:
    """Encode whole CRLF lines; a CR or LF that is not one is an octet like any other (RFC 2045, 6.7)."""
    lines = octets.removesuffix(b"\r\n").split(b"\r\n")
    # Without istext every LF left in the output is a soft line break of the encoder's own.
    encoded = (binascii.b2a_qp(line, istext=False).replace(b"\n", b"\r\n") for line in lines)
    return b"\r\n".join(encoded) + b"\r\n"


def _typed_address(address: str) -> str:
    """Return an address as a field of a delivery status has it: `rfc822; …` or `utf-8; …`."""
    if address.isascii():
        return f"rfc822; {clean(address)[:MAX_ADDRESS_OCTETS]}"
    encoded, length = [], 0
    for character in address:
        is_plain = "!" <= character <= "~" and character not in "\\+="
        piece = character if is_plain else f"\\x{{{ord(character):02X}}}"
        length += len(piece)
        if length > MAX_ADDRESS_OCTETS:
            break
        encoded.append(piece)
    return f"utf-8; {''.join(encoded)}"


def _mailbox(address: str) -> str:
    """Return an address for people and for To:, UTF-8 kept, nothing in it that could end a line."""
    if address.isascii():
        return clean(address)[:MAX_ADDRESS_OCTETS]
    visible = "".join("?" if unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"} else c for c in address)
    return visible.encode("utf-8")[:MAX_ADDRESS_OCTETS].decode("utf-8", "ignore")


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


def _folded(lead: str, text: str, indent: str = " ") -> Iterator[str]:
    """Fold at 76 characters where words allow it; long words are cut, so that no line reaches 998."""
    line = lead
    for word in _words(text):
        if len(line) + 1 + len(word) <= _LINE_CHARACTERS:
            line = f"{line} {word}"
            continue
        if line.strip():
            yield line
        line = indent + word
    if line.strip():
        yield line


def _words(text: str) -> Iterator[str]:
    for word in text.split():
        for start in range(0, len(word), MAX_ADDRESS_OCTETS):
            yield word[start : start + MAX_ADDRESS_OCTETS]


def _date(at_ns: int) -> str:
    """Return an instant as RFC 5322, 3.3 writes it, in UTC; one without a four-digit year, the nearest."""
    seconds = min(max(at_ns // SECOND_NS, 0), LAST_SECOND)
    return format_datetime(datetime.fromtimestamp(seconds, UTC))


def _crlf(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\r\n" for line in lines).encode("utf-8")
