"""The wait that the words of a refusal ask for, the window that they name, and words that mean neither."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.verdicts.wording import LONGEST_RETRY_NS, retry_after_ns, window_in

MINUTE, HOUR, DAY = 60, 3600, 86400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Too many messages. Try again in 92 seconds.", 92),
        ("Retry in 1 week", 2 * DAY),
        # All parts of a sum count.
        ("try again in 1 hour, 30 minutes and 5 seconds.", 90 * MINUTE + 5),
        ("blocked for 1d 2h 3m 4s", DAY + 2 * HOUR + 3 * MINUTE + 4),
        ("try again in 10-15 minutes", 15 * MINUTE),
        # The word that asks for a wait stands before the time, or a little apart.
        ("wait at least 5 minutes before trying again", 5 * MINUTE),
        ("try again later (wait: 5 minutes)", 5 * MINUTE),
        # The longest wait counts, in any order.
        ("at most 100 messages in 24 hours, try again in 2 hours", 2 * HOUR),
        ("wait 5 seconds between messages, you are blocked for 1 hour", HOUR),
        # A window is no wait.
        ("limited to 100 an hour, try again later", None),
        ("sender rate overlimit - 102.4 / 1h, retry later", None),
        ("exceeded its 24-hour sending limit, try again later", None),
        ("retry every 5 minutes", None),
        # Neither is a time of day, or a time in the past.
        ("blocked until 18h30m", None),
        ("you were blocked 2 hours ago", None),
        # Not a whole number, no unit, or no wait.
        ("try again in 1,5 hours", None),
        ("try again in half an hour", None),
        ("try again later, closing connection. 5b1f17b1804b1-42b5d", None),
        ("connection timed out after 300 seconds", None),
        ("try again in 120", None),
        ("try again in 500 ms", None),
        # Not a credible wait.
        ("try again in 0 seconds", None),
        ("try again in 9999 hours", None),
    ],
)
def test_the_whole_wait_that_a_refusal_asks_for_is_read(text: str, seconds: float | None) -> None:
    assert retry_after_ns(text.lower()) == (None if seconds is None else seconds * SECOND_NS)


TOKENS = [
    *("try again in", "wait", "blocked for", "until", "per", "messages", "limit", "retry-after:", "ago", "ü"),
    *("an", "a", "half", "and", "1", "2.5", "1,5", "30", "00:05:00", "99999999", "18h30", "²", "٣"),
    *("hour", "hours", "h", "m", "s", "d", "ms", "min", "month", "weeks", *",.-/:()"),
]


@given(st.lists(st.sampled_from(TOKENS), max_size=30), st.sampled_from(["", " "]))
@example(["try again in", *["1", "h"] * 2000], " ")
@example(["wait ", *["in the next "] * 2000, "5 s"], "")
@example(["messages ", *["a "] * 20000, "in 5 s"], "")
def test_no_text_asks_for_less_than_nothing_or_more_than_two_days(parts: list[str], space: str) -> None:
    asked = retry_after_ns(space.join(parts))

    assert asked is None or 0 < asked <= LONGEST_RETRY_NS


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("max emails per hour", 3600), ("this hour, only relaying 400 msg/hour", 3600)),
        *(("daily user sending limit", 86_400), ("exceeded its 24-hour sending limit", 86_400)),
        *(("blocked for the day", 86_400), ("30 messages per minute and 10000 per day", 86_400)),
        *(("too many emails per second", 1), ("30 messages per minute", 60)),
        *(("monthly limit", 31 * 86_400), ("sending limit exceeded", None)),
    ],
)
def test_the_window_of_a_refusal_is_the_longest_one_it_names(text: str, seconds: int | None) -> None:
    assert window_in(text) == (None if seconds is None else seconds * SECOND_NS)
