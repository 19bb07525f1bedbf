"""Waits: how long a refusal asks to wait, and what in its text is none."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.verdicts.wording import LONGEST_BELIEVED_NS, LONGEST_RETRY_NS, retry_after_ns

MINUTE, HOUR, DAY = 60, 3600, 86400


def in_ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * SECOND_NS)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Too many messages. Try again in 92 seconds.", 92),
        ("Retry in 1 week", 2 * DAY),
        # A sum is all of it.
        ("try again in 1 hour, 30 minutes and 5 seconds.", 90 * MINUTE + 5),
        ("wait 1 hour(s) and 5 minute(s)", 65 * MINUTE),
        ("wait 1 hr. 30 min.", 90 * MINUTE),
        ("blocked an hour", HOUR),
        ("try again in 10-15 minutes", 15 * MINUTE),
        ("a 15-minute penalty applies: wait 15-minutes", 15 * MINUTE),
        # The word that makes it a wait stands before it, or a little off.
        ("wait at least 5 minutes before trying again", 5 * MINUTE),
        ("your limit will be lifted in 2 hours", 2 * HOUR),
        ("no mail is accepted for the next 2 hours", 2 * HOUR),
        ("try again later (wait: 5 minutes)", 5 * MINUTE),
        # The longest, whatever stands first.
        ("at most 100 messages in 24 hours, try again in 2 hours", 2 * HOUR),
        ("wait 5 seconds between messages, you are blocked for 1 hour", HOUR),
    ],
)
def test_the_wait_that_a_refusal_asks_for_is_read_whole(text: str, seconds: float) -> None:
    assert retry_after_ns(text.lower()) == in_ns(seconds)


@pytest.mark.parametrize(
    "text",
    [
        # A window.
        "limited to 100 an hour, try again later",
        "rate limited: 300 in 10 minutes",
        "try again later, at most 50 mails/5 min",
        "sender rate overlimit - 102.4 / 1h, retry later",
        "exceeded its 24-hour sending limit, try again later",
        "try again later, over the last 24 hours you sent too much",
        "retry every 5 minutes",
        # A time of day, or what is over.
        "blocked until 18h30m",
        "try again after 12:30:00",
        "you were blocked 2 hours ago",
        # No whole number, no span, or none that is meant.
        "try again in 1,5 hours",
        "try again in 3,600 seconds",
        "try again in half an hour",
        "try again later, closing connection. 5b1f17b1804b1-42b5d",
        "connection timed out after 300 seconds",
        "try again in 120",
        "try again in 500 ms",
        "retry in 250ms",
        # Nobody would believe it.
        "try again in 0 seconds",
        "try again in 9999 hours",
    ],
)
def test_what_is_no_wait_is_not_taken_for_one(text: str) -> None:
    assert retry_after_ns(text) is None


UNITS = (("day", "d", DAY), ("hour", "h", HOUR), ("minute", "m", MINUTE), ("second", "s", 1))
LEADS = st.sampled_from(
    ["try again in ", "blocked for ", "please wait ", "retry after ", "will be lifted in "]
)


@st.composite
def sums(draw: st.DrawFn) -> tuple[str, int]:
    """Draw a sum of units in one of the ways to write it, and how many seconds it is."""
    counts = draw(st.tuples(*[st.none() | st.integers(0, 99)] * 4).filter(lambda some: any(map(bool, some))))
    parts = [(count, unit) for count, unit in zip(counts, UNITS, strict=True) if count is not None]
    seconds = sum(count * unit[2] for count, unit in parts)
    match draw(st.sampled_from(["long", "comma", "short", "spaced"])):
        case "short":
            return "".join(f"{count}{unit[1]}" for count, unit in parts), seconds
        case "spaced":
            return " ".join(f"{count} {unit[1]}" for count, unit in parts), seconds
        case way:
            words = [f"{count} {unit[0]}{'' if count == 1 else 's'}" for count, unit in parts]
            *first, last = words
            joined = (", " if way == "comma" else " ").join(first)
            return f"{joined} and {last}" if first else last, seconds


@given(LEADS, sums(), st.sampled_from(["", ".", " please", ", then it works", ")"]))
def test_a_sum_of_units_is_read_as_the_sum(lead: str, written: tuple[str, int], rest: str) -> None:
    text, seconds = written
    believed = seconds * SECOND_NS <= LONGEST_BELIEVED_NS

    asked = retry_after_ns(lead + text + rest)

    assert asked == (min(seconds * SECOND_NS, LONGEST_RETRY_NS) if believed else None)


@given(sums(), st.sampled_from(["messages", "recipients", "emails", "connections"]), st.integers(1, 10**6))
def test_what_a_limit_counts_in_is_no_wait(written: tuple[str, int], what: str, count: int) -> None:
    for between in (" per ", " in ", " every ", " within any ", " in the last "):
        assert retry_after_ns(f"limited to {count} {what}{between}{written[0]}, try again later") is None


TOKENS = [
    *("try again in", "wait", "blocked for", "until", "per", "messages", "limit", "retry-after:", "ago", "ü"),
    *("an", "a", "half", "and", "1", "2.5", "1,5", "30", "00:05:00", "99999999", "18h30", "²", "٣"),
    *("hour", "hours", "h", "m", "s", "d", "ms", "min", "month", "weeks", *",.-/:()"),
]


@given(st.lists(st.sampled_from(TOKENS), max_size=30), st.sampled_from(["", " "]))
@example(["try again in", *["1", "h"] * 2000], " ")
@example(["wait ", *["in the next "] * 2000, "5 s"], "")
@example(["messages ", *["a "] * 20000, "in 5 s"], "")
def test_no_text_asks_for_less_than_nothing_or_for_more_than_two_days(parts: list[str], space: str) -> None:
    asked = retry_after_ns(space.join(parts))

    assert asked is None or 0 < asked <= LONGEST_RETRY_NS
