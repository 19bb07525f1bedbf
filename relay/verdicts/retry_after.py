"""The wait that a refusal asks for, read out of its text.  Pure; time linear in the text.

A text names spans of time for three reasons: how long to wait, the window that a limit
counts in, and a time of day.  Only the first is a wait, and it is one where words say
so: right before the span (`try again in`, `blocked for`), right behind it (`in 10
minutes try again`), or at a little distance in the same sentence, unless the span is
what something was counted in (`100 messages in 24 hours`) or a time of day (`until 18h`).
Of several waits the longest counts, and a fraction is rounded up: a try that comes too early
is refused again, or blocked for longer.
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

UNIT_NS = (
    dict.fromkeys(("month",), 30 * 86400 * SECOND_NS)
    | dict.fromkeys(("week",), 7 * 86400 * SECOND_NS)
    | dict.fromkeys(("day", "d"), 86400 * SECOND_NS)
    | dict.fromkeys(("hour", "hr", "h"), 3600 * SECOND_NS)
    | dict.fromkeys(("minute", "min", "m"), 60 * SECOND_NS)
    | dict.fromkeys(("second", "sec", "s"), SECOND_NS)
    | dict.fromkeys(("millisecond", "msec", "ms"), SECOND_NS // 1000)
)
"""Plurals add an s."""
_WORDS = ("half", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_ARTICLES = ("a", "an", "another")

_NUMBER = (
    r"\d{1,3}(?:,\d{3})+|\d{1,7}(?:[.,]\d{1,9})?"
    rf"|(?:{'|'.join((*_WORDS, *_ARTICLES))})(?=[ -])(?: an?(?= hour))?(?P<more> and a half)?"
)
_UNIT = rf"(?:{'|'.join(unit for unit in UNIT_NS if len(unit) > 2)}|hr)s?|[dhms]|ms"
_QUANTITY = (
    rf"(?P<number>{_NUMBER})(?: more| full)?[ -]?(?P<unit>{_UNIT})(?![a-z])(?:\(s\))?(?P<half> and a half)?"
)
_FIRST = re.compile(rf"(?<![\w/])(?<!\w-)(?<!\d[.,:])(?:\d{{1,6}} ?- ?)?{_QUANTITY}")
_NEXT = re.compile(rf"\.?,? ?(?:and |& )?{_QUANTITY}")
_MINUTES_OF_HOUR = re.compile(r"([0-5]\d)(?![\w:])")
"""The 30 of 1h30."""
_ARTICLE = re.compile(r"an? ")
_CLOCK = re.compile(
    r"(?:(?<=\bin )|(?<=\bfor )|(?<=\bwait )|(?<=\bleast ))(\d{1,3}):([0-5]\d):([0-5]\d)(?![\w:])"
)
"""What milter-greylist says: `come back in 00:04:52`."""
_BARE = re.compile(r"\bretry(?:[-_]after[\"']?[ :=]*| after ?[:=] ?)[\"']?(\d{1,7})(?![\w.,:/-])")
"""The field of HTTP, in seconds (RFC 9110, 10.2.3): `Retry-After: 120`."""

_REACH = 64
"""How far from a span the words may be that tell what it is."""
_COUNTED_THINGS = (
    r"(?:messages|e?-?mails|msgs|recipients|rcpts|connections|connects|sessions|requests|attempts|logins|errors"
    r"|failures|times|sent|exceeded|limits?|quota|allowance|rate|volume"
    r"|\d (?:message|e?-?mail|mail|recipient|connection|request|attempt))"
)
_AWAY = (
    r"(?:block|suspend|defer|lock|bann|paus|greylist|graylist|throttl|delay|disabl|reject|refus|denied|deny"
    r"|limited(?! to)|restrict|lift|remov|releas|unblock|reset|renew|expir|resum|restor|reopen|penalt"
    r"|cool-?down|back[ -]?off|unavailable|hold)\w*"
)
_RETRY = (
    r"(?:again|retry|retries|retrying|retried|retry[-_]after|try|resend|wait|delay|later"
    r"|(?:come|be|call|check|get) back)"
)
_FILLING = (
    r"(?:in|for|after|again|later|least|at|about|around|approximately|approx\.?|another|the|next|a|an|minimum|of"
    r"|within|time|is|be|to|up|some|more|than|or|until|sending|send|submit|submission|delivery|delivering|your"
    r"|this|it|that|messages?|e?-?mails?|connection|connecting|you|must|should|period|access)"
)
_RIGHT_BEFORE = re.compile(rf"\b(?:{_RETRY}|{_AWAY})[ ,:=(\"'-]*(?:{_FILLING}[ ,:=(~-]+){{0,8}}\Z")
_NEXT_ONE = re.compile(r"\bnext\Z")
_NEAR = re.compile(
    r"\b(?:again|retry|retrying|retried|resend|wait|(?:come|be|call|check|get) back|later|resumes?|blocked"
    r"|deferred|suspended|limited(?! to)|greylisted|locked|banned|paused|throttled|delayed|disabled|lifted"
    r"|removed|released|unblocked|resets?|renew(?:s|ed)?|expires?|penalty|next)\b"
)
_NOT_FOR = re.compile(
    r"\b(?:cannot|can not|can't|may not|not (?:be )?able|unable|not accept\w*|no more|no longer|not allowed"
    r"|not permitted|no (?:mail|messages?|e-?mails?)|reject\w*|refus\w*|denied|restricted)\b.*"
    r"\bfor(?: the| a| at least| about| another)?\Z"
)
_BEHIND = re.compile(
    r",? ?(?:(?:please|you|may|can|should|and|then|to|before) ){0,4}"
    r"(?:try(?! again later)|retry|resend|send|come back|retrying|trying|sending|resending|reconnecting)\b"
    r"| before (?:the )?(?:next|another)\b"
)
_FROM_NOW = re.compile(r" (?:later|from now|remaining|left|to go)\b")
_ASKED_BEFORE = re.compile(r"(?:\A|\W)(?:in|after|wait|within|least|for|another)\Z")
_COUNTED = re.compile(
    r"(?:\b(?:per|every|each|any|last|past|previous|rolling|sliding|one|single)|/)\Z"
    rf"|\b(?<!next ){_COUNTED_THINGS}(?: (?!{_RETRY}\b|{_AWAY}\b)[\w'@-]+){{0,4}}"
    r" (?:in|within|over|during|by)(?: the| an?| any| one)?\Z"
    rf"|\b\d[\d,.]* {_COUNTED_THINGS}(?: [\w'-]+)? for(?: the| a)?\Z"
    rf"|\b(?:{_COUNTED_THINGS}|\d|once|twice)\Z"
    r"|\d (?:in|within|over|during|by)(?: an?| any| one)?\Z"
)
_WINDOW_BEHIND = re.compile(
    r"[ -](?:(?:sending|message|messages|recipient|mail|email|relay|rolling|sliding|time|rate) ){0,2}"
    r"(?:limits?|quota|window|period|rate|allowance|maximum|interval|time ?frame|time ?span)\b"
)
_TIME_OF_DAY = re.compile(r"\b(?:until|till|at|by|since|before|between|from)\Z")
_PASSED = re.compile(r" (?:(?:has|have|had) )?(?:passed|elapsed|gone by)\b")
_LONG_AGO = re.compile(r" (?:ago|old)\b")
_SENTENCE_ENDS = re.compile(r"[.!?] |;")


def retry_after_ns(text: str) -> int | None:
    """Return the wait that a refusal asks for, in nanoseconds: `try again in 92 seconds`.

    `text` in lower case, one space between words.  None where it asks for none, or for
    what nobody would believe; else from 1 ns to LONGEST_RETRY_NS.
    """
    asked = [wait_ns for wait_ns in _waits_ns(text) if 0 < wait_ns <= LONGEST_BELIEVED_NS]
    return min(max(asked), LONGEST_RETRY_NS) if asked else None


def _waits_ns(text: str) -> Iterator[int]:
    for found in _BARE.finditer(text):
        yield int(found[1]) * SECOND_NS
    for start, end, span_ns in _spans(text):
        before = _SENTENCE_ENDS.split(text[max(0, start - _REACH) : start])[-1].rstrip(" (~")
        behind = text[end : end + _REACH]
        if _is_wait(before, behind, is_article=_ARTICLE.match(text, start) is not None):
            yield span_ns


def _is_wait(before: str, behind: str, *, is_article: bool) -> bool:
    """Return whether a span between these is a wait; `an hour` may be what something happens in."""
    if _LONG_AGO.match(behind):
        return False
    if _TIME_OF_DAY.search(before):
        return _PASSED.match(behind) is not None
    if _RIGHT_BEFORE.search(f"{before} ") or _NEXT_ONE.search(before):
        return True
    if _COUNTED.search(before) or _WINDOW_BEHIND.match(behind):
        return False
    is_asked = _ASKED_BEFORE.search(before) is not None
    if _FROM_NOW.match(behind) or (is_asked and _BEHIND.match(behind)):
        return True
    if is_article and not is_asked:
        return False
    return _NEAR.search(before) is not None or _NOT_FOR.search(before) is not None


def _spans(text: str) -> Iterator[tuple[int, int, int]]:
    for clock in _CLOCK.finditer(text):
        hours, minutes, seconds = (int(part) for part in clock.groups())
        yield *clock.span(), (hours * 3600 + minutes * 60 + seconds) * SECOND_NS
    at = 0
    while (found := _FIRST.search(text, at)) is not None:
        span_ns, at = _sum_ns(text, found)
        if not text[at : at + 1].isalnum():
            yield found.start(), at, span_ns


def _sum_ns(text: str, found: re.Match[str]) -> tuple[int, int]:
    """Return a quantity with the smaller ones that follow it, `1 hour 30 minutes`, and where they end."""
    span, unit_ns, at = _quantity(found), _unit_ns(found), found.end()
    while (last := _NEXT.match(text, at)) is not None and _unit_ns(last) < unit_ns:
        span, unit_ns, at = span + _quantity(last), _unit_ns(last), last.end()
    if found["unit"] == "h" and (minutes := _MINUTES_OF_HOUR.match(text, at)) is not None:
        span, at = span + int(minutes[1]) * UNIT_NS["m"], minutes.end()
    return ceil(span), at


def _unit_ns(found: re.Match[str]) -> int:
    unit = found["unit"]
    return UNIT_NS.get(unit) or UNIT_NS[unit.removesuffix("s")]


def _quantity(found: re.Match[str]) -> Fraction:
    number = found["number"].removesuffix(" and a half").removesuffix(" an").removesuffix(" a")
    if number in _ARTICLES:
        count = Fraction(1)
    elif number in _WORDS:
        count = Fraction(_WORDS.index(number)) or Fraction(1, 2)
    elif re.fullmatch(r"\d{1,3}(?:,\d{3})+", number):
        count = Fraction(number.replace(",", ""))
    else:
        count = Fraction(number.replace(",", "."))
    halves = (found["more"] is not None) + (found["half"] is not None)
    return (count + Fraction(halves, 2)) * _unit_ns(found)
