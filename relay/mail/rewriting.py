"""A message that is sent by another sender than it was handed over by (`rewrite` of a route).  Pure.

The rule is one address, or `@` and a domain, which takes the place of every other domain.  It changes the
reverse-path, and of the header the fields From and Sender; their values of before are kept, as they were, in
X-Original-From and X-Original-Sender, and the authors in Reply-To where the message has none.

Guarantees:
- the null reverse-path stays null; a message that is as the rule wants it stays as it is, octet for octet;
- whatever stands behind the header stays as it is, and so does every other field;
- only ASCII is added; line ends are CRLF; no line that is made is longer than LONGEST_LINE, unless the
  field had one as long;
- any header is dealt with, in time linear in it.  A From or Sender that is changed is written anew, with the
  names as they were written and without comments and groups.

Reads only the first FRONT_BYTES of the content: what stands behind them is left.
Does not: touch signatures, which no longer hold then, Resent- fields, or Return-Path.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from relay.mail.address import comparable, comparable_domain, is_valid_address
from relay.mail.envelope import Shape
from relay.mail.header import field_name, parted
from relay.mail.mailboxes import Mailbox, mailboxes

FRONT_BYTES = 128 * 1024
"""How much of a content is looked at; a header rarely has 16 KiB."""
LONGEST_LINE = 998
"""RFC 5322, 2.1.1."""
_ORIGINAL = {b"from": b"X-Original-From", b"sender": b"X-Original-Sender"}
_TRACE = {b"received", b"return-path"}


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
        fields, rest = parted(front)
        is_cut = not rest and len(front) >= FRONT_BYTES
        if is_cut:
            fields.pop()  # its next line may go on with it
        # Who stands where no address stood; for a report nobody, unless the rule names somebody.
        instead = sender if self.rule.startswith("@") else self.rule
        written = self._written(fields, instead, is_cut=is_cut)
        if written == fields:
            return Rewritten(sender, b"", 0)
        return Rewritten(sender, b"".join(written), sum(map(len, fields)))

    def _written(self, fields: Sequence[bytes], instead: str, *, is_cut: bool) -> list[bytes]:
        written: list[bytes] = []
        authors: list[bytes] = []
        behind_from = -1
        for field in fields:
            name, (written_name, _, value) = field_name(field), field.partition(b":")
            value = value.removesuffix(b"\r\n")
            if name == b"from":
                authors.append(value)
            new = self._value(value, instead) if name in _ORIGINAL else None
            if new is None:
                written.append(field)
            else:
                written += [_field(written_name, new), _field(_ORIGINAL[name], value)]
                behind_from = len(written) if name == b"from" else behind_from
        names = set(map(field_name, fields))
        if behind_from >= 0 and not is_cut and b"reply-to" not in names:
            known = [value.strip() for value in authors if any(_address(each) for each in _read(value))]
            if known:
                written.insert(behind_from, _field(b"Reply-To", b" " + b",\r\n ".join(known)))
        if not authors and fields and instead and not is_cut:
            # Not above the lines of the hosts that it came by.
            at = next((n for n, field in enumerate(fields) if field_name(field) not in _TRACE), len(fields))
            written.insert(at, _field(b"From", f" <{instead}>".encode()))
        return written

    def _value(self, value: bytes, instead: str) -> bytes | None:
        """Return the value of From or Sender that is sent; None where it stays as it is."""
        found = _read(value)
        old = [_address(each) for each in found]
        new = [self.address(each) if each else instead for each in old]
        is_one = len(found) == 1 or self.rule.startswith("@")
        if (found and old == new and is_one) or not any([*new, instead]):
            return None
        if is_one:
            pairs = [(each.phrase, address) for each, address in zip(found, new, strict=True) if address]
        else:
            pairs = [(next((each.phrase for each in found if each.phrase), ""), self.rule)]
        return b",\r\n".join(_mailbox(phrase, address) for phrase, address in pairs or [("", instead)])


def _read(value: bytes) -> list[Mailbox]:
    return mailboxes(value.decode("utf-8", "surrogateescape"))[0]


def _address(mailbox: Mailbox) -> str:
    """Return nothing where no address stands."""
    return mailbox.address if is_valid_address(mailbox.address, smtputf8=True) else ""


def _mailbox(phrase: str, address: str) -> bytes:
    """Write a mailbox, with a new line where the last of its name leaves no room."""
    name = f" {phrase}".encode("utf-8", "surrogateescape") if phrase else b""
    in_angle = f" <{address}>".encode()
    fits = len(name) - name.rfind(b"\n") + len(in_angle) < LONGEST_LINE - len(b"X-Original-Sender:,")
    return name + (b"" if fits else b"\r\n") + in_angle


def _field(name: bytes, value: bytes) -> bytes:
    """Write a field, with a new line behind the colon where the first one would be too long."""
    first = value.split(b"\r\n", 1)[0]
    if len(name) + 1 + len(first) > LONGEST_LINE:
        if not first.strip():
            value = value[len(first) :]
        else:
            value = b"\r\n" + (value if value[:1] in {b" ", b"\t"} else b" " + value)
    return name + b":" + value + b"\r\n"
