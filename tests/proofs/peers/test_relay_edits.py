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

from tests.fakes.odd_files import ODD_FILES, remove
from tests.proofs.peers import smtp_tools
from tests.proofs.peers.demand import demand
from tests.proofs.peers.practice import Practice
from tests.proofs.peers.relay import RelayProcess
from tests.proofs.peers.smtp_tools import SmtpSink, smtp_sink
from tests.proofs.peers.waiting import wait_until

pytestmark = pytest.mark.slow

GOOD = "relay_policy_last_reload_successful"


def half_of(policy: dict[str, Any]) -> str:
    """Return a policy in lines, up to the limits of its upstream, which come last."""
    lines = [f"{key}: {json.dumps(value)}" for key, value in policy.items() if key != "upstreams"]
    isp = policy["upstreams"]["isp"]
    lines += ["upstreams:", "  isp:"]
    lines += [f"    {key}: {json.dumps(value)}" for key, value in isp.items() if key != "limits"]
    return "\n".join(lines) + "\n"


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

    def half(self) -> str:
        """Return the policy in lines, up to the limits of the upstream, which come last."""
        return half_of(self.relay.policy)

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
        self.relay.wait_for_log(lambda line: f"sha256 {digest} event=policy_loaded" in line)
        metrics = self.relay.metrics()
        assert self.limit() == count
        assert (metrics[f'relay_policy_info{{sha256="{digest}"}}'], metrics[GOOD]) == (1, 1)

    def wait_for_waiting(self, text: str, *words: str) -> None:
        """Wait until the relay tells that it rests with this text, and why; never that it goes by it."""
        digest = hashlib.sha256(text.encode()).hexdigest()
        told = self.relay.wait_for_log(lambda line: digest in line)
        assert "warning: policy" in told
        assert all(word in told for word in words), told
        wait_until(lambda: self.relay.metrics()["relay_policy_waiting"] == 1)
        assert json.loads(self.relay.get("/status.json"))["policy"]["sha256"] != digest

    def loads(self) -> int:
        """Return how many edits came into force."""
        return sum(line.endswith(" event=policy_loaded") for line in self.relay.log())

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


def test_every_way_to_save_a_policy_keeps_the_history(edited: Edited) -> None:
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


def test_an_edit_that_is_being_written_lets_nothing_more_go(edited: Edited) -> None:
    with edited.relay as relay:
        edited.hand_over(7)
        edited.sink.wait_for(2)
        half = edited.half()
        with relay.policy_path.open("w") as writer:
            writer.write(half)
            writer.flush()
            edited.wait_for_waiting(half, "upstreams.isp.limits", "has the file open for writing")
            # Its owner does not know either that the writer is not at its end.
            relay.reload()
            edited.hand_over(1)
            assert (edited.limit(), edited.sink.count) == (2, 2)
            edited.isp["limits"][0]["messages"] = 3
            writer.write(f"    limits: {json.dumps(edited.isp['limits'])}\n")
        edited.wait_for(3)
        edited.sink.wait_for(3)

        assert edited.sink.count == 3
        assert relay.metrics()["relay_policy_waiting"] == 0


@pytest.mark.parametrize("is_kept_open", [True, False])
def test_the_upstream_sees_no_half_of_an_edit(tmp_path: Path, *, is_kept_open: bool) -> None:
    """60 messages wait where 5 in 5 s are allowed, while the policy is written with a pause."""
    limits = [{"messages": 5, "per": "5s"}]
    with Practice(tmp_path, limits[0], seed=60) as host:
        relay = RelayProcess(tmp_path, {"isp": host.upstream(limits=limits)})
        half, other_half = half_of(relay.policy), f"    limits: {json.dumps(limits)}\n"
        whole = hashlib.sha256((half + other_half).encode()).hexdigest()
        with relay:
            with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
                for _ in range(60):
                    session.sendmail("mjd@front.test", ["r@list.test"], "Subject: x\r\n\r\nx\r\n")
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


def test_a_tighter_limit_counts_while_the_rest_of_its_edit_waits(edited: Edited) -> None:
    with edited.relay as relay:
        edited.hand_over(2)
        edited.sink.wait_for(2)
        limits = [{"messages": 3, "per": "1h"}, {"messages": 9, "per": "1m"}]
        whole = relay.policy["upstreams"] = {"isp": edited.isp | {"limits": limits}}
        whole["other"] = edited.isp | {"host": "b.example.net"}
        relay.write_policy()
        digest = hashlib.sha256(relay.policy_path.read_bytes()).hexdigest()
        relay.wait_for_log(lambda line: f"sha256 {digest} event=policy_loaded" in line)

        # One upstream gets a tighter limit, the other loses all of its own at the end of the file.
        edited.isp["limits"] = [{"messages": 3, "per": "2h"}]
        lines = half_of(relay.policy) + f"    limits: {json.dumps(edited.isp['limits'])}\n"
        relay.policy_path.write_text(lines + "  other:\n    host: b.example.net\n")
        relay.wait_for_log(lambda line: "; its tighter limits count already event=" in line)
        edited.hand_over(3)
        edited.sink.wait_for(3)
        wait_until(lambda: "3 messages per 7200s" in relay.get("/metrics"))
        assert edited.sink.count == 3


