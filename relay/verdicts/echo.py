"""What a client said, found in a reply of the upstream and taken out before its words are read.  Pure.

A server quotes the address that it refuses, or the subject, so the author of a message also writes a part
of the reply: `<"daily sending quota exceeded"@example.org>... User unknown` must not pause an upstream.
Words of a client that stay stop all mail; words of the upstream that go turn a refusal of us into a bounce.
So two kinds are told apart:

- An *echo* stands in a form in which servers print a client's words and do not write their
  own: an address with its `@`, a domain with its dots, a name in angle brackets or quotes,
  a subject behind `Subject:`, or any of these cut off by `...` or by the end of a line.  It
  says nothing, and is always taken out.
- A *bare* word is the same run of letters with nothing around it: `no such user throttle`
  to <throttle@example.org>, or `quota exceeded` below the subject "Quota exceeded".  Either
  the client or the upstream said it.  The judge reads the reply with it and without it.  Where
  both readings agree, so does the verdict.  Where they differ, the verdict is the one that harms
  no other mail: the recipient or the message is deferred; where the word is the sender's, that
  sender's mail waits, untouched.  A reply of which nothing else would be left is the upstream's
  own; and so are bare words of an address that it prints as an echo too.

Bare words are looked for only where the reply is about the word: of the recipient that was
asked for, or the only one, not of all 500 at the final dot, one of whom is always called
`mail` or `account`.

Only letters, digits and `@` are compared, in lower case: quoting, escapes, case and folding do not
matter.  Addresses of nobody in the transaction (the target of an alias, a rewritten sender) are taken
out by their form (`_OTHERS`).

Costs: of a reply at most MAX_TEXT_CHARACTERS are read, as many as the log shows.  Of several recipients
only those are looked at whose first letters begin something in it; words are looked up, not tried one
by one.  Only refusals pay: 0.3 ms for one recipient, 15 ms for 10,000; 30 ms and 60 ms where the
reply is made to be slow, 110 ms if 10,000 addresses are not in ASCII as well.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple, TypeVar

from relay.mail.header import decoded, header_fields
from relay.mail.text import MAX_TEXT_CHARACTERS, clean

HEADER_BYTES = 16 * 1024
"""How much of a content's beginning is looked at for the fields that an upstream prints."""
FEWEST_CUT = 4
"""The fewest letters left of a word that is cut off; fewer say nothing to any rule."""
FEWEST_BARE = 3
"""Shorter bare words are everybody's: `no`, `to`, `in`."""
FEWEST_BARE_CUT = 8
"""Fewer letters at the beginning of a cut bare word are chance."""
FIRST_LETTERS = 3
"""So many first letters a word shares with the place of the reply in which it stands."""
MOST_A_LABELS = 100
"""Most domains whose form in DNS is looked for: it takes 0.1 ms to make one."""

_PLACE = "\0"
"""Stands for what was taken out until all is: no reply contains it."""
_LETTER = re.compile(r"[a-z0-9@]")
_NO_LETTERS = re.compile(r"[^a-z0-9@]+")
_NO_LETTERS_OF_LINES = re.compile(r"[^a-z0-9@\n]+")
_BEFORE = re.compile(r"[^a-z0-9\s]{1,40}\Z")
_BEHIND = re.compile(r"[^a-z0-9]{0,40}")
"""The punctuation that a word stands in: the server's quotes and brackets, and its own."""
_LONGEST_BEFORE = 40
_OPENING = frozenset("<([\"'`")
_CLOSING = frozenset(">\"'`")
_BRACKETS = frozenset("<([{=:;,")
_CUT = re.compile(r"\.{2,}[^\s<>]*")
"""Where a server cut: dots, and the end of the word where it took out the middle."""
_LABEL = re.compile(
    r"\b(?:subject|from|to|cc|reply-to|sender|message-id|helo|ehlo|user-agent) ?[:=][^a-z0-9]{0,40}\Z"
)
_OF_ADDRESS = re.compile(r"@[a-z0-9.-]*\Z")
_WORD_LEFT = re.compile(r"[a-z]{2}")

