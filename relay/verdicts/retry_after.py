"""The wait that a refusal asks for, read out of its text.  Pure; time linear in the text.

A text names spans of time for three reasons: how long to wait, the window that a limit counts in, and a time
of day.  Only the first is a wait, and it is one where words say so: right before the span (`try again in`),
right behind it (`in 10 minutes try again`), or at a little distance in the same sentence, unless the span is
what something was counted in (`100 messages in 24 hours`) or a time of day (`until 18h`).  Of several waits
the longest counts: a try that comes too early is refused again, or blocked for longer.
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

_QUANTITY = (
    r"(?:(\d{1,3}(?:,\d{3})+|\d{1,7}(?:[.,]\d{1,9})?)(?: more| full)?[ -]?|(?:half )?(an?|one)[ -])"
    r"((?:month|week|day|hour|minute|second|hr|min|sec)s?|ms|[dhms])(?![a-z])(?:\(s\))?"
)
_FIRST = re.compile(rf"(?<![\w/])(?<!\w-)(?<!\d[.,:])(?:\d{{1,6}} ?(?:-|to) ?)?{_QUANTITY}")
_NEXT = re.compile(rf"\.?,? ?(?:and |& )?{_QUANTITY}|([0-5]\d)(?![\w:])")
"""The 30 of 1h30, too."""
_CLOCK = re.compile(r"(?<=\b(?:in|or|it|st) )(\d{1,3}):([0-5]\d):([0-5]\d)(?![\w:])")
"""What milter-greylist says: `come back in 00:04:52`."""
_BARE = re.compile(r"\bretry(?:[-_]after[\"']?[ :=]*| after ?[:=] ?)[\"']?(\d{1,7})(?![\w.,:/-])")
"""The field of HTTP, in seconds (RFC 9110, 10.2.3): `Retry-After: 120`."""

_WAIT = re.compile(
    r"again|retr(?:y|ies|ied|ying)(?:[-_]after)?|try|resend|wait|later|back|off|next|hold|unavailable"
    r"|(?:(?:un)?block|suspend|defer|lock|bann|paus|gr[ae]ylist|throttl|delay|disabl|reject|refus|den[iy]|limited"
    r"|restrict|lift|remov|releas|reset|renew|expir|resum|restor|reopen|penalt|cool-?down)\w*"
)
_FILLING = re.compile(
    r"in|for|after|at|about|around|approx\w*|another|the|an?|least|minimum|of|within|time|is|be|to|up|some|more|than"
    r"|or|until|send(?:ing)?|submit|submission|deliver(?:y|ing)|your|this|it|that|messages?|e?-?mails?"
    r"|connect(?:ion|ing)|you|must|should|period|access"
)
_COUNTED = re.compile(
    r"messages?|e?-?mails?|msgs|recipients?|rcpts|connect(?:ion)?s?|sessions|requests?|attempts?|logins|errors|failures"
    r"|times|sent|exceeded|limits?|quota|allowance|rate|volume"
)
_PER = frozenset(
    ["per", "every", "each", "any", "last", "past", "previous", "rolling", "sliding", "once", "twice", "/"]
)
_IN = frozenset(["in", "within", "over", "during", "by"])
_ASKED = _IN | {"after", "wait", "least", "for", "another"}
_TIME_OF_DAY = frozenset(["until", "till", "at", "by", "since", "before", "between", "from"])
_WORD = re.compile(r"[\w'-]+|/")
_SENTENCE_ENDS = re.compile(r"[.!?] |;")
_WINDOW_BEHIND = re.compile(
    r"[ -](?:\w+ ){0,2}(?:limits?|quota|window|period|rate|allowance|maximum|interval|time ?(?:frame|span))\b"
)
_ASKED_BEHIND = re.compile(
    r",? ?(?:(?:please|you|may|can|should|and|then|to|before) ){0,4}"
    r"(?:try(?! again later)|trying|re(?:try|send|connect)(?:ing)?|send(?:ing)?|come back)\b"
    r"| before (?:the )?(?:next|another)\b"
)


def retry_after_ns(text: str) -> int | None:
    """Return the wait that a refusal asks for, in nanoseconds: `try again in 92 seconds`.

    `text` in lower case, one space between words.  None where it asks for none, or for
    what nobody would believe; else from 1 ns to LONGEST_RETRY_NS.
    """
    waits = [int(found[1]) * SECOND_NS for found in _BARE.finditer(text)]
    for start, end, span_ns in _spans(text):
        before = _SENTENCE_ENDS.split(text[max(0, start - _REACH) : start])[-1]
        is_article = text.startswith(("a ", "an "), start)
        if _is_wait(_WORD.findall(before), text[end : end + _REACH], is_article=is_article):
            waits.append(span_ns)
    believed = [wait_ns for wait_ns in waits if 0 < wait_ns <= LONGEST_BELIEVED_NS]
    return min(max(believed), LONGEST_RETRY_NS) if believed else None


def _is_wait(before: list[str], behind: str, *, is_article: bool) -> bool:
    """Return whether a span between these is a wait; `an hour` may be what something happens in."""
    last = before[-1] if before else ""
    if re.match(r" (?:ago|old)\b", behind):
        return False
    if last in _TIME_OF_DAY:
        return re.match(r" (?:ha(?:s|ve|d) )?(?:passed|elapsed|gone by)\b", behind) is not None
    right_before = next((word for word in reversed(before) if not _FILLING.fullmatch(word)), "")
    if _WAIT.fullmatch(right_before):
        return True
    pairs = zip(["", *before[-6:]], before[-6:], strict=False)
    is_counted = any(_COUNTED.fullmatch(word) and previous != "next" for previous, word in pairs)
    is_for_long = "for" in before[-2:] and not {"cannot", "can't", "not", "unable", "no"}.isdisjoint(before)
    if not is_for_long and (is_counted or last in _PER or last.isdigit() or _WINDOW_BEHIND.match(behind)):
        return False
    if last in _IN and before[-2:-1] and before[-2].isdigit():
        return False
    if re.match(r" (?:later|from now|remaining|left|to go)\b", behind):
        return True
    if last in _ASKED and _ASKED_BEHIND.match(behind):
        return True
    return (last in _ASKED or not is_article) and (is_for_long or any(map(_WAIT.fullmatch, before)))


def _spans(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield from where to where a span of time stands, and how long it is: `1 hour 30 minutes`."""
    for clock in _CLOCK.finditer(text):
        yield *clock.span(), (int(clock[1]) * 3600 + int(clock[2]) * 60 + int(clock[3])) * SECOND_NS
    at = 0
    while (found := _FIRST.search(text, at)) is not None:
        unit_ns, at = _unit_ns(found[3]), found.end()
        span = _count(found[1]) * unit_ns
        while (more := _NEXT.match(text, at)) is not None:
            more_ns = _unit_ns(more[3] or "m")
            if more_ns >= unit_ns or (more[4] and text[at - 1] != "h"):
                break
            span, unit_ns, at = span + _count(more[1] or more[4]) * more_ns, more_ns, more.end()
        if not text[at : at + 1].isalnum():
            yield found.start(), at, ceil(span)


def _count(number: str | None) -> Fraction:
    if number is None:
        return Fraction(1)
    is_grouped = re.fullmatch(r"\d{1,3}(?:,\d{3})+", number)
    return Fraction(number.replace(",", "" if is_grouped else "."))


def _unit_ns(unit: str) -> int:
    return UNIT_NS.get(unit) or UNIT_NS[unit.removesuffix("s")]
