"""Rewrites the sender of a message (`rewrite` of a route).  Pure.

The rule is one address, or `@` and a domain that replaces every other domain.  It changes the reverse-path
and the header fields From and Sender.  Their old values are kept unchanged in X-Original-From and
X-Original-Sender.  The first From that named an author is also kept in Reply-To if the message has none.

Guarantees: the null reverse-path stays null.  A message that already fits the rule stays the same, octet for
octet; so do every other field and everything behind the header.  Only ASCII is added.  Any header is read,
in time linear in it.  A changed From or Sender is written anew: names stay the same, comments and groups go.
A header that is longer than FRONT_BYTES stays as it is.
Does not: touch signatures (which then fail), Resent- fields or Return-Path, or fold long lines.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from relay.mail.address import Mailbox, comparable, comparable_domain, is_valid_address, mailboxes
from relay.mail.envelope import Shape
from relay.mail.header import field_name, split_header

FRONT_BYTES = 128 * 1024
"""How much of a content is read; a header rarely has 16 KiB."""
_ORIGINAL = {b"from": b"X-Original-From", b"sender": b"X-Original-Sender"}
_TRACE = {b"received", b"return-path"}


@dataclass(frozen=True, slots=True)
class Rewritten:
    reverse_path: str
    front: bytes
    """The header to send, in place of the first `replaced_bytes` of the content."""
    replaced_bytes: int

    def shape(self, of_stored: Shape) -> Shape:
        return replace(of_stored, size_bytes=of_stored.size_bytes + len(self.front) - self.replaced_bytes)

    def content(self, stored: bytes) -> bytes:
        return self.front + stored[self.replaced_bytes :]


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A rule in ASCII.  `policy.lane` checks that it makes valid addresses."""

    rule: str

    def reverse_path(self, original: str) -> str:
        return self.address(original) if original else ""

    def address(self, original: str) -> str:
        """Return the address that replaces `original`, or `original` if it fits the rule."""
        local, _, domain = original.rpartition("@")
        if not self.rule.startswith("@"):
            return original if comparable(original) == comparable(self.rule) else self.rule
        is_there = comparable_domain(domain) == comparable_domain(self.rule[1:])
        return original if is_there else f"{local or original}{self.rule}"

    def rewritten(self, reverse_path: str, front: bytes) -> Rewritten:
        """Return what is sent for a message; `front` is its first FRONT_BYTES, or all of its content."""
        sender = self.reverse_path(reverse_path)
        fields, rest = split_header(front)
        # Replaces a field without an address; empty for a report, unless the rule is an address.
        instead = sender if self.rule.startswith("@") else self.rule
        # A header that goes on behind `front`, or ends inside a line, stays as it is.
        if b"\r\n" in rest or (not rest and len(front) < FRONT_BYTES):
            fields = self._written(fields, instead)
        return Rewritten(sender, b"".join(fields), len(front) - len(rest))

    def _written(self, fields: Sequence[bytes], instead: str) -> list[bytes]:
        names = list(map(field_name, fields))
        tells_authors = b"reply-to" not in names
        written: list[bytes] = []
        for name, field in zip(names, fields, strict=True):
            written_name, _, value = field.removesuffix(b"\r\n").partition(b":")
            new = self._value(value, instead) if name in _ORIGINAL else None
            if new is None:
                written.append(field)
                continue
            written += [b"%b:%b\r\n" % (written_name, new), b"%b:%b\r\n" % (_ORIGINAL[name], value)]
            if name == b"from" and tells_authors and any(each.address for each in _read(value)):
                written.append(b"Reply-To: %b\r\n" % value.strip())
                tells_authors = False
        if b"from" not in names and names and instead:
            # Keep the trace fields of earlier hosts on top.
            at = next((n for n, name in enumerate(names) if name not in _TRACE), len(names))
            written.insert(at, b"From: <%b>\r\n" % instead.encode())
        return written

    def _value(self, value: bytes, instead: str) -> bytes | None:
        """Return the value of From or Sender to send; None if it stays the same."""
        found = _read(value)
        new = [(each.phrase, self.address(each.address) if each.address else instead) for each in found]
        if len(new) > 1 and not self.rule.startswith("@"):
            new = [(next((phrase for phrase, _ in new if phrase), ""), self.rule)]
        new = [(phrase, address) for phrase, address in new or [("", instead)] if address]
        if not new or new == [(each.phrase, each.address) for each in found if each.address]:
            return None
        return b",\r\n".join(_mailbox(phrase, address) for phrase, address in new)


def _read(value: bytes) -> list[Mailbox]:
    """Return the mailboxes of a field; `""` stands for an address that is not valid."""
    found, _ = mailboxes(value.decode("utf-8", "surrogateescape"))
    return [
        each if is_valid_address(each.address, smtputf8=True) else each._replace(address="") for each in found
    ]


def _mailbox(phrase: str, address: str) -> bytes:
    name = f" {phrase}".encode("utf-8", "surrogateescape") if phrase else b""
    return name + f" <{address}>".encode()
