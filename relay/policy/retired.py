"""What a policy may have had, and what its owner writes instead.  Pure."""

from collections.abc import Mapping

_ONE_LIMIT = "write one limit that always holds, such as `per: 24h`"
KEYS: Mapping[str, str] = {
    "adapt": "the log says what a refusal found our windows at",
    "hours": _ONE_LIMIT,
    "ramp": _ONE_LIMIT,
    "zone": _ONE_LIMIT,
}
PERIODS: Mapping[object, str] = {"hour": "1h", "day": "24h", "month": "31d"}
"""Of the calendar, as a limit's `per` once had them, and the window that never exceeds each."""
