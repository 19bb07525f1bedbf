"""The policy of a relay that runs, edited in every way that files get edited."""

import contextlib
import hashlib
import json
import os
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


def half_of(policy: dict[str, Any]) -> str:
    """Return a policy in lines, up to the limits of its upstream, which come last."""
    lines = [f"{key}: {json.dumps(value)}" for key, value in policy.items() if key != "upstreams"]
    isp = policy["upstreams"]["isp"]
    lines += ["upstreams:", "  isp:"]
    lines += [f"    {key}: {json.dumps(value)}" for key, value in isp.items() if key != "limits"]
    return "\n".join(lines) + "\n"


class Edited:
    """A relay with one limit of 2 messages an hour, that tells which policy it lives by."""

    def __init__(self, relay: WarmRelay, host: StrictSmarthost) -> None:
        self.relay = relay
        self.host = host
        self.isp: dict[str, Any] = relay.policy["upstreams"]["isp"]

    def text(self, count: int) -> str:
        """Return the policy with this N, as JSON."""
        self.isp["limits"][0]["messages"] = count
        return json.dumps(self.relay.policy, indent=1) + "\n"

    def until_it_counts(self, count: int) -> None:
        """Wait until the relay goes by this N, says so everywhere, and so many messages went."""
        digest = hashlib.sha256(self.relay.policy_path.read_bytes()).hexdigest()
        self.relay.wait_for_log(lambda line: f"sha256 {digest} event=policy_loaded" in line)
        metrics = self.relay.metrics()
        slots = [value for name, value in metrics.items() if name.startswith("relay_limit_slots{")]
        assert slots == [count]
        assert (metrics[f'relay_policy_info{{sha256="{digest}"}}'], metrics[GOOD]) == (1, 1)
        self.host.wait_until(lambda ledger: ledger.relayed == count)

    def hand_over(self, count: int) -> None:
        """Hand over so many messages."""
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


@pytest.mark.parametrize("is_kept_open", [True, False])
def test_the_upstream_sees_no_half_of_an_edit(tmp_path: Path, *, is_kept_open: bool) -> None:
    """30 messages wait where 5 in 2 s are allowed, while the policy is written with a pause."""
    limits = [{"messages": 5, "per": "2s"}]
    with StrictSmarthost(tmp_path, limits[0], seed=60) as host:
        relay = WarmRelay(tmp_path, {"isp": host.upstream(limits=limits)})
        half, other_half = half_of(relay.policy), f"    limits: {json.dumps(limits)}\n"
        whole = hashlib.sha256((half + other_half).encode()).hexdigest()
        with relay:
            hand_over(relay, 30)
            host.wait_until(lambda ledger: ledger.relayed == 5)
            with contextlib.ExitStack() as closed:
                writer = closed.enter_context(relay.policy_path.open("w"))
                writer.write(half)
                writer.flush()
                if not is_kept_open:
                    closed.close()
                # A pause of two windows.
                host.wait_until(lambda ledger: ledger.relayed + ledger.refused >= 15)
                if not is_kept_open:
                    writer = closed.enter_context(relay.policy_path.open("a"))
                writer.write(other_half)
            relay.wait_for_log(lambda line: whole in line)
            host.wait_until(lambda ledger: ledger.relayed + ledger.refused >= 20)

    assert host.ledger.most_in_any_window() == 5
    assert (host.ledger.refused, host.ledger.cut_offs) == (0, 0)


def test_a_file_that_ends_before_its_limits_is_no_policy(edited: Edited) -> None:
    """A full disk leaves the first half of an edit for good, closed and at rest."""
    with edited.relay as relay:
        edited.hand_over(6)
        edited.host.wait_until(lambda ledger: ledger.relayed == 2)
        relay.policy_path.write_text(half_of(relay.policy))
        relay.wait_for_log(lambda line: "upstreams.isp.limits: this key is required" in line)
        assert edited.host.ledger.relayed == 2

        relay.policy_path.write_text(half_of(relay.policy) + "    limits: []\n")
        edited.host.wait_until(lambda ledger: ledger.relayed == 6)


def test_a_bad_edit_changes_nothing_and_is_told_to_the_column(edited: Edited) -> None:
    with edited.relay as relay:
        bad = edited.text(9).replace('"messages": 9', '"mesages": 9')
        before, _, _ = bad.partition('"mesages"')
        place = f"{relay.policy_path}:{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}: "
        relay.policy_path.write_text(bad)

        told = relay.wait_for_log(lambda line: f"policy refused, the last good one stays: {place}" in line)
        assert "did you mean messages?" in told
        metrics = relay.metrics()
        assert (metrics[GOOD], metrics['relay_policy_reloads_total{result="refused"}']) == (0, 1)
        assert "the last edit of the policy was refused" in relay.command("status").stdout
        assert relay.command("check").returncode == os.EX_CONFIG
        edited.hand_over(4)
        edited.host.wait_until(lambda ledger: ledger.relayed == 2)

        relay.policy_path.write_text(edited.text(3))
        edited.until_it_counts(3)
        assert any("+ upstreams.isp.limits: {messages: 3, per: 1h}" in line for line in relay.log())


def test_a_password_at_a_wrong_key_is_told_nowhere(edited: Edited) -> None:
    secret = "hunter2-Qz81"
    misplaced: list[dict[str, Any]] = [{"mechanism": secret}, {"password_file": secret}, {secret: 1}]
    edits: list[dict[str, Any]] = [{"auth": {"user": "a", **each}} for each in misplaced]
    edits += [{"host": f"a:{secret}@b"}, {"ca_file": secret}, {secret: 1}]
    refused = 'relay_policy_reloads_total{result="refused"}'
    with edited.relay as relay:
        for count, edit in enumerate(edits, start=1):
            relay.policy["upstreams"] = {
                "isp": edited.isp,
                "other": {"host": "b.example.net", "limits": [], **edit},
            }
            relay.write_policy()
            relay.reload()
            wait_until(lambda count=count: relay.metrics()[refused] >= count)  # type: ignore[misc]  # bound now
            told = [relay.get(path) for path in ("/", "/status.json", "/metrics")]
            told += [relay.command("status", "--json").stdout, relay.command("check").stderr]
            assert "hunter2" not in "".join([*told, *relay.log()])
            assert "upstreams.other." in told[1]


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
