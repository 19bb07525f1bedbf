"""A relay at work whose mail fails, waits, or is too much: what its senders hear, and what it learns."""

import asyncio
import json
import smtplib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from relay.practice.witness import Witnessed
from tests.fakes.smarthost import Script, Smarthost, Turn, turns
from tests.proofs.peers.practice import Practice
from tests.proofs.peers.relay import RelayProcess
from tests.proofs.peers.waiting import wait_until

pytestmark = pytest.mark.slow

CONTENT = "Subject: x\r\n\r\nx\r\n"
README = Path(__file__).parents[3] / "README.md"
SEED = 7


def send(relay: RelayProcess, *recipients: str) -> None:
    """Hand over a message to each."""
    with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
        for recipient in recipients:
            session.sendmail("mjd@front.test", [recipient], CONTENT)


def queued(relay: RelayProcess, state: str) -> int:
    return int(relay.metrics()[f'relay_queue_messages{{state="{state}"}}'])


async def beside(host: Smarthost, act: Callable[[Smarthost], None]) -> None:
    """Do something that waits, while the smarthost runs."""
    async with host:
        await asyncio.to_thread(act, host)


async def test_reports_that_wait_and_their_cap_survive_kills(tmp_path: Path) -> None:
    def nobody(argument: str) -> str:
        return "550 5.1.1 no such user" if "gone" in argument else "250 ok"

    def act(host: Smarthost) -> None:
        upstream = {"host": "127.0.0.1", "port": host.port, "tls": "none", "shield": None}
        relay = RelayProcess(tmp_path, {"isp": upstream}, reports={"per_hour": 3})

        def reported() -> set[bytes]:
            told = [r.content for r in host.relayed if r.reverse_path == ""]
            return {n for n in (b"gone%d@" % number for number in range(10)) if any(n in t for t in told)}

        for number in range(5):
            relay.start()
            send(relay, f"gone{2 * number}@there.test", f"gone{2 * number + 1}@there.test")
            if number:
                # Something waits from here on, wherever the kill comes.
                wait_until(lambda: queued(relay, "reporting"))
            relay.kill()
        with relay:
            wait_until(
                lambda: queued(relay, "waiting") + queued(relay, "active") + queued(relay, "deferred") == 0
            )
            assert len(reported()) <= 3
            # A kill may waste a slot, and loses no report.
            wait_until(lambda: queued(relay, "reporting") + len(reported()) == 10)

            relay.policy["reports"] = {"per_hour": None}
            relay.write_policy()
            relay.wait_until_empty()
            assert len(reported()) == 10
            assert relay.metrics()["relay_ledger_imbalance_recipients"] == 0

    await beside(Smarthost(Script(rcpt=nobody)), act)


async def test_the_daemon_warns_of_what_waits_for_a_window(tmp_path: Path) -> None:
    def act(host: Smarthost) -> None:
        upstream = {"host": "127.0.0.1", "port": host.port, "tls": "none"}
        upstream["limits"] = [{"messages": 1, "per": "1h"}]
        retry = {"min": "1s", "max": "2s", "lifetime": "5d", "warn_after": "2s"}
        with RelayProcess(tmp_path, {"isp": upstream}, retry=retry) as relay:
            send(relay, "first@there.test", "second@there.test")
            relay.wait_for_log(lambda line: "sender delay notification" in line)

            relay.policy["upstreams"]["isp"].pop("limits")
            relay.write_policy()
            relay.wait_until_empty()
        told = [r.content for r in host.relayed if r.reverse_path == ""]
        assert len(told) == 1
        assert b"second@there.test" in told[0]
        assert b"Action: delayed" in told[0]

    await beside(Smarthost(Script()), act)


