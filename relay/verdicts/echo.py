"""Removes the client's own words from a reply of the upstream before its words are read.  Pure.

A server quotes the address that it refuses, or the subject.  So the author of a message also writes a part
of the reply: `<"daily sending quota exceeded"@example.org>... User unknown` must not pause an upstream.  A
word of the client that stays can stop all mail.  A word of the upstream that is removed can turn a refusal of
us into a bounce.  So a reply is read twice:

- `plain` is the reply without names: the addresses of the transaction and their domains, and whatever has
  the form of an address or stands alone in angle brackets.
- `doubtful` is the same without what stands in quotes, in angle brackets or behind `Subject:`, and without
  the local parts of the transaction.

If the two readings have different verdicts, nobody knows whose the deciding words are, and the message or the
recipient is deferred.  Addresses are compared by their letters and digits alone: quoting, escapes, case and
folding do not matter.  At most MAX_TEXT_CHARACTERS of a reply are read, and only of refusals.
Does not: find words of the content that a server repeats without any quotes.
"""

import re
from collections.abc import Iterable, Sequence

from relay.mail.text import MAX_TEXT_CHARACTERS

FEWEST = 3
"""Shorter words are too common to be a client's: `no`, `to`, `in`."""

_NO_LETTERS = re.compile(r"[^a-z0-9@]+")
_ATEXT = r"[a-z0-9.!#$%&'*+/=?^_`{|}~-]"
_NAMES = re.compile(
    r"<[^<> ]*>|<[^<>]*@[^<>]*>"
    r'|"(?:[^"\\]|\\.){0,128}"@[a-z0-9.?\[\]:_-]+'
    rf"|(?<!{_ATEXT}){_ATEXT}+@[a-z0-9.?\[\]:_-]+"
    r"|(?<=\bdomain )[a-z0-9-]+(?:\.[a-z0-9-]+)+|\bxn--\S*|(?<!\S)\S*%40\S*"
)
"""A name says nothing: hourly@example.org is no rate, and mailbox.org is no mailbox."""
# Up to the last closing quote: the client's words may have quotes too, and a server cuts them anywhere.
_QUOTED = re.compile(r"""<.*>|<.*|".*"|".*|(?<![a-z0-9])['`].*['`](?![a-z0-9])|\bsubject ?[:=].*""")


def without_echo(lines: Sequence[str], sender: str, recipients: Sequence[str]) -> tuple[str, str, bool]:
    """Return the two readings of a reply in printable ASCII, and whether the reply names the sender.

    `recipients` are those that the reply may be about: after RCPT only that one, after DATA all.  Both
    readings are in lower case and on one line; an `@` stands for each part that was removed.
    """
    text = " ".join(" ".join(lines).lower().split())[:MAX_TEXT_CHARACTERS]
    addresses = [each for each in (sender, *recipients) if "@" in each]
    hosts = {host for each in addresses if "." in (host := each.rpartition("@")[2].lower())}
    names_sender = _without(text, [sender]) != text
    text = _without(text, addresses)
    plain = _NAMES.sub("@", text)
    for host in hosts:
        if host in plain:
            plain = re.sub(rf"\b{re.escape(host)}\b", "@", plain)
    # A line may end within a host name: then its letters match, and its text does not.
    doubtful = _QUOTED.sub("@", _NAMES.sub("@", _without(text, hosts)))
    # Among several recipients one is always called `mail` or `account`.
    said = (sender, *recipients) if len(recipients) == 1 else (sender,)
    return plain, _without(doubtful, [each.rpartition("@")[0] for each in said]), names_sender


def _without(text: str, words: Iterable[str]) -> str:
    """Replace each word with these letters by `@`."""
    # ASCII first: the lower case of the Kelvin sign is a k, where a reply has a `?`.
    keys = {_NO_LETTERS.sub("", word.encode("ascii", "ignore").decode().lower()) for word in words}
    for key in sorted(keys, key=len, reverse=True):
        if len(key) >= FEWEST and key in _NO_LETTERS.sub("", text):
            spelled = "[^a-z0-9@]*".join(key)
            # Remove the quotes of a local part with it; otherwise the text behind it would look quoted.
            text = re.sub(rf'(?<!["\\])(["\\]+)?(?<![a-z0-9]){spelled}(?![a-z0-9])(?(1)"?)', "@", text)
    return text
