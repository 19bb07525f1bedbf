"""The wait that a refusal asks for, read out of its text.  Pure; time linear in the text.

A text names spans of time for three reasons: how long to wait, the window that a limit counts in, and a time
of day.  A span is a wait where a word of waiting stands right before it, with nothing but filling words in
between (`try again in`, `blocked for at least`).  Of several waits the longest counts: a try that comes too
early is refused again, or blocked for longer.
"""

import re
from collections.abc import Iterator

from relay.clock import SECOND_NS

LONGEST_RETRY_NS = 2 * 86400 * SECOND_NS
"""No rest is longer, whatever is asked for: then it is time to look."""
LONGEST_BELIEVED_NS = 31 * 86400 * SECOND_NS
"""A longer wait is not believed: the number means something else."""
_SECONDS = {"month": 2592000, "week": 604800, "day": 86400, "hour": 3600, "minute": 60, "second": 1}
_SECONDS |= {"d": 86400, "hr": 3600, "h": 3600, "min": 60, "m": 60, "sec": 1, "s": 1}
UNIT_NS = {unit: seconds * SECOND_NS for unit, seconds in _SECONDS.items()}
"""Plurals add an s."""
_REACH = 64
"""How far in front of a span the words may be that tell what it is."""

_ONE = re.compile(
    r"(?:(\d{1,7})(?: more| full)?[ -]?|(?:an?|one)[ -])"
    # Milliseconds are no minutes.
    r"(?!ms)(month|week|day|hour|minute|second|hr|min|sec|[dhms])s?(?![a-z])(?:\(s\))?"
)
_TERM = _ONE.pattern.replace("(\\d", "(?:\\d").replace("(month", "(?:month")
_SUM = re.compile(
    rf"(?<![\w/])(?<!\w-)(?<!\d[.,:])(?:\d{{1,6}} ?(?:-|to) ?)?{_TERM}(?:\.?,? ?(?:and |& )?{_TERM})*(?!\w)"
)
"""`5 hours and 13 minutes`; of `10-15 minutes` the second."""
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


def retry_after_ns(text: str) -> int | None:
    """Return the wait that a refusal asks for, in nanoseconds: `try again in 92 seconds`.

    `text` in lower case, one space between words.  None where it asks for none, or for
    what nobody would believe; else from 1 ns to LONGEST_RETRY_NS.
    """
    believed = [wait_ns for wait_ns in _waits_ns(text) if 0 < wait_ns <= LONGEST_BELIEVED_NS]
    return min(max(believed), LONGEST_RETRY_NS) if believed else None


def _waits_ns(text: str) -> Iterator[int]:
    for found in _SUM.finditer(text):
        before = text[max(0, found.start() - _REACH) : found.start()]
        is_over = text.startswith((" ago", " old"), found.end())
        if _BEFORE.search(before) and not is_over:
            yield sum(int(one[1] or 1) * UNIT_NS[one[2]] for one in _ONE.finditer(found[0]))
