"""Makes a message of a text that a program wrote: an envelope, and content with a whole header.  Pure.

Guarantees, as RFC 6409, 8 permits: lines end in CRLF; From, Date and Message-ID are added if they are
missing; Bcc is always removed; a `From ` line of an mbox on top becomes a field; a text without a header
gets one.  All else stays, octet for octet.  `from_maildir` does the same for a file of a maildir, whose
envelope is in the lines on top of it; it adds nothing to a message that came from a mail server.
No address is repaired or left out: a text that is no address raises NotAnAddress, so that no recipient is
lost silently.  A name without a domain gets the domain of this host, if one is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from email.utils import format_datetime, formataddr
from itertools import chain

from relay.mail.address import is_valid_address, mailboxes
from relay.mail.dsn import Ret
from relay.mail.header import MAILBOX_LINE, below_our_field, field_name, header_fields, split_header

_SHOWN = 200  # characters of a text that an error shows
_UNREADABLE = "\ufffd"  # the character that replaced an octet outside UTF-8
_TO, _RESENT = ("to", "cc", "bcc"), ("resent-to", "resent-cc", "resent-bcc")
_NEVER_SENT = {b"bcc", b"resent-bcc"}
_RETURN_PATH, _DELIVERED_TO = b"return-path", b"delivered-to"
_ON_TOP = {_RETURN_PATH, _DELIVERED_TO, b"x-original-to", b"envelope-to", MAILBOX_LINE.lower()}
"""The fields that programs that deliver into a maildir write above the message."""


class NotAnAddress(ValueError):  # noqa: N818 - it is what the caller wrote
    """The text says which words are no address, or which address is missing."""


def addresses_in(text: str, hostname: str | None) -> list[str]:
    """Return the addresses of a header or a command line, each once, in order.  Raises NotAnAddress."""
    found, is_closed = mailboxes(text)
    if not is_closed:
        raise NotAnAddress(f"{text[:_SHOWN]}: a bracket is not closed")
    if any(not each.address or each.rest for each in found):
        raise NotAnAddress(f"{text[:_SHOWN]}: not a list of addresses")
    return list(dict.fromkeys(_qualified(each.address, hostname) for each in found))


def _qualified(address: str, hostname: str | None) -> str:
    full = f"{address}@{hostname}" if "@" not in address and hostname else address
    if _UNREADABLE in full or not is_valid_address(full, smtputf8=True):
        raise NotAnAddress(f"{address[:_SHOWN]}: not an address")
    return full


@dataclass(frozen=True, slots=True)
class Submission:
    reverse_path: str
    recipients: tuple[str, ...]
    content: bytes
    notify: str = ""
    """For each recipient; `notify`, `ret` and `envid` are the sender's requests for reports (RFC 3461)."""
    ret: Ret | None = None
    envid: str = ""

    @property
    def smtputf8(self) -> bool:
        return not all(address.isascii() for address in (self.reverse_path, *self.recipients))


@dataclass(frozen=True, slots=True)
class Author:
    """The user who called, and the host."""

    hostname: str
    user: str
    """The login name."""
    sender: str | None
    """As `-f` gives it; None: the user at this host."""
    full_name: str | None
    now: datetime
    message_id: str
    """For a message that has none."""


@dataclass(frozen=True, slots=True)
class EnvelopeSource:
    """Source of a maildir message's recipients: without `recipients` and `takes_header`, Delivered-To."""

    prefix: str = ""
    """The prefix of the address in Delivered-To that the recipient's address does not have."""
    recipients: tuple[str, ...] = ()
    takes_header: bool = False