_ATEXT = r"[a-z0-9.!#$%&'*+/=?^_`{|}~-]"
_BRACKETED = re.compile(r"<([^<>\0]+)>")
_OTHERS = re.compile(
    r'"(?:[^"\\\0]|\\[^\0]){0,128}"@[a-z0-9.?\[\]:_-]+'
    rf"|(?<!{_ATEXT}){_ATEXT}+@[a-z0-9.?\[\]:_-]+"
    r"|(?<=\bdomain )[a-z0-9-]+(?:\.[a-z0-9-]+)+"
)
"""A name says nothing: hourly@example.org is no rate, and mailbox.org no mailbox."""

_PRINTED_FIELDS = frozenset(
    {"subject", "from", "to", "cc", "reply-to", "sender", "message-id", "list-id", "user-agent", "x-mailer"}
)
_XCHARS = frozenset(map(chr, range(33, 127))) - {"+", "="}
_LETTERS = frozenset(letter for letter in map(chr, range(128)) if letter.isalnum())
_ESCAPES = {
    "%40": tuple(chr(o) if chr(o) in _LETTERS | set("-._~") else f"%{o:02x}" for o in range(256)),
    # As in ORCPT (RFC 3461, 4).
    "+": tuple(chr(o) if chr(o) in _LETTERS | _XCHARS else f"+{o:02x}" for o in range(256)),
}
"""How an address's octets are escaped, by the sign that shows such escapes in a reply."""
_HELO = re.compile(r"from (\S+) ")
_DOMAIN = re.compile(r"@([^\s<>@,;\"()]+)")
_DISPLAY_NAME = re.compile(r"([^<]+)<")


@dataclass(frozen=True, slots=True)
class ClientWords:
    """What the author of a message told the upstream so far: its reply may say it again."""

    reverse_path: str = ""
    recipients: Sequence[str] = ()
    """The recipients the reply may be about: behind RCPT that one alone, behind DATA all."""
    header: bytes = b""
    """The beginning of the content, our own Received line included; HEADER_BYTES of it count."""
    host: str = ""
    """The name of this host, as EHLO said it."""
    parameters: Sequence[str] = ()
    """Values of DSN parameters (RFC 3461) that the reply may be about, as they were sent and decoded."""


NOTHING_SAID = ClientWords()


@dataclass(frozen=True, slots=True)
class Reading:
    """A reply, in lower case and on one line, without the client's words; each left an `@`."""

    text: str
    """Without echoes."""
    doubtful: str | None = None
    """Without bare words as well; None where there is none, or nothing else would be left."""
    is_senders: bool = False
    names_sender: bool = False


_Owner = TypeVar("_Owner")


class _Word(NamedTuple):
    kind: Literal["address", "host", "text"]
    owner: str
    """The address or the field that it is a part of."""
    is_senders: bool = False
    may_be_bare: bool = True
    said: str = ""
    """What it begins with, before its first letter too; empty of a domain."""


class _Mark(NamedTuple):
    start: int
    end: int
    kind: Literal["address", "host", "text"]
    owner: str
    is_bare: bool = False
    is_senders: bool = False
    names_sender: bool = False


def without_echo(lines: Sequence[str], words: ClientWords) -> Reading:
    """Return what a reply says of its own; `lines` as it came, in printable ASCII."""
    text = "\n".join(" ".join(line.lower().split()) for line in lines)[:MAX_TEXT_CHARACTERS]
    if words == NOTHING_SAID:
        return Reading(_nameless(text))
    found = _Found(text)
    addresses, hosts, texts = _words(words, found)
    marks = [mark for kind in (addresses, hosts, texts) for mark in found.marks_of(kind)]
    echoes = [mark for mark in marks if not mark.is_bare]
    printed = {mark.owner for mark in echoes}
    names_sender = any(mark.names_sender for mark in echoes)
    plain = _nameless(_without(text, echoes))
    # Bare words are looked for where no name is left, or each would be found in a name of somebody else's.
    bare = [mark for mark in marks if mark.is_bare and mark.kind == "address"]
    rest = _nameless(_without(text, [*echoes, *bare]))
    found = _Found(rest)
    more = [mark for kind in (hosts, texts) for mark in found.marks_of(kind) if mark.is_bare]
    more = [mark for mark in more if mark.kind == "host" or mark.owner not in printed]
    rest = _without(rest, more).replace(_PLACE, "@")
    if rest == plain or not _WORD_LEFT.search(rest):
        return Reading(plain, names_sender=names_sender)
    return Reading(plain, rest, any(mark.is_senders for mark in (*bare, *more)), names_sender)


