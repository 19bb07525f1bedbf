"""The night of the article with real programs; an hour is two seconds (hours: tests/unit/sender)."""

import re
import smtplib
from pathlib import Path

import pytest

from relay.policy.limits import LimitSettings
from relay.practice.witness import Witnessed
from tests.proofs.peers.practice import Practice
from tests.proofs.peers.relay import RelayProcess

pytestmark = pytest.mark.slow

HOUR = "2s"
SUBSCRIBERS = [f"r{number}@list.test" for number in range(500)]
BEFORE, AFTER = ({"recipients": count, "per": HOUR} for count in (100, 50))
NAMED = "the upstream says 50; suggested 50 event="
# The upstream says nothing of how long; an owner may.
WAIT = {"phase": "eod", "text": "exceeded your sending limit", "verdict": "pause", "wait": HOUR}


def test_an_isp_that_halves_its_limit_mid_list_bounces_nobody(
    tmp_path: Path,
) -> None:
    with Practice(tmp_path, BEFORE, seed=5, cut_off_s=2) as host:
        isp = host.upstream(connections=4, limits=[BEFORE], verdicts=[WAIT])
        relay = RelayProcess(tmp_path, {"isp": isp})
        with relay:
            with smtplib.SMTP("127.0.0.1", relay.port) as session:
                for subscriber in SUBSCRIBERS:
                    session.sendmail("list-bounces@front.test", [subscriber], "Subject: x\r\n\r\nx\r\n")
            host.wait_until(lambda ledger: ledger.relayed >= 200)
            host.ledger.limit = LimitSettings.model_validate(AFTER)

            told = relay.wait_for_log(lambda line: "warning: upstream isp paused until " in line)
            assert "550 5.7.1 You have exceeded your sending limit" in told
            advice = relay.wait_for_log(lambda line: "warning: upstream isp: cut off " in line)
            assert re.search(f"policy says 100 per .*; {NAMED}", advice), advice
            isp["limits"] = [AFTER]
            relay.write_policy()
            relay.wait_until_empty()

    relayed = [entry for entry in host.ledger.entries if entry.fate is Witnessed.RELAYED]
    assert {entry.envelope.reverse_path for entry in relayed} == {"list-bounces@front.test"}
    assert sorted(entry.envelope.recipients[0] for entry in relayed) == sorted(SUBSCRIBERS)
    assert host.ledger.cut_offs == 1
    assert not any("status=bounced" in line for line in relay.log())
