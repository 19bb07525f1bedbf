"""The policy of a relay that runs, edited in every way that files get edited."""

import hashlib
import json
import os
import smtplib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.peers import smtp_tools
from tests.peers.demand import demand
from tests.peers.relay import RelayProcess
from tests.peers.smtp_tools import SmtpSink, smtp_sink
from tests.peers.waiting import wait_until

pytestmark = pytest.mark.slow

GOOD = "relay_policy_last_reload_successful"


class Edited:
    """A relay with one limit, that tells which policy it lives by."""

    def __init__(self, relay: RelayProcess, sink: SmtpSink) -> None:
        self.relay = relay
        self.sink = sink

    @property
    def isp(self) -> dict[str, Any]:
        """The upstream's section, for editing."""
        section: dict[str, Any] = self.relay.policy["upstreams"]["isp"]
        return section

    def text(self, count: int) -> str:
        """Return the policy with this N, as JSON."""
        self.isp["limits"][0]["messages"] = count
        return json.dumps(self.relay.policy, indent=1) + "\n"

    def limit(self) -> float:
        """Return N as the relay has it."""
        slots = [
            value for name, value in self.relay.metrics().items() if name.startswith("relay_limit_slots{")
        ]
        (count,) = slots
        return count

    def wait_for(self, count: int) -> None:
        """Wait until the relay goes by this N, and says so everywhere."""
        digest = hashlib.sha256(self.relay.policy_path.read_bytes()).hexdigest()
        self.relay.wait_for_log(lambda line: line.endswith(f"loaded, sha256 {digest}"))
        metrics = self.relay.metrics()
        assert self.limit() == count
        assert (metrics[f'relay_policy_info{{sha256="{digest}"}}'], metrics[GOOD]) == (1, 1)

    def loads(self) -> int:
        """Return how many edits came into force."""
        return sum(" loaded, sha256 " in line for line in self.relay.log())

    def hand_over(self, count: int) -> None:
        """Hand over so many messages."""
        with smtplib.SMTP("127.0.0.1", self.relay.port, timeout=60) as session:
            for _ in range(count):
                session.sendmail("mjd@front.test", ["r@list.test"], "Subject: x\r\n\r\nx\r\n")


@pytest.fixture
def edited(tmp_path: Path) -> Iterator[Edited]:
    """Return a relay that is not started yet."""
    demand(smtp_tools.why_missing())
    with smtp_sink() as sink:
        limits = [{"messages": 2, "per": "1h"}]
        isp = {"host": "127.0.0.1", "port": sink.port, "tls": "none", "limits": limits}
        yield Edited(RelayProcess(tmp_path, {"isp": isp}), sink)


def test_every_way_to_save_the_policy_takes_effect_on_the_same_history(edited: Edited) -> None:
    with edited.relay as relay:
        edited.hand_over(7)
        edited.sink.wait_for(2)

        # Renamed over the old one, as editors do.
        edited.isp["limits"][0]["messages"] = 4
        relay.write_policy()
        edited.wait_for(4)
        edited.sink.wait_for(4)

        # Written in place, as a shell does.
        relay.policy_path.write_text(edited.text(5))
        edited.wait_for(5)
        edited.sink.wait_for(5)

        # Renamed away and put back, as a deployment may; for a while there is none.
        away = relay.policy_path.with_suffix(".away")
        relay.policy_path.rename(away)
        relay.wait_for_log(lambda line: "policy: cannot read it: No such file" in line)
        away.write_text(edited.text(6))
        away.rename(relay.policy_path)
        edited.wait_for(6)
        edited.sink.wait_for(6)

        # Asked to, it reads what it knows already.
        loads = edited.loads()
        relay.reload()
        wait_until(lambda: edited.loads() == loads + 1)
        edited.wait_for(6)

        assert edited.sink.count == 6
        waiting = [each for each in relay.command("queue", "--json").stdout.splitlines() if each]
        assert [json.loads(each)["state"] for each in waiting] == ["waiting"]


def test_a_policy_that_is_swapped_two_links_up_takes_effect(edited: Edited) -> None:
    """Kubernetes mounts a ConfigMap so: policy.yaml -> ..data/policy.yaml, ..data -> ..2026_01."""
    folder = edited.relay.folder

    def swap(version: str, count: int) -> None:
        (folder / version).mkdir()
        (folder / version / "policy.yaml").write_text(edited.text(count))
        (folder / "..data_tmp").symlink_to(version)
        (folder / "..data_tmp").rename(folder / "..data")

    swap("..2026_01", 2)
    edited.relay.policy_path.unlink()
    edited.relay.policy_path.symlink_to("..data/policy.yaml")
    with edited.relay as relay:
        edited.hand_over(4)
        edited.sink.wait_for(2)
        for version, count in (("..2026_02", 3), ("..2026_03", 4)):
            swap(version, count)
            edited.wait_for(count)
            edited.sink.wait_for(count)

        # Relative paths start where the link stands, so no key changed but the limit.
        assert not any("needs a restart" in line for line in relay.log())
        assert (folder / "spool" / "format").exists()


def test_a_bad_edit_changes_nothing_and_is_told_to_the_column(edited: Edited) -> None:
    with edited.relay as relay:
        bad = edited.text(9).replace('"messages": 9', '"mesages": 9')
        before, _, _ = bad.partition('"mesages"')
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        relay.policy_path.write_text(bad)

        place = f"{relay.policy_path}:{line}:{column}: upstreams.isp.limits[0].mesages: "
        told = relay.wait_for_log(
            lambda line: "error: policy refused, the last good one stays: " + place in line
        )
        assert "did you mean messages?" in told
        metrics = relay.metrics()
        assert metrics[GOOD] == 0
        assert metrics['relay_policy_reloads_total{result="refused"}'] == 1
        assert edited.limit() == 2
        status = relay.command("status")
        assert "the last edit of the policy was refused" in status.stdout
        assert relay.command("check").returncode == os.EX_CONFIG
        edited.hand_over(3)
        edited.sink.wait_for(2)

        relay.policy_path.write_text(edited.text(3))
        edited.wait_for(3)
        edited.sink.wait_for(3)


def test_an_edit_of_what_needs_a_restart_says_so_and_the_rest_of_it_counts(edited: Edited) -> None:
    with edited.relay as relay, smtp_sink() as other:
        edited.hand_over(1)
        edited.sink.wait_for(1)
        relay.policy |= {"hostname": "other.test", "spool": "./other"}
        edited.isp["port"] = other.port
        edited.isp["limits"][0]["messages"] = 9
        relay.write_policy()
        relay.wait_for_log(
            lambda line: (
                "warning" in line and line.endswith("needs a restart to take effect: spool, hostname")
            )
        )

        edited.wait_for(9)
        edited.hand_over(2)
        other.wait_for(2)
        with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
            assert session.ehlo()[1].startswith(b"relay.test\n")
        assert not (relay.folder / "other").exists()
        assert edited.sink.count == 1
