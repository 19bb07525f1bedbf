"""One message with 10,000 recipients, killed again and again: who was marked is not sent to again."""

import itertools
import random
import shutil
import smtplib
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from relay.practice.witness import Witnessed
from tests.proofs.peers.feeder import SENDER, Letter
from tests.proofs.peers.kills import Kills, Verdict, judge, told_relayed_twice
from tests.proofs.peers.practice import Practice
from tests.proofs.peers.waiting import HANG_S, wait_until
from tests.proofs.peers.warm import Warm, WarmRelay

RECIPIENTS = 10_000
PER_TRANSACTION = 100
LATEST_REPLY_S = 0.03
MOST = 5_000
LIMIT = {"recipients": MOST, "per": "1s"}


@cache
def _letter(number: int) -> Letter:
    recipients = tuple(f"r{number}.{k}@list.test" for k in range(RECIPIENTS))
    return Letter(number, recipients, b"Subject: minutes\r\n\r\n.dots, and the rest\r\n")


def _kill_again_and_again(folder: Path, warm: Warm, *, seed: int, times: int) -> Verdict:
    """Relay the letter while the relay is killed so often; return what the upstream saw of it."""
    folder.mkdir()
    dice, kills = random.Random(seed), Kills()
    with Practice(folder, LIMIT, seed=seed, latest_reply_s=LATEST_REPLY_S, keep=folder / "kept") as host:
        relay = WarmRelay(
            warm, folder, {"isp": host.upstream(max_recipients=PER_TRANSACTION, limits=[LIMIT])}
        )
        relay.policy["listen"][0]["max_recipients"] = RECIPIENTS
        relay.write_policy()
        relay.start()
        with smtplib.SMTP("127.0.0.1", relay.port, timeout=HANG_S) as session:
            assert session.sendmail(SENDER, _letter(0).recipients, _letter(0).content) == {}
        for number in range(times):
            # Spread over the whole message, so that there is always something left to relay.
            enough = RECIPIENTS // PER_TRANSACTION * (number + dice.random()) // (times + 1)
            host.wait_until(lambda ledger, enough=enough: ledger.relayed >= enough)  # type: ignore[misc]  # bound now
            # Behind a dot, as far as we can tell: that is where a kill repeats a transaction.
            host.wait_until(lambda ledger: host.unanswered or ledger.relayed >= RECIPIENTS // PER_TRANSACTION)
            with kills.one():
                relay.kill_all()
            relay.start()
        relay.wait_until_empty()
        wait_until(lambda: host.unanswered == 0)
        assert relay.stop() == 0
        verdict = judge(host, kills, {0}, {0}, letter=_letter)
        sizes = [len(seen.entry.envelope.recipients) for seen in host.seen()]
    # A message is in one transaction at a time, so a kill can repeat that one and no other.
    verdict.assert_good(connections=1)
    assert verdict.duplicates <= times * PER_TRANSACTION
    assert max(sizes) == PER_TRANSACTION
    assert told_relayed_twice(relay.log()) == []
    assert host.ledger.most_in_any_window() <= MOST
    assert sum(seen.entry.fate is Witnessed.RELAYED for seen in host.seen()) == verdict.relayed
    return verdict


@pytest.mark.slow
def test_10_000_recipients_through_kills_get_one_copy_but_in_flight(
    tmp_path: Path, tell: Callable[[str], None]
) -> None:
    kills = 10
    with Warm() as warm:
        verdict = _kill_again_and_again(tmp_path / "relay", warm, seed=4, times=kills)
    tell(
        f"10,000 recipients, {PER_TRANSACTION} a transaction, {kills} SIGKILLs: 0 lost, "
        f"{verdict.duplicates} twice, at most {verdict.most_repeated} transaction a kill"
    )
    assert verdict.duplicates > 0, "no kill hit a transaction behind its dot"


@pytest.mark.crash
def test_ten_thousand_recipients_through_kills_for_hours(
    tmp_path: Path, tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    seeds, kills, duplicates = random.Random(crash_seed), 0, 0
    until_s = time.monotonic() + crash_budget_s / 8
    with Warm() as warm:
        for number in itertools.count(1):
            where = tmp_path / str(number)
            duplicates += _kill_again_and_again(where, warm, seed=seeds.getrandbits(32), times=25).duplicates
            kills += 25
            shutil.rmtree(where)
            if time.monotonic() > until_s:
                break
    tell(
        f"seed {crash_seed}: {number} messages with 10,000 recipients, {kills} SIGKILLs: 0 lost, "
        f"{duplicates} recipients twice"
    )
