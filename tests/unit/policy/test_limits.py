"""Limits as a policy states them: units and windows."""

import pytest

from relay.policy.limits import LimitSettings
from relay.throttle.limit import plain_words


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