def from_maildir(text: bytes, author: Author, choice: EnvelopeSource) -> Submission:
    """Return a file of a maildir as a submission.

    The Return-Path and the first Delivered-To on top are the envelope, and are removed.  The same fields
    further down stay: another program wrote them.  Raises NotAnAddress, also if an address of the envelope is
    neither in these fields nor given by the caller.
    """
    fields, rest = split_header(below_our_field(_crlf(text)))
    on_top, fields = _on_top(fields)
    if author.sender is None:
        if _RETURN_PATH not in on_top:
            raise NotAnAddress("no Return-Path on top; name the sender with --sender")
        author = replace(author, sender=on_top[_RETURN_PATH])
    recipients = choice.recipients
    if not recipients and not choice.takes_header:
        recipients = (_delivered_to(on_top.get(_DELIVERED_TO), choice.prefix),)
    # With `-t` the file is a program's own draft; else it came from a mail server, and is whole.
    is_draft = choice.takes_header
    text = b"".join([*fields, rest])
    return from_program(text, author, recipients, takes_header=is_draft, completes=is_draft)


def _on_top(fields: Sequence[bytes]) -> tuple[dict[bytes, str], list[bytes]]:
    """Return the envelope that the fields on top give, and the fields without it."""
    found: dict[bytes, str] = {}
    kept: list[bytes] = []
    for number, field in enumerate(fields):
        name = field_name(field)
        if name not in _ON_TOP:
            return found, [*kept, *fields[number:]]
        if name in {_RETURN_PATH, _DELIVERED_TO} and name not in found:
            found[name] = " ".join(field.partition(b":")[2].decode("utf-8", "replace").split())
        else:
            kept.append(field)
    return found, kept


def _delivered_to(text: str | None, prefix: str) -> str:
    if text is None:
        raise NotAnAddress("no Delivered-To on top; name the recipient with --to or -t")
    found = addresses_in(text, None)
    if len(found) == 1 and found[0].startswith(prefix):
        found = addresses_in(found[0].removeprefix(prefix), None)
        if found:
            return found[0]
    raise NotAnAddress(f"Delivered-To: {text}: not one address that begins with {prefix!r}")


def from_program(
    text: bytes, author: Author, argv: Sequence[str], *, takes_header: bool, completes: bool = True
) -> Submission:
    """Raise NotAnAddress and ValueError.  The result may have no recipient: the caller refuses that.

    Without `completes` nothing is added.
    """
    fields, rest = split_header(below_our_field(_crlf(text)))
    named = list(header_fields(b"".join(fields)))
    recipients = [addresses_in(each, author.hostname) for each in argv]
    if takes_header:
        names = _RESENT if any(name in _RESENT for name, _ in named) else _TO
        recipients += [addresses_in(value, author.hostname) for name, value in named if name in names]
    sender = author.sender
    reverse_path = _own_address(author) if sender is None else _reverse_path(sender, author.hostname)
    kept = [each for each in fields if field_name(each) not in _NEVER_SENT]
    added = _missing({name for name, _ in named}, author, reverse_path) if completes else []
    empty_line = b"\r\n" if completes and not rest.startswith(b"\r\n") else b""
    content = b"".join([*added, *kept, empty_line, rest])
    return Submission(reverse_path, tuple(dict.fromkeys(chain(*recipients))), content)


def _crlf(text: bytes) -> bytes:
    """End each line, also the last one, in CRLF, whatever ended it before."""
    lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\r\n")
    return lines if not lines or lines.endswith(b"\r\n") else lines + b"\r\n"


def _missing(names: set[str], author: Author, reverse_path: str) -> list[bytes]:
    address = reverse_path or _own_address(author)
    # A CR or LF would end the line.
    full_name = "".join(filter(str.isprintable, author.full_name or ""))
    wanted = {
        "From": formataddr((full_name, address)) if full_name and address.isascii() else address,
        "Date": format_datetime(author.now),
        "Message-ID": author.message_id,
    }
    return [f"{name}: {value}\r\n".encode() for name, value in wanted.items() if name.lower() not in names]


def _own_address(author: Author) -> str:
    """Raise ValueError if the user's name is no local part; that is no fault of the message."""
    try:
        return addresses_in(author.user, author.hostname)[0]
    except NotAnAddress as error:
        raise ValueError(f"{error}: name a sender with -f, or --sender") from None


def _reverse_path(text: str, hostname: str) -> str:
    if text.strip() in {"", "<>"}:
        return ""
    found = addresses_in(text, hostname)
    if len(found) != 1:
        raise NotAnAddress(f"{text}: not one address")
    return found[0]
