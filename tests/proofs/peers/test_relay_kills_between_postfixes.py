"""The relay killed at random between two real Postfixes, which have their own way of not losing mail.

The one in front keeps what got no 250 and hands it over again, so here a message may come
twice into the relay too; both reasons for a copy too many are told apart by the relay's
own id in its `Received:` line, and each has its bound.
"""

import random
import re
import smtplib
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.proofs.peers import postfix
from tests.proofs.peers.demand import demand
from tests.proofs.peers.feeder import SENDER, letter
from tests.proofs.peers.kills import told_relayed_twice
from tests.proofs.peers.mailbox import Arrived
from tests.proofs.peers.postfix import Postfix
from tests.proofs.peers.waiting import wait_for_change
from tests.proofs.peers.warm import Warm, WarmRelay

pytestmark = pytest.mark.slow

USER, PASSWORD = "mjd", "correct horse"
MESSAGES = 120
KILLS = 6
CONNECTIONS = 4
SESSIONS = 4
REFUSES_THIRD = {"virtual_mailbox_maps": r"regexp:{ {!/^r[0-9]+\.2@/ all/} }"}
"""Each letter's third recipient, if it has one, is unknown upstream."""
IMPATIENT = {
    "minimal_backoff_time": "1s",
    "maximal_backoff_time": "1s",
    "queue_run_delay": "1s",
    # A transport of which one process ended badly is left alone for a minute by default.
    "transport_retry_time": "1s",
    "default_destination_concurrency_limit": str(SESSIONS),
    # A relay that is away for an instant is no reason to give up on it.
    "default_destination_concurrency_failed_cohort_limit": "100",
    # Byte for byte: no headers of its own but Received:.
    "local_header_rewrite_clients": "",
}

_OURS = re.compile(rb"Received: from .*\r\n\tby relay\.test with \S+ id (\S+?);?\r\n(?:[ \t].*\r\n)*")
_FRONTS = re.compile(rb"Received: from .*\r\n\tby front\.test \(Postfix\).*\r\n(?:[ \t].*\r\n)*")


def _until_empty(front: Postfix, relay: WarmRelay, upstream: Postfix) -> None:
    wait_for_change(lambda: front.queue() == [] or None, front.home)
    relay.wait_until_empty()
    wait_for_change(lambda: upstream.queue() == [] or None, upstream.home)


def _of_letter(arrived: Arrived) -> tuple[int, bytes]:
    """Return the number of the letter that arrived and the relay's id of it; fails if a byte is wrong."""
    ours = _OURS.match(arrived.content)
    assert ours is not None, arrived.content[:400]
    fronts = _FRONTS.match(arrived.content, ours.end())
    assert fronts is not None, arrived.content[:800]
    number = int(arrived.recipient[1:].partition(".")[0])
    assert (arrived.reverse_path, arrived.content[fronts.end() :]) == (SENDER, letter(number).content)
    return number, ours[1]


def _copies_too_many(ids: Mapping[str, list[bytes]]) -> tuple[set[bytes], set[bytes]]:
    """Return ids of what the relay sent twice, and of what it got twice."""
    sent_twice = {each for of_one in ids.values() for each in of_one if of_one.count(each) > 1}
    got_twice = {each for of_one in ids.values() for each in set(of_one) - {of_one[0]}}
    return sent_twice, got_twice


def test_kills_between_two_postfixes_lose_neither_mail_nor_reports(
    tmp_path: Path, tell: Callable[[str], None]
) -> None:
    demand(postfix.why_missing())
    dice = random.Random(7)
    password = tmp_path / "password"
    password.write_text(PASSWORD + "\n")
    password.chmod(0o600)
    with postfix.upstream(USER, PASSWORD, **REFUSES_THIRD) as upstream, Warm() as warm:
        isp = {
            "host": "localhost",
            "port": upstream.port,
            "tls": "starttls",
            "ca_file": str(upstream.certificate),
            "auth": {"user": USER, "password_file": "password"},
            "connections": CONNECTIONS,
            "limits": [{"messages": 60, "per": "1s"}],
        }
        # Every third letter is refused in part, and all of their reports are waited for.
        relay = WarmRelay(warm, tmp_path, {"isp": isp}, reports={"per_hour": None})
        with relay, postfix.front(relay.port, **IMPATIENT) as front:
            share = MESSAGES // KILLS
            for first in range(0, MESSAGES, share):
                with smtplib.SMTP("127.0.0.1", front.port, timeout=60) as session:
                    for sent in map(letter, range(first, first + share)):
                        session.sendmail(SENDER, sent.recipients, sent.content, ["BODY=8BITMIME"])
                upstream.mailbox.wait_for(first + dice.randint(1, share))
                relay.kill_all()
                relay.start()
                # Nothing that it deferred meanwhile is for later.
                front.flush()
            _until_empty(front, relay, upstream)
            arrived = upstream.mailbox.arrived()
            log = relay.log()

    reports = [each.content for each in arrived if each.recipient == SENDER]
    ids: dict[str, list[bytes]] = defaultdict(list)
    for each in arrived:
        if each.recipient != SENDER:
            ids[each.recipient].append(_of_letter(each)[1])
    written = {recipient for number in range(MESSAGES) for recipient in letter(number).recipients}
    refused = {recipient for recipient in written if recipient.partition(".")[2].startswith("2@")}
    assert set(ids) == written - refused
    told = [recipient for recipient in refused if any(_is_about(report, recipient) for report in reports)]
    assert set(told) == refused
    sent_twice, got_twice = _copies_too_many(ids)
    assert len(sent_twice) <= KILLS * CONNECTIONS
    assert len(got_twice) <= KILLS * SESSIONS
    assert len(reports) <= len(refused) + KILLS * (CONNECTIONS + SESSIONS)
    assert told_relayed_twice(log) == []
    tell(
        f"between two Postfixes: {KILLS} SIGKILLs, {MESSAGES} messages, {len(refused)} refused and reported: "
        f"0 lost, 0 corrupt, {len(sent_twice)} sent twice, {len(got_twice)} handed over twice"
    )


def _is_about(report: bytes, recipient: str) -> bool:
    return f"Final-Recipient: rfc822; {recipient}".encode() in report
