"""Limits as a policy states them: units and windows; and what takes the place of keys that are gone."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from relay.policy.faults import PolicyError
from relay.policy.limits import LimitSettings
from relay.policy.source import parse_policy
from relay.throttle.limit import plain_words
from tests.unit.cli.control import POLICY


@pytest.mark.parametrize(
    ("keys", "label", "words"),
    [
        ({"bytes": "1GB", "per": "24h"}, "1073741824 bytes per 86400s", "1G per 24h"),
        ({"messages": 8, "per": "1m"}, "8 messages per 60s", "8 messages per 1m"),
        (
            {"recipients": 2000, "per": "24h", "for_each": "sender_domain"},
            "2000 recipients per 86400s for each sender domain",
            "2000 recipients per 24h for each sender domain",
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
        {"bytes": 0, "per": "24h"},
        {"bytes": 5, "messages": 5, "per": "24h"},
        {"messages": 5, "per": "week"},
        {"messages": 5, "per": 60},
        {"connections": 5, "per": "24h", "for_each": "sender"},
    ],
)
def test_what_says_no_whole_limit_is_refused(keys: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        LimitSettings.model_validate(keys)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("limits: [{messages: 5, per: day}]", "24h never exceeds"),
        ("limits: [{messages: 5, per: 1h, hours: 'Mon 08:00-09:00'}]", "hours: no key any more"),
        ("limits: [{messages: 5, per: 1h, ramp: {from: 1, over: 9d}}]", "ramp: no key any more"),
        ("limits: [{messages: 5, per: 24h, zone: Europe/Berlin}]", "zone: no key any more"),
        ("adapt: tighten", "adapt: no key any more"),
    ],
)
def test_a_key_that_is_gone_says_what_to_write_instead(written: str, says: str) -> None:
    policy = POLICY.replace("limits: []", written)

    with pytest.raises(PolicyError, match=says):
        parse_policy(policy.encode(), Path("policy.yaml"))
