"""Removes the client's own words from a reply of the upstream before its words are read.  Pure.

A server quotes the address that it refuses, or the subject.  So the author of a message also writes a part
of the reply: `<"daily sending quota exceeded"@example.org>... User unknown` must not pause an upstream.  A
word of the client that stays can stop all mail.  A word of the upstream that is removed can turn a refusal of
us into a bounce.  So a reply is read twice:

- `text` is the reply without names: the addresses and hosts of the transaction, and whatever has the form
  of an address or stands alone in angle brackets.
- `doubtful` is the same without all other words that a client may have said: text in quotes, in angle
  brackets or behind `Subject:`, local parts, domains, and the header fields that servers print.

If the two readings have different verdicts, nobody knows whose the deciding words are, and the message or the
recipient is deferred.  Words are compared by their letters and digits alone: quoting, escapes, case and
folding do not matter.  A word that the server cut off is found by its first `FEWEST_CUT` letters.

Costs: at most MAX_TEXT_CHARACTERS of a reply are read; each word is searched for once.  Only refusals pay.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from relay.mail.header import decoded, header_fields
from relay.mail.text import MAX_TEXT_CHARACTERS

HEADER_BYTES = 16 * 1024
"""How many octets of the content are searched for the fields that an upstream prints."""
FEWEST = 3
"""Shorter words are too common to be a client's: `no`, `to`, `in`."""
FEWEST_CUT = 8
"""Fewer letters that match the beginning of a word are coincidence."""

_ESCAPED = re.compile("%([0-9a-f]{2})")
_NO_LETTERS = re.compile(r"[^a-z0-9@]+")
_ATEXT = r"[a-z0-9.!#$%&'*+/=?^_`{|}~-]"
_NAMES = re.compile(
    r"<[^<> ]*>|<[^<>]*@[^<>]*>"
    r'|"(?:[^"\\]|\\.){0,128}"@[a-z0-9.?\[\]:_-]+'
    rf"|(?<!{_ATEXT}){_ATEXT}+@[a-z0-9.?\[\]:_-]+"
    r"|(?<=\bdomain )[a-z0-9-]+(?:\.[a-z0-9-]+)+|\bxn--\S*"
)
"""A name says nothing: hourly@example.org is no rate, and mailbox.org is no mailbox."""
_QUOTED = re.compile(r"""<[^>]*>?|"[^"]*"?|(?<![a-z0-9])['`][^'`]*['`](?![a-z0-9])|\bsubject ?[:=].*""")
_PRINTED = frozenset(
    {"subject", "from", "to", "cc", "reply-to", "sender", "message-id", "list-id", "user-agent", "x-mailer"}
)
_HELO = re.compile(r"from (\S+) ")
_DOMAIN = re.compile(r"@([^\s<>@,;\"()]+)")


@dataclass(frozen=True, slots=True)
class ClientWords:
    """What the author of a message has told the upstream so far; its reply may repeat it."""

    reverse_path: str = ""
    recipients: Sequence[str] = ()
    """The recipients that the reply may be about: after RCPT only that one, after DATA all."""
    header: bytes = b""
    """The beginning of the content, with our own Received line; HEADER_BYTES of it count."""
    host: str = ""
    parameters: Sequence[str] = ()
    """Values of DSN parameters (RFC 3461) that the reply may be about, as they were sent and decoded."""


NOTHING_SAID = ClientWords()


def without_echo(lines: Sequence[str], words: ClientWords) -> tuple[str, str, bool]:
    """Return the two readings of a reply in printable ASCII, and whether the reply names the sender.

    Both are in lower case and on one line; an `@` stands for each part that was removed.
    """
    text = " ".join(" ".join(lines).lower().split())[:MAX_TEXT_CHARACTERS]
    if "%40" in text:  # why?id=joe%40here.example
        text = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text).lower()
    addresses = [word for word in (words.reverse_path, *words.recipients, *words.parameters) if "@" in word]
    printed = _DOMAIN.findall(" ".join(_printed(words.header)))
    hosts = {host for host in (words.host, *_DOMAIN.findall(" ".join(addresses)), *printed) if "." in host}
    names_sender = _without(text, [words.reverse_path]) != text
    text = _without(text, addresses)
    plain = _NAMES.sub("@", text)
    for host in hosts:
        if host.lower() in plain:
            plain = re.sub(rf"\b{re.escape(host.lower())}\b", "@", plain)
    # A line may end within a host name: then its letters match, and its text does not.
    rest = _QUOTED.sub("@", _NAMES.sub("@", _without(text, hosts)))
    return plain, _without(rest, _bare(words), is_cut=True), names_sender


def _without(text: str, words: Iterable[str], *, is_cut: bool = False) -> str:
    """Replace words with these letters by `@`; with `is_cut` also words that are the beginning of such."""
    letters = _NO_LETTERS.sub("", text)
    for word in sorted({_key(word) for word in words}, key=len, reverse=True):
        most, end = len(word), "(?![a-z0-9])"
        if is_cut and word not in letters:
            most = bisect_left(range(most), 1, key=lambda count: word[: count + 1] not in letters)
            end = ""
            if most < FEWEST_CUT:
                continue
        if most >= FEWEST and word[:most] in letters:
            spelled = "[^a-z0-9@]*".join(word[:most])
            # Remove the quotes of a local part with it; otherwise the text behind it would look quoted.
            text = re.sub(rf'(?<!["\\])(["\\]+)?(?<![a-z0-9]){spelled}{end}(?(1)"?)', "@", text)
    return text


def _bare(words: ClientWords) -> Iterator[str]:
    """Yield the client's words that a server prints without anything around them."""
    # Among several recipients one is always called `mail` or `account`.
    asked = words.recipients if len(words.recipients) == 1 else ()
    for word in (words.reverse_path, *asked, *words.parameters):
        yield word.rpartition("@")[0] or word
    for text in _printed(words.header):
        yield from (text, text.partition("<")[0])


def _printed(header: bytes) -> Iterator[str]:
    """Yield the values of fields that upstreams print, also of a message within a report."""
    for part in header[:HEADER_BYTES].split(b"\r\n\r\n"):
        for name, value in header_fields(part):
            if name == "received" and (helo := _HELO.match(value)):
                yield f"@{helo[1]}"
            if name in _PRINTED:
                yield from {value, decoded(value)}


def _key(text: str) -> str:
    # ASCII first: the lower case of the Kelvin sign is a k, where a reply has a `?`.
    return _NO_LETTERS.sub("", text.encode("ascii", "ignore").decode().lower())
