"""The policy of a relay that runs, edited in every way that files get edited."""

import hashlib
import json
import smtplib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import wait_until
from tests.system.warm import WarmRelay

pytestmark = pytest.mark.full

GOOD = "relay_policy_last_reload_successful"


class Edited:
    """A relay with one limit of 2 messages an hour, that tells which policy it lives by."""

    def __init__(self, relay: WarmRelay, host: StrictSmarthost) -> None:
        self.relay = relay
        self.host = host
        self.isp: dict[str, Any] = relay.policy["upstreams"]["isp"]

    def text(self, count: int) -> str:
        self.isp["limits"][0]["messages"] = count
        return json.dumps(self.relay.policy, indent=1) + "\n"

    def until_it_counts(self, count: int) -> None:
        digest = hashlib.sha256(self.relay.policy_path.read_bytes()).hexdigest()
        self.relay.wait_for_log(lambda line: f"sha256 {digest} event=policy_loaded" in line)
        metrics = self.relay.metrics()
        slots = [value for name, value in metrics.items() if name.startswith("relay_limit_slots{")]
        assert slots == [count]
        assert (metrics[f'relay_policy_info{{sha256="{digest}"}}'], metrics[GOOD]) == (1, 1)
        self.host.wait_until(lambda ledger: ledger.relayed == count)

    def hand_over(self, count: int) -> None:
        hand_over(self.relay, count)


def hand_over(relay: WarmRelay, count: int) -> None:
    with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
        for _ in range(count):
            session.sendmail("mjd@front.test", ["r@list.test"], "Subject: x\r\n\r\nx\r\n")


@pytest.fixture
def edited(tmp_path: Path) -> Iterator[Edited]:
    """Return a relay that is not started yet."""
    with StrictSmarthost(tmp_path, {"messages": 1000, "per": "1s"}, seed=1) as host:
        isp = host.upstream(limits=[{"messages": 2, "per": "1h"}])
        yield Edited(WarmRelay(tmp_path, {"isp": isp}), host)


def test_every_way_to_save_a_policy_keeps_the_history(edited: Edited) -> None:
    """Kubernetes mounts a ConfigMap so: policy.yaml -> ..data/policy.yaml, ..data -> ..2026_01."""
    relay, folder = edited.relay, edited.relay.folder
    with relay:
        edited.hand_over(9)
        edited.host.wait_until(lambda ledger: ledger.relayed == 2)

        # Renamed over the old one, as editors do.
        edited.isp["limits"][0]["messages"] = 3
        relay.write_policy()
        edited.until_it_counts(3)

        # Written in place, as a shell does.
        relay.policy_path.write_text(edited.text(4))
        edited.until_it_counts(4)

        # Renamed away and put back, as a deployment may; for a while there is none.
        away = relay.policy_path.with_suffix(".away")
        relay.policy_path.rename(away)
        relay.wait_for_log(lambda line: "policy: cannot read it: No such file" in line)
        away.write_text(edited.text(5))
        away.rename(relay.policy_path)
        edited.until_it_counts(5)

        # Swapped two links up.
        for version in (6, 7):
            (folder / f"..{version}").mkdir()
            (folder / f"..{version}" / "policy.yaml").write_text(edited.text(version))
            (folder / "..data_tmp").symlink_to(f"..{version}")
            (folder / "..data_tmp").rename(folder / "..data")
            if version == 6:
                (folder / "link").symlink_to("..data/policy.yaml")
                (folder / "link").rename(relay.policy_path)
            edited.until_it_counts(version)

        # Asked to, it reads what it knows already.
        loads = sum(line.endswith(" event=policy_loaded") for line in relay.log())
        relay.reload()
        wait_until(lambda: sum(line.endswith(" event=policy_loaded") for line in relay.log()) == loads + 1)
        edited.until_it_counts(7)
        # Relative paths start where the link stands.
        assert not any("needs a restart" in line for line in relay.log())


def test_an_edit_that_needs_a_restart_says_so_and_the_rest_counts(edited: Edited, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    with (
        edited.relay as relay,
        StrictSmarthost(tmp_path / "elsewhere", {"messages": 9, "per": "1s"}, seed=2) as other,
    ):
        relay.policy |= {"hostname": "other.test", "spool": "./other"}
        edited.isp |= other.upstream()
        edited.isp["limits"][0]["messages"] = 9
        relay.write_policy()
        relay.wait_for_log(lambda line: "needs a restart to take effect: spool, hostname event=" in line)

        edited.hand_over(2)
        other.wait_until(lambda ledger: ledger.relayed == 2)
        with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
            assert session.ehlo()[1].startswith(b"relay.test\n")
        assert not (relay.folder / "other").exists()
        relay.policy["spool"] = "./spool"
