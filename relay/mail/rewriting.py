"""A message that is sent by another sender than it was handed over by (`rewrite` of a route).  Pure.

The rule is one address, or `@` and a domain, which takes the place of every other domain.  It changes the
reverse-path, and of the header the fields From and Sender; their values of before are kept, as they were, in
X-Original-From and X-Original-Sender, and the authors in Reply-To where the message has none.

Guarantees:
- the null reverse-path stays null; a message that is as the rule wants it stays as it is, octet for octet;
- whatever stands behind the header stays as it is, and so does every other field;
- only ASCII is added, so that what needed no SMTPUTF8 and no 8BITMIME needs none; line ends are CRLF;
- no line that is made is longer than LONGEST_LINE, unless the field had one as long;
- any header is dealt with: groups, comments, folding, encoded words, several fields of one name, nonsense;
  of a usual one in 0.1 ms, of any in some 50 ms.

Reads the header leniently and only the first FRONT_BYTES of the content: what stands behind them is left.
The header ends before an empty line, or before the first line that is no field.
Does not: touch signatures, which no longer hold then, Resent- fields, or Return-Path.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from relay.mail.address import comparable, comparable_domain, is_valid_address
from relay.mail.envelope import Shape

FRONT_BYTES = 128 * 1024
"""How much of a content is looked at; a header rarely has 16 KiB."""
LONGEST_LINE = 998
"""RFC 5322, 2.1.1."""
LONGEST_VALUE = 8 * 1024
"""A longer value of From or Sender counts as nonsense: reading it must not hold up other mail."""
MOST_FIELDS = 20
"""Of one name that are read; whatever has more is no mail that a person wrote."""

_FIELD = re.compile(rb"([!-9;-~]+)[ \t]*:")
_MBOX_LINE = re.compile(rb">?From ")
_TRACE = frozenset({b"received", b"return-path"})
_COMMENT_SIGN = re.compile(rb"[()\\]")
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)
_LITERAL = re.compile(rb"\[(?:[^\]\\]|\\.)*(?:\]|\\?\Z)", re.DOTALL)
_PLAIN = re.compile(rb'[^"(<>,:;\[]+')
_BLANK = b" \t\r\n"


class Mailbox(NamedTuple):
    """One mailbox of a value: where its address stands in it, and what that is."""

    start: int
    end: int
    """Without angle brackets."""
    phrase: bytes
    """The display name as it is written, folding and comments included; empty without one."""
    address: str | None
    """None for what is no address."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What of a message is sent in another form."""

    reverse_path: str
    front: bytes
    """Stands in the place of the first octets of the content."""
    replaced_bytes: int
    """How many these are."""

    def shape(self, of_stored: Shape) -> Shape:
        return replace(of_stored, size_bytes=of_stored.size_bytes + len(self.front) - self.replaced_bytes)

    def content(self, stored: bytes) -> bytes:
        return self.front + stored[self.replaced_bytes :] if self.replaced_bytes or self.front else stored


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A rule.  In ASCII: `policy.lane` checks that it makes addresses."""

    rule: str
    """An address, or `@` and a domain."""

    def reverse_path(self, original: str) -> str:
        """Return the reverse-path that is sent; the null one for the null one."""
        return self.address(original) if original else ""

    def address(self, original: str) -> str:
        """Return what stands in the place of an address: itself, where it is as the rule wants it."""
        local, _, domain = original.rpartition("@")
        if not self.rule.startswith("@"):
            return original if comparable(original) == comparable(self.rule) else self.rule
        is_there = comparable_domain(domain) == comparable_domain(self.rule[1:])
        return original if is_there else f"{local or original}{self.rule}"

    def rewritten(self, reverse_path: str, front: bytes) -> Rewritten:
        """Return what is sent of a message; `front` is its first FRONT_BYTES, or all of its content."""
        sender = self.reverse_path(reverse_path)
        header = _Header(front[:FRONT_BYTES])
        # Who stands where no address stood; for a report nobody, unless the rule names somebody.
        instead = sender if self.rule.startswith("@") else self.rule
        edits = self._edits(header, instead)
        if not edits:
            return Rewritten(sender, b"", 0)
        parts, at = [], 0
        for start, end, text in sorted(edits):
            parts += [front[at:start], text]
            at = end
        return Rewritten(sender, b"".join(parts), at)

    def _edits(self, header: "_Header", instead: str) -> list[tuple[int, int, bytes]]:
        authors = header.named(b"from")
        edits: list[tuple[int, int, bytes]] = []
        is_changed = False
        for place, author in enumerate(authors):
            is_surplus = place > 0 and not self.rule.startswith("@")
            is_read = not is_surplus and place < MOST_FIELDS
            value = self._value(author.value, instead) if is_read else None
            if value is None and not is_surplus:
                continue
            is_changed = True
            text = b"" if is_surplus or value is None else _field(author.name, value)
            edits.append((author.start, author.end, text + _field(b"X-Original-From", author.value)))
        if is_changed and header.is_whole and not header.named(b"reply-to"):
            authors_of_before = [each.value for each in authors[:MOST_FIELDS] if _has_address(each.value)]
            if authors_of_before:
                first, *others = authors_of_before
                value = b",\r\n ".join([first.rstrip(_BLANK), *(each.strip(_BLANK) for each in others)])
                edits.append((authors[-1].end, authors[-1].end, _field(b"Reply-To", value)))
        if not authors and header.is_whole and header.fields and instead:
            at = header.behind_trace
            edits.append((at, at, _field(b"From", b" <" + instead.encode() + b">")))
        for each in header.named(b"sender")[:MOST_FIELDS]:
            if (value := self._value(each.value, instead)) is not None:
                text = _field(each.name, value) + _field(b"X-Original-Sender", each.value)
                edits.append((each.start, each.end, text))
        return edits

    def _value(self, value: bytes, instead: str) -> bytes | None:
        """Return the value of From or Sender that is sent; None where it stays as it is."""
        found = list(mailboxes(value))
        if not self.rule.startswith("@"):
            if len(found) == 1 and found[0].address and self.address(found[0].address) == found[0].address:
                return None
            phrase = next((each.phrase for each in found if each.phrase), b"")
            return _in_full([(phrase, self.rule)])
        new = [self.address(each.address) if each.address else instead for each in found]
        if not found:
            return _in_full([(b"", instead)]) if instead else None
        if all(not address or address == was.address for address, was in zip(new, found, strict=True)):
            return None
        parts, at = [], 0
        for address, was in zip(new, found, strict=True):
            if address:
                parts += [value[at : was.start], address.encode()]
                at = was.end
        in_place = b"".join([*parts, value[at:]])
        if _longest_line(in_place) <= max(LONGEST_LINE - len(b"X-Original-Sender:"), _longest_line(value)):
            return in_place
        return _in_full([(was.phrase, address) for address, was in zip(new, found, strict=True) if address])


class _Field(NamedTuple):
    start: int
    end: int
    """Behind its last line end."""
    name: bytes
    value: bytes
    """As it is written: what follows the colon, without the last line end."""


class _Header:
    def __init__(self, front: bytes) -> None:
        self.fields: list[_Field] = []
        self.is_whole = False
        """Whether its end is within the front."""
        at = 0
        while True:
            end = _line_end(front, at)
            if end is None:
                self.is_whole = at == len(front) < FRONT_BYTES
                return
            found = _FIELD.match(front, at, end)
            if found is None:
                is_above_all = all(field.name.lower() in _TRACE for field in self.fields)
                if not is_above_all or not _MBOX_LINE.match(front, at, end):
                    self.is_whole = True
                    return
                at = end
                continue
            start = at
            while front[end : end + 1] in {b" ", b"\t"}:
                if (further := _line_end(front, end)) is None:
                    return
                end = further
            if end == len(front) and len(front) >= FRONT_BYTES:
                return  # its next line may go on with it
            self.fields.append(_Field(start, end, found[1], front[found.end() : end - 2]))
            at = end

    def named(self, name: bytes) -> list[_Field]:
        return [field for field in self.fields if field.name.lower() == name]

    @property
    def behind_trace(self) -> int:
        """Return where a new field may stand: not above the lines of the hosts that it came by."""
        at = self.fields[0].start
        for field in self.fields:
            if field.name.lower() not in _TRACE:
                break
            at = field.end
        return at


def mailboxes(value: bytes) -> Iterator[Mailbox]:
    """Yield the mailboxes of a value, read leniently (RFC 5322, 3.4 and 4.4); none of one too long."""
    if len(value) > LONGEST_VALUE:
        return
    at = start = 0
    angle: tuple[int, int] | None = None
    while at <= len(value):
        sign = value[at : at + 1]
        match sign:
            case b"" | b"," | b";" | b":":
                if sign != b":" and (mailbox := _mailbox(value, start, at, angle)) is not None:
                    yield mailbox
                at, start, angle = at + 1, at + 1, None
            case b"<":
                end = _angle_end(value, at + 1)
                angle = angle or (at + 1, end)
                at = end + 1
            case b">":
                at += 1
            case _:
                at = _token_end(value, at)


def _mailbox(value: bytes, start: int, end: int, angle: tuple[int, int] | None) -> Mailbox | None:
    if angle is not None:
        phrase = value[start : angle[0] - 1].strip(_BLANK)
        return Mailbox(*angle, phrase, _address(value[slice(*angle)]))
    start, end = _without_edges(value, start, end)
    return None if start == end else Mailbox(start, end, b"", _address(value[start:end]))


def _without_edges(value: bytes, start: int, end: int) -> tuple[int, int]:
    """Return where the text of an element begins and ends: without comments and blanks at its edges."""
    first, last, at = end, end, start
    while at < end:
        token_end = min(end, _token_end(value, at))
        if not value.startswith(b"(", at) and (text := value[at:token_end]).strip(_BLANK):
            first = min(first, at + len(text) - len(text.lstrip(_BLANK)))
            last = at + len(text.rstrip(_BLANK))
        at = token_end
    return first, last if first < end else end


def _address(text: bytes) -> str | None:
    """Return an address without comments, blanks and a source route around it; None where it is none."""
    parts, at = [], 0
    while at < len(text):
        end = _token_end(text, at)
        token = text[at:end]
        if token[:1] in {b'"', b"["}:
            parts.append(token)
        elif token[:1] == b":":
            parts = []
        elif token[:1] != b"(":
            parts.append(bytes(octet for octet in token if octet not in _BLANK))
        at = end
    try:
        address = b"".join(parts).decode("utf-8")
    except UnicodeDecodeError:
        return None
    return address if is_valid_address(address, smtputf8=True) else None


def _token_end(value: bytes, at: int) -> int:
    """Return where a token that begins somewhere ends: always behind its beginning."""
    match value[at : at + 1]:
        case b"(":
            return _comment_end(value, at + 1)
        case b'"':
            found = _QUOTED.match(value, at)
        case b"[":
            found = _LITERAL.match(value, at)
        case _:
            found = _PLAIN.match(value, at)
    return at + 1 if found is None else found.end()


def _comment_end(value: bytes, at: int) -> int:
    depth = 1
    while depth and (found := _COMMENT_SIGN.search(value, at)) is not None:
        match found[0]:
            case b"(":
                depth += 1
            case b")":
                depth -= 1
            case _:
                at = min(found.end() + 1, len(value))
                continue
        at = found.end()
    return len(value) if depth else at


def _angle_end(value: bytes, at: int) -> int:
    while at < len(value) and value[at : at + 1] != b">":
        at = _token_end(value, at)
    return min(at, len(value))


def _has_address(value: bytes) -> bool:
    return any(each.address for each in mailboxes(value))


def _in_full(pairs: list[tuple[bytes, str]]) -> bytes:
    """Write mailboxes anew, each on a line of its own where one would be too long."""
    written = []
    for phrase, address in pairs:
        in_angle = b"<" + address.encode() + b">"
        last = len(phrase) - phrase.rfind(b"\n") - 1
        fits = last + len(in_angle) + len(b"X-Original-Sender:  ,") <= LONGEST_LINE
        written.append((phrase + (b" " if fits else b"\r\n ") if phrase else b"") + in_angle)
    return b" " + b",\r\n ".join(written)


def _field(name: bytes, value: bytes) -> bytes:
    """Write a field, with a new line behind the colon where the first one would be too long."""
    first = value.split(b"\r\n", 1)[0]
    if len(name) + 1 + len(first) > LONGEST_LINE:
        if not first.strip(_BLANK):
            value = value[len(first) :]
        else:
            value = b"\r\n" + (value if value[:1] in {b" ", b"\t"} else b" " + value)
    return name + b":" + value + b"\r\n"


def _longest_line(text: bytes) -> int:
    return max(map(len, text.split(b"\r\n")))


def _line_end(front: bytes, at: int) -> int | None:
    found = front.find(b"\r\n", at)
    return None if found < 0 else found + 2
