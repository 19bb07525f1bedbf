"""The words of a refusal: which are the client's, and what the others say.  Pure.

A server quotes the address that it refuses, or the subject.  So the author of a message also writes a part
of the reply: `<"daily sending quota exceeded"@example.org>... User unknown` must not pause an upstream.  A
word of the client that stays can stop all mail.  A word of the upstream that is removed can turn a refusal of
us into a bounce.  So `without_echo` reads a reply twice:

- `plain` is the reply without names: the addresses of the transaction and their domains, and whatever has
  the form of an address or stands alone in angle brackets.
- `doubtful` is the same without what stands in quotes, in angle brackets or behind `Subject:`, and without
  the local parts of the transaction.

If the two readings have different verdicts, nobody knows whose the deciding words are, and the message or the
recipient is deferred.  Addresses are compared by their letters and digits alone: quoting, escapes, case and
folding do not matter.  Words of the content that a server repeats without any quotes are not found.

The other functions find phrases, waits, windows and limits in a text in lower case, with one space between
words.  Time is linear in the text; for a phrase, in the text times GAP for each `*`.

A text names spans of time for three reasons: how long to wait, the window of a limit, and a time of day.  A
span is a wait if a word of waiting stands right before it, with only filling words in between (`try again
in`, `blocked for at least`).  Of several waits the longest counts: a try that comes too early is refused
again, or blocked for longer.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relay.clock import SECOND_NS
from relay.mail.text import MAX_TEXT_CHARACTERS

GAP = 80
"""A `*` in a phrase stands for at most this many characters."""
LONGEST_RETRY_NS = 2 * 86400 * SECOND_NS
"""No rest is longer, whatever the refusal asks for: then it is time to look again."""
LONGEST_BELIEVED_NS = 31 * 86400 * SECOND_NS
"""A longer wait is not believed: the number means something else."""
_SECONDS = {"month": 2592000, "week": 604800, "day": 86400, "hour": 3600, "minute": 60, "second": 1}
_SECONDS |= {"d": 86400, "hr": 3600, "h": 3600, "min": 60, "m": 60, "sec": 1, "s": 1}
UNIT_NS = {unit: seconds * SECOND_NS for unit, seconds in _SECONDS.items()}
"""Nanoseconds of each unit; plurals add an s."""
_REACH = 64
"""How many characters before a span are searched for the words that tell what it is."""

_ONE = re.compile(
    r"(?:(\d{1,7})(?: more| full)?[ -]?|(?:an?|one)[ -])"
    # `ms` is milliseconds, not minutes.
    r"(?!ms)(month|week|day|hour|minute|second|hr|min|sec|[dhms])s?(?![a-z])(?:\(s\))?"
)
_TERM = _ONE.pattern.replace("(\\d", "(?:\\d").replace("(month", "(?:month")
_SUM = re.compile(
    rf"(?<![\w/])(?<!\w-)(?<!\d[.,:])(?:\d{{1,6}} ?(?:-|to) ?)?{_TERM}(?:\.?,? ?(?:and |& )?{_TERM})*(?!\w)"
)
"""`5 hours and 13 minutes`; of `10-15 minutes` the second number."""
_WAIT = (
    r"again|retr(?:y|ies|ied|ying)(?:[-_]after)?|try|resend|wait|back|off|next|hold|unavailable|cannot|can't|unable"
    r"|(?:(?:un)?block|suspend|defer|lock|bann|paus|gr[ae]ylist|throttl|delay|disabl|reject|refus|den[iy]|limited"
    r"|restrict|lift|remov|releas|reset|renew|expir|resum|restor|reopen|penalt|cool-?down)\w*"
)
_FILLING = (
    r"in|for|after|at (?:least|most)|about|around|approx\w*|another|the|an?|minimum|of|within|time|is|be|to"
    r"|up|some|more|than|or|send(?:ing)?|submit|submission|deliver(?:y|ing)|your|this|it|that|messages?|mails?"
    r"|e-?mails?|connect(?:ion|ing)|you|must|should|period|access"
)
_BEFORE = re.compile(rf"(?<!\w)(?:{_WAIT})[ ,:=('\"-]+(?:(?:{_FILLING})[ ,:=('\"-]+)*$")


_PER = r"(?:\b(?:per|an?|this|the|each|every|last|one) |/ ?)"
_WINDOWS = {
    31 * UNIT_NS["day"]: re.compile(rf"\bmonthly\b|{_PER}month\b"),
    UNIT_NS["day"]: re.compile(rf"\bdaily\b|\btoday\b|\b24[ -]?h|{_PER}day\b"),
    UNIT_NS["hour"]: re.compile(rf"\bhourly\b|{_PER}h(?:ou)?r?\b"),
    UNIT_NS["minute"]: re.compile(rf"{_PER}min(?:ute)?\b"),
    # Not `the second message`.
    UNIT_NS["second"]: re.compile(r"(?:\b(?:per|a|each|every) |/ ?)s(?:ec(?:ond)?)?\b"),
}
_NAMED = re.compile(
    r"(?<![\d,./-])(\d{1,3}(?:,\d{3}){1,2}|\d{1,8}) (?:recipients?|rcpts?|messages?|e-?mails?|mails?)"
    r" (?:per|in|an|a|each|every|/) ?"
    r"(?:(\d{1,6}) ?(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)\b|[a-z])"
)
_NOT_SENT = re.compile(
    # Too much at one instant, not within a window.
    r"\bconcurren|\bsimultan|\bthreads?\b|\bper (?:session|connection)\b"
    # Not mail that was sent.
    r"|\bdefers and failures\b|\berrors\b|\bfailures\b|\blogins\b|\b(?:login )?attempts\b|\binvalid\b"
    r"|\breputation\b|\bunsolicited\b|\bspam\b|\bcomplaints\b"
)
_SENT = re.compile(r"messages?\b|e?mails?\b|\brecipients?\b|\brcpts?\b")
_CONNECTIONS = re.compile(r"\bconnections?\b|\bsessions?\b|\bconnects\b")
_TOO_MUCH = re.compile(
    r"\brates?\b|ratelimit|rate_limit|\blimit(?:s|ed)?\b|quota|\bcredits\b|\bvolume\b|throttl|\bfrequency\b"
    r"|\btoo (?:many|much|fast|quickly|often)\b|\bexceed|\bsending activity\b"
    r"|\b(?:messages|e?mails|recipients) per\b"
)

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


@dataclass(frozen=True, slots=True)
class Phrases:
    """Any of some phrases, as an operator writes them."""

    phrases: tuple[str, ...]
    begin_words: bool = False
    """A phrase matches only at the start of a word: `mail quota` is not in `outmail quota`."""

    def are_in(self, text: str) -> bool:
        # Nearly every phrase is absent, and to find that out by its parts is quick.
        return any(
            all(part in text for part in phrase.split("*"))
            and _pattern(phrase, self.begin_words).search(text)
            for phrase in self.phrases
        )


@functools.lru_cache(1024)
def _pattern(phrase: str, begins_word: bool) -> re.Pattern[str]:  # noqa: FBT001 - a key of the cache
    start = "(?<![a-z0-9])" if begins_word and phrase[:1].isalnum() else ""
    return re.compile(start + f".{{0,{GAP}}}".join(map(re.escape, phrase.split("*"))))


def facts_in(text: str) -> tuple[int | None, int | None, bool, int | None]:
    """Return the wait, the window, whether too much was sent, and the limit, as a refusal tells them."""
    named, per_ns = named_in(text)
    return retry_after_ns(text), window_in(text) or per_ns, is_too_much(text), named


def retry_after_ns(text: str) -> int | None:
    """Return the wait that a refusal asks for, in nanoseconds: `try again in 92 seconds`.

    None if it asks for none, or for more than LONGEST_BELIEVED_NS; else from 1 ns to LONGEST_RETRY_NS.
    """
    longest_ns = 0
    for found in _SUM.finditer(text):
        before = text[max(0, found.start() - _REACH) : found.start()]
        is_over = text.startswith((" ago", " old"), found.end())
        if _BEFORE.search(before) and not is_over:
            wait_ns = sum(int(one[1] or 1) * UNIT_NS[one[2]] for one in _ONE.finditer(found[0]))
            longest_ns = max(longest_ns, wait_ns if wait_ns <= LONGEST_BELIEVED_NS else 0)
    return min(longest_ns, LONGEST_RETRY_NS) or None


def is_too_much(text: str) -> bool:
    """Return whether a refusal says that too much mail was sent in some window.

    Too much at one instant (concurrent connections) does not count, nor too much of what is not mail
    (connections, errors, logins): no window of ours knows of it.  `text` in lower case.
    """
    if _NOT_SENT.search(text) or (_CONNECTIONS.search(text) and not _SENT.search(text)):
        return False
    return window_in(text) is not None or _TOO_MUCH.search(text) is not None


def named_in(text: str) -> tuple[int | None, int | None]:
    """Return the limit that a refusal in lower case names, and its window if that is in figures.

    Two None if it names no limit, no window, or a window longer than LONGEST_BELIEVED_NS.
    """
    if (found := _NAMED.search(text)) is None or (count := int(found[1].replace(",", ""))) == 0:
        return None, None
    per_ns = int(found[2]) * UNIT_NS[found[3][0]] if found[2] else None
    return (None, None) if per_ns is not None and per_ns > LONGEST_BELIEVED_NS else (count, per_ns)


def window_in(text: str) -> int | None:
    """Return the longest window that a refusal in lower case names in words, in nanoseconds; else None."""
    return next((window_ns for window_ns, pattern in _WINDOWS.items() if pattern.search(text)), None)