def test_limits_go_only_by_the_word_of_their_owner(edited: Edited) -> None:
    """A full disk leaves the first half of an edit for good, closed and at rest."""
    with edited.relay as relay:
        edited.hand_over(4)
        edited.sink.wait_for(2)
        relay.policy_path.write_text(half := edited.half())
        edited.wait_for_waiting(half, "upstreams.isp.limits is gone: write it (limits: [] for none)")
        assert "waits: upstreams.isp.limits is gone" in relay.command("status").stdout
        assert "has not applied the last edit yet: upstreams.isp.limits is gone" in _checked(relay)
        assert edited.sink.count == 2

        relay.policy_path.write_text(edited.text(1))
        edited.wait_for(1)
        assert "last edit" not in _checked(relay)
        relay.policy_path.write_text(half)
        edited.wait_for_waiting(half)
        relay.reload()
        edited.sink.wait_for(4)


def _checked(relay: RelayProcess) -> str:
    checked = relay.command("check")
    assert (checked.returncode, checked.stderr) == (os.EX_OK, "")
    return checked.stdout


def test_limits_that_are_gone_on_purpose_are_believed(edited: Edited) -> None:
    with edited.relay as relay:
        edited.hand_over(6)
        edited.sink.wait_for(2)
        relay.policy_path.write_text(edited.half() + "    limits: []\n")
        edited.sink.wait_for(6)

        edited.isp.pop("limits")
        relay.write_policy()
        digest = hashlib.sha256(relay.policy_path.read_bytes()).hexdigest()
        relay.wait_for_log(lambda line: f"sha256 {digest} event=policy_loaded" in line)


def test_a_policy_that_was_no_file_for_a_while_is_followed_again(edited: Edited) -> None:
    with edited.relay as relay:
        edited.hand_over(5)
        edited.sink.wait_for(2)
        away = relay.policy_path.with_suffix(".away")
        for count, make in enumerate((ODD_FILES["a FIFO"], ODD_FILES["a folder"], ODD_FILES["a device"]), 3):
            relay.policy_path.rename(away)
            make(relay.policy_path)
            _wait_for_words(relay, "Is a directory" if count == 4 else "it is not a regular file", count // 5)
            away.write_text(edited.text(count))
            remove(relay.policy_path)
            away.rename(relay.policy_path)
            edited.wait_for(count)
            edited.sink.wait_for(count)
            relay.reload()
        assert edited.sink.count == 5


def _wait_for_words(relay: RelayProcess, words: str, times_before: int) -> None:
    told = f"cannot read it: {words}"
    wait_until(lambda: sum(told in line for line in relay.log()) > times_before, within_s=30)


def test_a_bad_edit_changes_nothing_and_is_told_to_the_column(edited: Edited) -> None:
    with edited.relay as relay:
        bad = edited.text(9).replace('"messages": 9', '"mesages": 9')
        before, _, _ = bad.partition('"mesages"')
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        relay.policy_path.write_text(bad)

        place = f"{relay.policy_path}:{line}:{column}: upstreams.isp.limits[0].?: "
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


def test_the_log_names_each_edit_and_says_what_it_changed(edited: Edited) -> None:
    with edited.relay as relay:
        relay.policy_path.write_text(edited.text(20))
        edited.wait_for(20)
        relay.policy["upstreams"]["other"] = {"host": "b.example.net"}
        relay.policy_path.write_text(edited.text(40))
        edited.wait_for(40)
        relay.policy_path.write_text("spool: [")

        relay.wait_for_log(lambda line: line.endswith(" event=policy_refused"))
        first, second = (line for line in relay.log() if line.endswith(" event=policy_loaded"))
        assert "policy loaded: isp: 2 → 20 messages in any 1h; " in first
        assert (
            "policy loaded: isp: 20 → 40 messages in any 1h; + upstream: other, b.example.net port 587; "
            in second
        )


def _wait_for_refusals(relay: RelayProcess, count: int) -> None:
    wait_until(lambda: relay.metrics()['relay_policy_reloads_total{result="refused"}'] >= count)


def test_a_password_at_a_wrong_key_is_told_nowhere(edited: Edited) -> None:
    secret = "hunter2-Qz81"
    misplaced: list[dict[str, Any]] = [
        {"mechanism": secret},
        {"password_file": secret},
        {"password_env": secret.replace("-", "_")},
        {"password_credential": secret},
        {secret: 1},
    ]
    edits: list[dict[str, Any]] = [{"auth": {"user": "a", **each}} for each in misplaced]
    edits += [{"host": f"a:{secret}@b"}, {"ca_file": secret}, {secret: 1}]
    with edited.relay as relay:
        for count, edit in enumerate(edits, start=1):
            relay.policy["upstreams"] = {"isp": edited.isp, "other": {"host": "b.example.net", **edit}}
            relay.write_policy()
            relay.reload()
            _wait_for_refusals(relay, count)
            told = [relay.get(path) for path in ("/", "/status.json", "/metrics")]
            told += [relay.command("status", "--json").stdout, relay.command("check").stderr]
            assert "hunter2" not in "".join([*told, *relay.log()])
            assert "upstreams.other." in told[1]
        assert edited.limit() == 2


def test_an_edit_that_needs_a_restart_says_so_and_the_rest_counts(edited: Edited) -> None:
    with edited.relay as relay, smtp_sink() as other:
        edited.hand_over(1)
        edited.sink.wait_for(1)
        relay.policy |= {"hostname": "other.test", "spool": "./other"}
        edited.isp["port"] = other.port
        edited.isp["limits"][0]["messages"] = 9
        relay.write_policy()
        relay.wait_for_log(
            lambda line: (
                "warning" in line and "needs a restart to take effect: spool, hostname event=" in line
            )
        )

        edited.wait_for(9)
        edited.hand_over(2)
        other.wait_for(2)
        with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
            assert session.ehlo()[1].startswith(b"relay.test\n")
        assert not (relay.folder / "other").exists()
        assert edited.sink.count == 1
