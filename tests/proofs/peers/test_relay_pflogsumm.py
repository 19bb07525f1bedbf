"""`--log postfix`, read by the real pflogsumm: its counts are what clients sent and the upstream took."""

import re
import smtplib
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.practice.witness import Witnessed
from tests.proofs.peers.demand import demand, find, missing_program
from tests.proofs.peers.practice import Practice
from tests.proofs.peers.relay import RelayProcess
from tests.proofs.peers.shapes import shape

pytestmark = pytest.mark.slow

SENDERS = {"ann@one.test": 3, "bob@two.test": 2}


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Practice]:
    with Practice(tmp_path, {"messages": 10_000, "per": "1s"}, seed=0) as practice:
        yield practice


def _send(port: int) -> None:
    """Five messages to one recipient, one of which a recipient bounces and one stays, and two refusals."""
    with smtplib.SMTP("127.0.0.1", port, timeout=60) as client:
        for sender, count in SENDERS.items():
            for number in range(count):
                client.sendmail(sender, ["r@list.test"], shape(10 * number), ["BODY=8BITMIME"])
        client.sendmail(
            "ann@one.test", ["s@list.test", "bad@list.test", "stay@list.test"], shape(0), ["BODY=8BITMIME"]
        )
        client.ehlo()
        assert client.docmd("MAIL FROM:<nobody>")[0] == 501
        client.mail("ann@one.test")
        assert client.rcpt("nobody")[0] == 501


def _totals(summary: str) -> dict[str, int]:
    """Return the grand totals by name, and the deferrals."""
    totals = {
        name: int(count) for count, name in re.findall(r"^ +([0-9]+) +([a-z/ ]*[a-z])", summary, re.MULTILINE)
    }
    deferrals = re.search(r"\(([0-9]+) +deferrals\)", summary)
    return totals | {"deferrals": int(deferrals[1]) if deferrals else 0}


def _sizes(summary: str, title: str) -> dict[str, int]:
    """Return one of the tables of addresses."""
    table = summary.partition(f"{title}\n")[2].partition("\n\n")[0]
    return {address: int(size) for size, address in re.findall(r"^ +([0-9]+)  +(\S+)$", table, re.MULTILINE)}


def test_pflogsumm_counts_what_was_sent_and_taken(tmp_path: Path, upstream: Practice) -> None:
    demand(missing_program("pflogsumm"))
    relay = RelayProcess(tmp_path, {"isp": upstream.upstream()})
    relay.start(RELAY_LOG="postfix")
    _send(relay.port)
    relay.wait_for_log(lambda line: "status=deferred" in line)
    # Done but for the one that stays, and that goes now; what bounced before is reported already.
    upstream.wait_until(lambda ledger: ledger.relayed >= sum(SENDERS.values()) + 2)
    assert relay.command("queue", "bounce", "ALL", "--yes").returncode == 0
    relay.wait_until_empty()
    assert relay.stop() == 0

    log = tmp_path / "maillog"
    log.write_text("\n".join(relay.log()) + "\n")
    ran = subprocess.run([str(find("pflogsumm")), str(log)], capture_output=True, text=True, check=True)
    totals = _totals(ran.stdout)
    taken: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    for seen in upstream.seen():
        if seen.entry.fate is Witnessed.RELAYED:
            size_bytes = seen.entry.size_bytes
            taken.update(dict.fromkeys(seen.entry.envelope.recipients, size_bytes))
            sent.update({seen.entry.envelope.reverse_path: size_bytes})
    report_bytes = sent.pop("")

    assert ran.stderr == ""
    assert (totals["received"], totals["delivered"]) == (6, 8), ran.stdout
    assert (totals["bounced"], totals["rejected"]) == (2, 2), ran.stdout
    assert totals["deferred"] == 1
    assert totals["deferrals"] == sum("status=deferred" in line for line in relay.log())
    assert totals["bytes received"] == sum(sent.values())
    assert totals["bytes delivered"] == sum(taken.values())
    assert report_bytes == taken["ann@one.test"]
    assert _sizes(ran.stdout, "Senders by message size") == dict(sent)
    assert _sizes(ran.stdout, "Recipients by message size") == dict(taken)
    assert _sizes(ran.stdout, "Messages with no size data") == {}
    assert "message-id=<20@front.test>" in log.read_text()