def _without(text: str, marks: Iterable[_Mark]) -> str:
    parts, at = [], 0
    for mark in sorted(marks):
        parts += [text[at : mark.start], _PLACE]
        at = mark.end
    return "".join([*parts, text[at:]])


def _nameless(text: str) -> str:
    """Return a text on one line, with an `@` for each place and each name that is left."""
    text = _BRACKETED.sub(_name_in_brackets, " ".join(text.split()))
    return _OTHERS.sub("@", text).replace(_PLACE, "@")


def _name_in_brackets(found: re.Match[str]) -> str:
    """Return `<@>` for an address or a word; a sentence in brackets is no name."""
    return found[0] if " " in found[1] and "@" not in found[1] else f"<{_PLACE}>"


class _Found:
    """Looks for words in one text; each place belongs to the first word that takes it."""

    def __init__(self, text: str) -> None:
        self.text = self._text = text
        self._at = [found.start() for found in _LETTER.finditer(text)]
        self._key = "".join(text[at] for at in self._at)
        self._begins = [i for i, at in enumerate(self._at) if not text[at - 1 : at].isalnum()]
        self._ends = [i + 1 for i, at in enumerate(self._at) if not text[at + 1 : at + 2].isalnum()]
        self._taken = bytearray(len(text))

    def first_letters(self) -> frozenset[str]:
        """Return what words in the text begin with: 1 to FIRST_LETTERS letters of each."""
        counts = range(1, FIRST_LETTERS + 1)
        return frozenset(self._key[begin : begin + count] for begin in self._begins for count in counts)

    def marks_of(self, words: "_Words") -> Iterator[_Mark]:
        """Yield where words stand, whole or cut off, and take these places; of several the longest."""
        keys = words.keys
        longest = max(map(len, keys), default=0)
        for begin in self._begins:
            if self._taken[self._at[begin]]:
                continue
            here = self._key[begin : begin + longest]
            place = bisect_left(keys, here)
            # Of all words these two share most letters with what stands here.
            near = [(_shared(here, key), key) for key in keys[max(0, place - 1) : place + 1]]
            mark = self._longest(words, begin, max(near, default=(0, "")))
            if mark is not None and self._taken.find(1, mark.start, mark.end) < 0:
                self._taken[mark.start : mark.end] = b"\1" * (mark.end - mark.start)
                yield mark

    def _longest(self, words: "_Words", begin: int, nearest: tuple[int, str]) -> _Mark | None:
        """Return the longest word that begins here; none shares more letters than the nearest."""
        count, key = nearest
        start = self._at[begin]
        ends = self._ends[bisect_right(self._ends, begin) : bisect_right(self._ends, begin + count)]
        whole = next((end for end in reversed(ends) if self._key[begin:end] in words), begin)
        cut = self._cut(start, begin + count) if count >= FEWEST_CUT else None
        if cut is not None and begin + count > whole:
            return self._mark(words[key], (start, cut[1]), self._text[start : cut[0]], is_whole=False)
        if whole == begin:
            return None
        stop = self._at[whole - 1] + 1
        mark = self._mark(words[self._key[begin:whole]], (start, stop), self._text[start:stop], is_whole=True)
        if cut is not None and cut[0] < stop and (mark is None or mark.is_bare):
            # Its last letters may stand behind the dots by chance.
            at_dots = self._mark(words[key], (start, cut[1]), self._text[start : cut[0]], is_whole=False)
            if at_dots is not None and not at_dots.is_bare:
                return at_dots
        return mark

    def _mark(self, word: _Word, place: tuple[int, int], inside: str, *, is_whole: bool) -> _Mark | None:
        start, end = place
        letters = len(_NO_LETTERS.sub("", inside))
        if self._is_foreign(word, start, end) or (not is_whole and letters < FEWEST_CUT):
            return None
        begin, is_open = self._opening(start, _leads(word.said))
        if self._is_echo(word, (start, end), inside, is_open=is_open, is_whole=is_whole):
            names_sender = is_whole and word.is_senders and word.kind == "address"
            return _Mark(begin, end, word.kind, word.owner, names_sender=names_sender)
        fewest = FEWEST_BARE if is_whole else FEWEST_BARE_CUT
        if not word.may_be_bare or letters < fewest or (word.kind == "address" and "@" not in inside):
            return None
        return _Mark(begin, end, word.kind, word.owner, is_bare=True, is_senders=word.is_senders)

    def _cut(self, start: int, behind: int) -> tuple[int, int] | None:
        """Return where a word that begins here was cut off, before and behind the dots, or None.

        `behind` is the first letter that is not the word's.
        """
        text, last = self._text, self._at[behind - 1] + 1
        limit = self._at[behind] if behind < len(self._at) else len(text)
        # The letters behind the dots may go on like the word by chance.
        if (dots := text.rfind("..", start, limit)) >= 0:
            before = len(text[:dots].rstrip("."))
            found = _CUT.match(text, before)
            return before, before if found is None else found.end()
        between = text[last:limit]
        is_end = limit == len(text) or "\n" in between or not _CLOSING.isdisjoint(between[:1])
        return (last, last) if is_end else None

    def _opening(self, start: int, leads: Iterable[str]) -> tuple[int, bool]:
        text = self._text
        start -= next((len(lead) for lead in leads if text.endswith(lead, 0, start)), 0)
        found = _BEFORE.search(text[max(0, start - _LONGEST_BEFORE) : start])
        if found is None:
            return start, text[start : start + 1] == '"'
        run = found[0]
        inside = max(run.rfind(bracket) for bracket in _BRACKETS) + 1
        return start - len(run) + inside, not _OPENING.isdisjoint(run + text[start : start + 1])

    def _is_foreign(self, word: _Word, start: int, end: int) -> bool:
        """Return whether it is a part of another address, which is taken out as a whole."""
        if word.kind == "address":
            return False
        is_domain = _OF_ADDRESS.search(self._text[max(0, start - _LONGEST_BEFORE) : start]) is not None
        return is_domain or self._text[end : end + 1] == "@"

    def _is_echo(
        self, word: _Word, place: tuple[int, int], inside: str, *, is_open: bool, is_whole: bool
    ) -> bool:
        start, end = place
        is_one = " " not in inside
        if word.kind == "host" and is_one and "." in inside and ".\n" not in inside:
            return True
        if word.kind == "address" and ("@" in inside or "%40" in inside):
            return is_one or is_open or self._text.startswith("...", end)
        if _LABEL.search(self._text[max(0, start - 2 * _LONGEST_BEFORE) : start]):
            return True
        behind = _BEHIND.match(self._text, end)
        is_closed = behind is not None and not _CLOSING.isdisjoint(behind[0])
        is_closed = is_closed or not is_whole or (behind is not None and ".." in behind[0])
        return is_open and is_closed