def test_a_bounce_is_reported_while_another_recipient_is_deferred(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    with Practice(tmp_path, {"messages": 1000, "per": "1s"}, seed=SEED, keep=kept) as host:
        retry = {"min": "1h", "max": "2h", "lifetime": "5d"}
        with RelayProcess(tmp_path, {"isp": host.upstream()}, retry=retry) as relay:
            with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
                session.sendmail(
                    "mjd@front.test", ["bad1@there.test", "stay@there.test", "bad2@there.test"], CONTENT
                )
            # The report is the only transaction that comes to its dot; its next attempt is an hour away.
            host.wait_until(lambda ledger: ledger.relayed == 1)
            (line,) = relay.command("queue", "--json").stdout.splitlines()
            assert json.loads(line)["recipients_left"] == 1
            relay.kill()
        with relay:
            (line,) = relay.command("queue", "--json").stdout.splitlines()
            assert json.loads(line)["recipients"] == ["stay@there.test"]
            assert relay.metrics()["relay_ledger_imbalance_recipients"] == 0
            assert host.ledger.relayed == 1, "it was reported once"

        (seen,) = [seen for seen in host.seen() if seen.entry.fate is Witnessed.RELAYED]
        report = host.content_of(seen)
        assert seen.entry.envelope.reverse_path == ""
        assert report.count(b"Action: failed") == 2
        assert b"bad1@there.test" in report
        assert b"bad2@there.test" in report
        assert b"stay@there.test" not in report.partition(b"text/rfc822-headers")[0]


def test_a_limit_set_too_high_is_found_and_kept_to(tmp_path: Path, tell: Callable[[str], None]) -> None:
    with Practice(tmp_path, {"messages": 20, "per": "2s"}, seed=SEED) as host:
        limits = [{"messages": 30, "per": "2s"}]
        wait = {"phase": "eod", "text": "exceeded your sending limit", "verdict": "pause", "wait": "3s"}
        upstream = host.upstream(connections=1, limits=limits, guard="1s", adapt="tighten", verdicts=[wait])
        relay = RelayProcess(tmp_path, {"isp": upstream})
        with relay:
            send(relay, *(f"r{number}@there.test" for number in range(60)))
            found = relay.wait_for_log(lambda line: "cut off after" in line)
            relay.wait_for_log(lambda line: "effective" in line and "of 30 messages" in line)
            refused = host.ledger.refused
            relay.kill()
        with relay:
            relay.wait_until_empty(within_s=120)
            status = json.loads(relay.command("status", "--json").stdout)

        (limit,) = status["upstreams"][0]["limits"]
        assert 15 <= limit["count"] <= 20 < limit["policy_count"] == 30
        assert status["upstreams"][0]["findings"]
        assert host.ledger.relayed == 60
        tell(
            f"{found.partition('isp: ')[2]}: then {limit['count']}, {host.ledger.refused - refused} refusals"
        )


@pytest.mark.parametrize("account", [0, 1], ids=["gmail", "m365"])
async def test_reports_leave_as_the_accounts_of_readme_let_them(tmp_path: Path, account: int) -> None:
    """The account sends only as itself; of Microsoft 365 not even from `<>`."""
    example = yaml.safe_load(README.read_text().split("```yaml\n")[1 + account].partition("```")[0])
    itself = example["upstreams"]["m365" if account else "gmail"]["auth"]["user"]

    def mail(argument: str) -> Turn:
        return "550 5.2.252 SendAsDenied" if account and argument.startswith("FROM:<>") else "250 ok"

    def act(local: Smarthost) -> None:
        ports = {name: local.port if name == "local" else host.port for name in example["upstreams"]}
        upstreams = {
            name: {"host": "127.0.0.1", "port": port, "tls": "none", "shield": None, "history": name}
            for name, port in ports.items()
        }
        relay = RelayProcess(tmp_path, upstreams, reports=example["reports"])
        with relay:
            send(relay, "gone@there.test")
            relay.wait_until_empty()
            assert relay.metrics()["relay_reports_dropped_total"] == 0
        ((report,), other) = (local.relayed, host.relayed) if account else (host.relayed, local.relayed)
        assert (report.reverse_path, other) == ("", [])
        assert f"<{example['reports']['from']}>" in report.content.decode().partition("\r\nTo:")[0]
        assert account or example["reports"]["from"] == itself

    host = Smarthost(Script(mail=mail, rcpt=lambda to: "550 5.1.1 who?" if "gone" in to else "250 ok"))
    async with host:
        await beside(Smarthost(), act)


async def test_a_report_that_no_upstream_takes_is_an_error(tmp_path: Path) -> None:
    def act(host: Smarthost) -> None:
        upstream = {"host": "127.0.0.1", "port": host.port, "tls": "none", "shield": None}
        with RelayProcess(tmp_path, {"isp": upstream}, hostname="inside") as relay:
            relay.wait_for_log(lambda line: "this host is called inside, without a domain" in line)
            send(relay, "gone@there.test")
            relay.wait_until_empty()
            assert relay.metrics()["relay_reports_dropped_total"] == 1
            relay.wait_for_log(lambda line: "a report to mjd@front.test could not be relayed" in line)

    await beside(Smarthost(Script(rcpt=turns(*["550 5.1.1 who?"] * 10))), act)
