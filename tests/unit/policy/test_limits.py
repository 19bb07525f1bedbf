"""Limits as a policy states them: units, windows, hours and ramps."""

import pytest
from pydantic import ValidationError

from relay.policy.limits import LimitSettings
from relay.throttle.limit import plain_words


@pytest.mark.parametrize(
    ("keys", "label", "words"),
    [
        ({"bytes": "1GB", "per": "day"}, "1073741824 bytes per day UTC", "1G per day UTC"),
        ({"messages": 8, "per": "1m"}, "8 messages per 60s", "8 messages per 1m"),
        (
            {"messages": 60, "per": "hour", "zone": "Europe/Berlin", "hours": "Mon-Fri 08:00-18:00"},
            "60 messages per hour Europe/Berlin, Mon-Fri 08:00-18:00",
            "60 messages per hour Europe/Berlin, Mon-Fri 08:00-18:00 Europe/Berlin",
        ),
        (
            {"recipients": 2000, "per": "24h", "ramp": {"from": 50, "to": 2000, "over": "14d"}},
            "2000 recipients per 86400s, from 50 over 14d",
            "2000 recipients per 24h, from 50 over 14d",
        ),
        (
            {"messages": 90, "per": "1h", "ramp": {"from": 1, "over": "9d", "since": "2026-11-01"}},
            "90 messages per 3600s, from 1 over 9d since 2026-11-01 UTC",
            "90 messages per 1h, from 1 over 9d",
        ),
    ],
)
def test_a_limit_is_named_by_all_that_it_says(keys: dict[str, object], label: str, words: str) -> None:
    limit = LimitSettings.model_validate(keys)

    assert (limit.label, plain_words(limit)) == (label, words)


@pytest.mark.parametrize(
    "keys",
    [
        {"bytes": "1GB"},
        {"bytes": 0, "per": "day"},
        {"bytes": 5, "messages": 5, "per": "day"},
        {"messages": 5, "per": "week"},
        {"messages": 5, "per": 60},
        {"messages": 5, "per": "day", "zone": "Mars"},
        {"messages": 5, "per": "day", "hours": "always"},
        {"messages": 5, "per": "day", "hours": "Mon 08:00-09:00", "for_each": "sender"},
        {"connections": 5, "per": "day", "hours": "Mon 08:00-09:00"},
        {"messages": 5, "per": "day", "ramp": {"from": 6, "over": "3d"}},
        {"messages": 5, "per": "day", "ramp": {"from": 1, "to": 4, "over": "3d"}},
        {"messages": 5, "per": "day", "ramp": {"from": 1, "over": "3d", "since": "2026-02-30"}},
        {"messages": 5, "per": "day", "ramp": {"from": 1}},
    ],
)
def test_what_says_no_whole_limit_is_refused(keys: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        LimitSettings.model_validate(keys)