def _shared(text: str, word: str) -> int:
    """Return how many first letters of the word the text begins with."""
    low, high = 0, min(len(text), len(word))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if text.startswith(word[:middle]) else (low, middle - 1)
    return low


def _words(words: ClientWords, found: _Found) -> "tuple[_Words, _Words, _Words]":
    collected = _Collected(found.text)
    several: tuple[dict[str, str], dict[str, str], dict[str, str]] = ({}, {}, {})
    if len(words.recipients) == 1:
        collected.add_address(words.recipients[0], is_senders=False)
    elif words.recipients:
        several = _of_several(words.recipients, found)
    if words.reverse_path:
        collected.add_address(words.reverse_path, is_senders=True)
    for value, is_top in _printed(words.header):
        collected.add_text(value, value, may_be_bare=is_top)
        for domain in _DOMAIN.findall(value):
            collected.add_host(domain, value, may_be_bare=is_top)
    for value in words.parameters:
        collected.add_text(value, value)
        for domain in _DOMAIN.findall(value):
            collected.add_host(domain, value)
    if words.host:
        collected.add_host(words.host, words.host)
    return (
        _Words("address", collected.addresses, several[0]),
        _Words("host", collected.hosts, several[1]),
        _Words("text", collected.texts, several[2]),
    )


