import pytest

from relay.clock import SECOND_NS
from relay.mail.formats import rfc3339, span


@pytest.mark.parametrize(
    ("at_ns", "shown"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_760_000_000_123_999_999, "2025-10-09T08:53:20.123Z"),
        (-1, "1970-01-01T00:00:00.000Z"),
        (10**21, "9999-12-31T23:59:59.000Z"),
    ],
)
def test_an_instant_is_rfc_3339_whatever_the_number(at_ns: int, shown: str) -> None:
    assert rfc3339(at_ns) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        *((-5, "0s"), (0.2, "1s"), (59, "59s"), (60, "1m")),
        *((200, "3m 20s"), (3_605, "1h"), (90_000, "1d 1h")),
    ],
)
def test_a_span_has_its_two_largest_units(seconds: float, shown: str) -> None:
    assert span(int(seconds * SECOND_NS)) == shown
