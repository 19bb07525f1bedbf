"""The strict upstream itself: it notices a relay whose policy allows too much."""

import smtplib
from pathlib import Path

from tests.system.strict_smarthost import StrictSmarthost
from tests.system.warm import WarmRelay

LIMIT = {"messages": 5, "per": "1h"}


def test_a_relay_whose_policy_allows_twice_the_limit_is_seen_to_exceed_it(tmp_path: Path) -> None:
    with StrictSmarthost(tmp_path, LIMIT, seed=1) as host:
        with WarmRelay(tmp_path, {"isp": host.upstream(limits=[LIMIT | {"messages": 10}])}) as relay:
            with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
                for _ in range(10):
                    session.sendmail("mjd@front.test", ["r@list.test"], "Subject: x\r\n\r\nx\r\n")
            host.wait_until(lambda ledger: ledger.refused > 0)
        assert (host.ledger.relayed, host.ledger.cut_offs) == (5, 1)
        assert host.ledger.most_in_any_window() > 5