class _Words:
    """Words of one kind by their letters; those of several recipients are made when they are found."""

    def __init__(
        self,
        kind: Literal["address", "host", "text"],
        known: Mapping[str, _Word],
        several: Mapping[str, str],
    ) -> None:
        """`several` has a recipient for each key; of these words only whole addresses may be bare."""
        self._kind = kind
        self._known = known
        self._several = several
        self.keys = sorted({*known, *several})

    def __contains__(self, key: str) -> bool:
        return key in self._known or key in self._several

    def __getitem__(self, key: str) -> _Word:
        word, owner = self._known.get(key), self._several.get(key)
        if word is not None:
            return word if owner is None or self._kind != "text" else word._replace(owner=owner)
        if owner is None:
            raise KeyError(key)
        said = "" if self._kind == "host" else owner
        return _Word(self._kind, owner, may_be_bare=self._kind == "address", said=said)


def _of_several(
    recipients: Sequence[str], found: _Found
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return the recipient of each address, domain and other word that may stand in the text."""
    first = found.first_letters()
    local_parts: list[str] = []
    domains: dict[str, str] = {}
    for address in recipients:
        local, _, domain = address.rpartition("@")
        local_parts.append(local)
        domains[domain] = address
    names, owners = [*recipients], [*recipients]
    if labels := dict(_a_labels(domains)):
        for local, address in zip(local_parts, recipients, strict=True):
            if (label := labels.get(address[len(local) + 1 :])) is not None:
                names.append(f"{local}@{label}")
                owners.append(address)
    addresses = dict(_beginning(first, names, owners))
    for table in _tables(found.text):
        # Eight characters tell the first letters.
        begun = [_escaped(name[:8], table) for name in names]
        for _, (name, owner) in _beginning(first, begun, zip(names, owners, strict=True)):
            addresses[_key(_escaped(name, table))] = owner
    hosts = dict(_beginning(first, [*domains], domains.values()))
    hosts |= {_key(label): domains[domain] for domain, label in labels.items()}
    texts: dict[str, str] = {}
    for key, address in _beginning(first, local_parts, recipients):
        texts.setdefault(key, address)
    for domain, address in domains.items():
        if "." not in domain and hosts.pop(key := _key(domain), None) is not None:
            texts.setdefault(key, address)
    return addresses, hosts, {key: address for key, address in texts.items() if len(key) >= FEWEST_BARE}


def _beginning(
    first: frozenset[str], said: Sequence[str], owners: Iterable[_Owner]
) -> Iterator[tuple[str, _Owner]]:
    """Yield the letters of each word that begins with one of `first`, and its owner."""
    keys = _NO_LETTERS_OF_LINES.sub("", _ascii("\n".join(said)).lower()).split("\n")
    if len(keys) != len(said):
        keys = [_key(text) for text in said]
    return ((key, owner) for key, owner in zip(keys, owners, strict=True) if key[:FIRST_LETTERS] in first)


def _a_labels(domains: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the first of these domains with their form in DNS, where that differs."""
    for domain in islice((domain for domain in domains if not domain.isascii()), MOST_A_LABELS):
        for label in _a_label(domain):
            yield domain, label


class _Collected:
    def __init__(self, text: str) -> None:
        self._text = text
        self.addresses: dict[str, _Word] = {}
        self.hosts: dict[str, _Word] = {}
        self.texts: dict[str, _Word] = {}

    def add_address(self, address: str, *, is_senders: bool) -> None:
        """Add an address in each form in which it may be printed, its local part and its domain."""
        local, _, domain = address.rpartition("@")
        forms = [address, *(f"{local}@{name}" for name in _a_label(domain))]
        forms += [_escaped(form, table) for table in _tables(self._text) for form in forms]
        for key in map(_key, forms):
            is_ours = is_senders or (key in self.addresses and self.addresses[key].is_senders)
            self.addresses[key] = _Word("address", address, is_ours, said=local)
        self.add_text(local, address, is_senders=is_senders)
        self.add_host(domain, address, is_senders=is_senders)

    def add_host(self, host: str, owner: str, *, is_senders: bool = False, may_be_bare: bool = True) -> None:
        """Add a domain; without a dot it is a word like others."""
        if "." not in host:
            self.add_text(host, owner, is_senders=is_senders, may_be_bare=may_be_bare)
            return
        for form in (host, *_a_label(host)):
            if key := _key(form):
                self.hosts[key] = _Word("host", owner, may_be_bare=may_be_bare)

    def add_text(self, text: str, owner: str, *, is_senders: bool = False, may_be_bare: bool = True) -> None:
        if len(key := _key(text)) < FEWEST_BARE:
            return
        if (before := self.texts.get(key)) is not None:
            owner = before.owner
            is_senders, may_be_bare = is_senders or before.is_senders, may_be_bare or before.may_be_bare
        self.texts[key] = _Word("text", owner, is_senders, may_be_bare, text)


def _key(text: str) -> str:
    return _NO_LETTERS.sub("", _ascii(text).lower())


def _ascii(text: str) -> str:
    # Not by its lower case: that of the Kelvin sign is a k, where a reply has a `?`.
    return text if text.isascii() else text.encode("ascii", "ignore").decode("ascii")


def _leads(text: str) -> tuple[str, ...]:
    """Return how a word may begin in a reply: as it is, or without the quotes of an address."""
    if text[:1].isalnum() and text[:1].isascii():
        return ()
    shown = " ".join(clean(text).lower().split())
    lead = shown[: found.start()] if (found := _LETTER.search(shown)) else shown
    plain = lead.removeprefix('"').replace("\\", "")
    return tuple(sorted({lead, plain, lead.removeprefix('"'), plain.lstrip()} - {""}, key=len, reverse=True))


def _a_label(domain: str) -> tuple[str, ...]:
    if domain.isascii():
        return ()
    try:
        return (domain.encode("idna").decode("ascii"),)
    except UnicodeError:
        return ()


def _tables(text: str) -> list[tuple[str, ...]]:
    return [table for shown, table in _ESCAPES.items() if shown in text]


def _escaped(text: str, table: tuple[str, ...]) -> str:
    """Return text with two hexadecimal digits for each octet but the plain ones of the table."""
    return "".join(map(table.__getitem__, text.encode()))


def _printed(beginning: bytes) -> Iterator[tuple[str, bool]]:
    """Yield the values of fields that upstreams print, and whether each stands in the header itself.

    A report has another header inside, with the subject that its message was refused for.
    """
    is_top = True
    for part in beginning[:HEADER_BYTES].split(b"\r\n\r\n"):
        for place, (name, value) in enumerate(header_fields(part)):
            if is_top and place == 0 and name == "received" and (helo := _HELO.match(value)):
                yield f"@{helo[1]}", True
            if name in _PRINTED_FIELDS:
                for text in {value, decoded(value)}:
                    yield text, is_top
                    if name_shown := _DISPLAY_NAME.match(text):
                        yield name_shown[1], is_top
        is_top = False
