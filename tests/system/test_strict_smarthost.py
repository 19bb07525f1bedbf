"""The judge itself: it sees a relay whose policy allows too much, and it counts as its words say."""

from pathlib import Path

from tests.system.strict_smarthost import StrictSmarthost
from tests.system.warm import WarmRelay

LIMIT = {"messages": 5, "per": "1h"}


def test_a_relay_that_may_send_twice_as_much_is_seen_to_be_over(tmp_path: Path) -> None:
    with StrictSmarthost(tmp_path, LIMIT, seed=1) as host:
        with WarmRelay(tmp_path, {"isp": host.upstream(limits=[LIMIT | {"messages": 10}])}) as relay:
            relay.send(*["r@list.test"] * 10)
            host.wait_until(lambda ledger: ledger.refused > 0)
        assert (host.ledger.relayed, host.ledger.cut_offs) == (5, 1)
        assert host.ledger.most_in_any_window() > 5
