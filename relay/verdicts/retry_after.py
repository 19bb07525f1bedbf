"""The wait that a refusal asks for, read out of its text.  Pure; time linear in the text.

A text names spans of time for three reasons: how long to wait, the window that a limit counts in, and a time
of day.  A span is a wait where a word of waiting stands right before it, with nothing but filling words in
between (`try again in`, `blocked for at least`), or right behind it (`in 10 minutes try again`).  Of several
waits the longest counts: a try that comes too early is refused again, or blocked for longer.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from math import ceil

from relay.clock import SECOND_NS

LONGEST_RETRY_NS = 2 * 86400 * SECOND_NS
"""No rest is longer, whatever is asked for: then it is time to look."""
LONGEST_BELIEVED_NS = 31 * 86400 * SECOND_NS
"""A longer wait is not believed: the number means something else."""
_SECONDS = {"month": 2592000, "week": 604800, "day": 86400, "hour": 3600, "minute": 60, "second": 1}
_SECONDS |= {"d": 86400, "hr": 3600, "h": 3600, "min": 60, "m": 60, "sec": 1, "s": 1}
UNIT_NS = {unit: seconds * SECOND_NS for unit, seconds in _SECONDS.items()} | {"ms": SECOND_NS // 1000}
"""Plurals add an s."""
_REACH = 64
"""How far from a span the words may be that tell what it is."""

_NUMBER = r"\d{1,3}(?:,\d{3})+|\d{1,7}(?:[.,]\d{1,9})?"
_MORE = r"(?: more| full)?[ -]?"
_ARTICLE = r"(?:half )?(?:an?|one)[ -]"
_UNIT = r"(?:(?:month|week|day|hour|minute|second|hr|min|sec)s?|ms|[dhms])(?![a-z])(?:\(s\))?"
_ONE = re.compile(rf"(?:({_NUMBER}){_MORE}|{_ARTICLE})({_UNIT})")
_TERM = rf"(?:(?:{_NUMBER}){_MORE}|{_ARTICLE}){_UNIT}"
_SUM = re.compile(
    rf"(?<![\w/])(?<!\w-)(?<!\d[.,:])(?:\d{{1,6}} ?(?:-|to) ?)?{_TERM}(?:\.?,? ?(?:and |& )?{_TERM})*(?!\w)"
)
"""`5 hours and 13 minutes`; of `10-15 minutes` the second."""
_CLOCK = re.compile(r"(?<=\b(?:in|or|it|st) )(\d{1,3}):([0-5]\d):([0-5]\d)(?![\w:])")
"""What milter-greylist says: `come back in 00:04:52`."""
_BARE = re.compile(r"\bretry(?:[-_]after[\"']?[ :=]*| after ?[:=] ?)[\"']?(\d{1,7})(?![\w.,:/-])")
"""The field of HTTP, in seconds (RFC 9110, 10.2.3): `Retry-After: 120`."""
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
_IN = re.compile(r"(?:^|[.,:;!?] ?)(?:in|after) $")
_BEHIND = re.compile(r" (?:later|from now|remaining|left|to go)\b")
_ASKED_BEHIND = re.compile(
    r",? ?(?:(?:please|you|may|can|should|and|then|to|before) ){0,4}"
    r"(?:try(?! again later)|trying|re(?:try|send|connect)(?:ing)?|send(?:ing)?|come back)\b"
)


def retry_after_ns(text: str) -> int | None:
    """Return the wait that a refusal asks for, in nanoseconds: `try again in 92 seconds`.

    `text` in lower case, one space between words.  None where it asks for none, or for
    what nobody would believe; else from 1 ns to LONGEST_RETRY_NS.
    """
    waits = [int(found[1]) * SECOND_NS for found in _BARE.finditer(text)]
    waits += [span_ns for start, end, span_ns in _spans(text) if _is_wait(text, start, end)]
    believed = [wait_ns for wait_ns in waits if 0 < wait_ns <= LONGEST_BELIEVED_NS]
    return min(max(believed), LONGEST_RETRY_NS) if believed else None


def _spans(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield from where to where a span of time stands, and how long it is."""
    for found in _CLOCK.finditer(text):
        yield *found.span(), (int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3])) * SECOND_NS
    for found in _SUM.finditer(text):
        yield *found.span(), ceil(sum(_count(one[1]) * _unit_ns(one[2]) for one in _ONE.finditer(found[0])))


def _is_wait(text: str, start: int, end: int) -> bool:
    before, behind = text[max(0, start - _REACH) : start], text[end : end + _REACH]
    if behind.startswith((" ago", " old")):
        return False
    if _BEFORE.search(before) or _BEHIND.match(behind):
        return True
    return _IN.search(before) is not None and _ASKED_BEHIND.match(behind) is not None


def _count(number: str | None) -> Fraction:
    if number is None:
        return Fraction(1)
    is_grouped = re.fullmatch(r"\d{1,3}(?:,\d{3})+", number)
    return Fraction(number.replace(",", "" if is_grouped else "."))


def _unit_ns(unit: str) -> int:
    unit = unit.removesuffix("(s)")
    return UNIT_NS.get(unit) or UNIT_NS[unit.removesuffix("s")]
