"""The policy of a relay that runs, edited in what it can only take up at its next start."""

import smtplib
from pathlib import Path

import pytest

from tests.system.strict_smarthost import StrictSmarthost
from tests.system.warm import WarmRelay

pytestmark = pytest.mark.full


def test_an_edit_that_needs_a_restart_says_so_and_the_rest_counts(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    with (
        StrictSmarthost(tmp_path, {"messages": 1000, "per": "1s"}, seed=1) as host,
        StrictSmarthost(tmp_path / "elsewhere", {"messages": 9, "per": "1s"}, seed=2) as other,
        WarmRelay(tmp_path, {"isp": host.upstream()}) as relay,
    ):
        relay.policy |= {"hostname": "other.test", "spool": "./other", "upstreams": {"isp": other.upstream()}}
        relay.policy["upstreams"]["isp"]["limits"] = []
        relay.write_policy()
        relay.wait_for_log(lambda line: "needs a restart to take effect: spool, hostname event=" in line)

        with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
            assert session.ehlo()[1].startswith(b"relay.test\n")
            session.sendmail("mjd@front.test", ["r@list.test"], "Subject: x\r\n\r\nx\r\n")
        other.wait_until(lambda ledger: ledger.relayed == 1)
        assert not (relay.folder / "other").exists()
        relay.policy["spool"] = "./spool"
