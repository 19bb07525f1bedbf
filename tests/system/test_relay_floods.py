"""Whoever floods a relay, clients that may relay are served, and not much later than in peace."""

import pytest

from tests.system.flooding import KINDS
from tests.system.floods import flooded_relay, measure
from tests.system.waits import MOST

pytestmark = pytest.mark.measures


@pytest.mark.parametrize("kind", KINDS)
def test_client_waits_at_most_five_times_as_long_in_a_flood(kind: str) -> None:
    with flooded_relay() as relay:
        waits = measure(relay, kind, times=15)
        slow = {name: str(each) for name, each in waits.items() if each.ratio > MOST}
        assert slow == {}
