"""The whole way of mail: Postfix hands over, the relay passes it on, a Postfix with TLS and SASL takes it."""

import email
import email.policy
import random
import re
import smtplib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.message import EmailMessage

import pytest

from relay.policy.model import SpoolEngine
from tests.proofs.peers import postfix
from tests.proofs.peers.demand import demand
from tests.proofs.peers.mailbox import Arrived
from tests.proofs.peers.postfix import Postfix
from tests.proofs.peers.relay import RelayProcess
from tests.proofs.peers.shapes import LINES
from tests.proofs.peers.waiting import wait_for_change

pytestmark = pytest.mark.slow

USER, PASSWORD = "mjd", "correct horse"
SENDER = "mjd@front.test"
MESSAGES = 1000
CLIENTS = 8

# A smarthost that knows who lives there: nobody@… is refused by Postfix's own words.
KNOWS_ITS_PEOPLE = {"virtual_mailbox_maps": "regexp:{ {!/^nobody@/ all/} }"}
# Postfix breaks lines longer than 998 octets unless it is told not to.
LEAVES_LINES = {"smtp_line_length_limit": "0"}

_RECEIVED = re.compile(rb"Received: .*\r\n(?:[ \t].*\r\n)*")


@dataclass(frozen=True)
class Chain:
    """The three, in the order of the mail; made once, since Postfix takes seconds to start."""

    front: Postfix
    relay: RelayProcess
    upstream: Postfix

    def until_all_are_empty(self) -> None:
        """Wait until none of the three has anything left to do."""
        for peer in (self.front, self.upstream):
            wait_for_change(lambda peer=peer: peer.queue() == [] or None, peer.home)  # type: ignore[misc]  # bound now
        self.relay.wait_until_empty()


@pytest.fixture(scope="module", params=SpoolEngine)
def _running(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Chain]:
    demand(postfix.why_missing())
    folder = tmp_path_factory.mktemp("relay")
    password = folder / "password"
    password.write_text(PASSWORD + "\n")
    password.chmod(0o600)
    with postfix.upstream(USER, PASSWORD, **KNOWS_ITS_PEOPLE) as upstream:
        isp = {
            "host": "localhost",
            "port": upstream.port,
            "tls": "starttls",
            "ca_file": str(upstream.certificate),
            "auth": {"user": USER, "password_file": "password"},
            "connections": 8,
            # Nothing here has to wait, but every message goes through the history.
            "limits": [{"messages": 1_000_000, "per": "1h"}, {"recipients": 3_000_000, "per": "24h"}],
        }
        with (
            RelayProcess(folder, {"isp": isp}, spool={"path": "./spool", "engine": request.param}) as relay,
            postfix.front(relay.port, **LEAVES_LINES) as front,
        ):
            yield Chain(front, relay, upstream)


@pytest.fixture
def chain(_running: Chain) -> Chain:
    """Return the three, empty."""
    _running.until_all_are_empty()
    for path in (_running.upstream.mailbox.folder / "new").iterdir():
        path.unlink()
    return _running


def _headers(number: int) -> bytes:
    return (
        f"From: <{SENDER}>\r\nTo: list@list.test\r\nDate: Sat, 1 Jan 2022 00:00:00 +0000\r\n"
        f"Message-Id: <{number}@front.test>\r\n"
    ).encode()


def _lines(dice: random.Random) -> Iterator[bytes]:
    """Yield lines of every kind that mail is made of, and some that it should not be."""
    kinds = [*LINES, b"y" * 5000, b".z" * 3000]
    while True:
        yield dice.choice(kinds)


def _content(number: int) -> bytes:
    """Return a message, the same for the same number: from no line of text to some 100 KiB."""
    dice = random.Random(number)
    size = 0 if number % 10 == 0 else int(10 ** dice.uniform(1, 4 if number % 100 else 5.3))
    text = _headers(number) + "Subject: grüße %d\r\n\r\n".encode() % number
    lines = _lines(dice)
    while size > 0:
        line = next(lines) + b"\r\n"
        text += line
        size -= len(line)
    return text


def _hand_over(port: int, numbers: Sequence[int], sent: dict[str, tuple[str, bytes]]) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=60) as session:
        for number in numbers:
            content = _content(number)
            recipients = [
                f"r{number}.{index}@list.test" for index in range(random.Random(number).randint(1, 3))
            ]
            sender = "" if number % 50 == 0 else f"bounces+{number}@front.test"
            session.sendmail(sender, recipients, content, mail_options=["BODY=8BITMIME"])
            sent |= dict.fromkeys(recipients, (sender, content))


def _without_trace(arrived: Arrived) -> bytes:
    """Return the content less what the relay and the front put on top of it: a header each."""
    ours = _RECEIVED.match(arrived.content)
    assert ours is not None, arrived.content[:300]
    assert b"by relay.test with " in ours[0]
    fronts = _RECEIVED.match(arrived.content, ours.end())
    assert fronts is not None, arrived.content[:600]
    assert b"by front.test (Postfix)" in fronts[0]
    return arrived.content[fronts.end() :]


def test_a_thousand_messages_arrive_once_each_byte_for_byte(chain: Chain) -> None:
    sent: dict[str, tuple[str, bytes]] = {}
    before = chain.relay.metrics()
    with ThreadPoolExecutor(CLIENTS) as clients:
        parts = [range(first, MESSAGES, CLIENTS) for first in range(CLIENTS)]
        list(clients.map(lambda part: _hand_over(chain.front.port, part, sent), parts))
    chain.upstream.mailbox.wait_for(len(sent), within_s=240)
    chain.until_all_are_empty()
    arrived, after = chain.upstream.mailbox.arrived(), chain.relay.metrics()

    assert Counter(each.recipient for each in arrived) == Counter(list(sent))
    wrong = [
        each.recipient
        for each in arrived
        if (each.reverse_path, _without_trace(each)) != sent[each.recipient]
    ]
    assert wrong == []
    assert all(b"with ESMTPSA" in each.received for each in arrived)
    assert len(sent) > MESSAGES
    fates = [f'relay_ledger_recipients_total{{fate="{fate}"}}' for fate in ("accepted", "relayed", "bounced")]
    assert [after[fate] - before[fate] for fate in fates] == [len(sent), len(sent), 0]


def test_an_unknown_recipient_is_reported_and_the_others_arrive(chain: Chain) -> None:
    recipients = ["ann@list.test", "nobody@list.test", "bob@list.test"]
    with smtplib.SMTP("127.0.0.1", chain.front.port, timeout=60) as session:
        session.sendmail(SENDER, recipients, _content(1), mail_options=["BODY=8BITMIME"])
    chain.upstream.mailbox.wait_for(3)
    chain.until_all_are_empty()
    arrived = {each.recipient: each for each in chain.upstream.mailbox.arrived()}

    assert len(chain.upstream.mailbox.arrived()) == 3
    assert set(arrived) == {"ann@list.test", "bob@list.test", SENDER}
    assert arrived[SENDER].reverse_path == ""
    report = email.message_from_bytes(arrived[SENDER].content, policy=email.policy.SMTP)
    assert isinstance(report, EmailMessage)
    assert report.get_content_type() == "multipart/report"
    assert report.get_param("report-type") == "delivery-status"
    assert report["Auto-Submitted"] == "auto-replied"
    _, statuses, returned = report.iter_parts()
    assert statuses.get_content_type() == "message/delivery-status"
    _, _of_message, of_recipient = statuses.walk()
    assert of_recipient["Final-Recipient"] == "rfc822; nobody@list.test"
    assert of_recipient["Action"] == "failed"
    assert of_recipient["Status"].startswith("5.1.1")
    assert "User unknown in virtual mailbox table" in of_recipient["Diagnostic-Code"]
    assert b"Message-Id: <1@front.test>" in bytes(returned)


def test_addresses_beyond_ascii_go_all_the_way(chain: Chain) -> None:
    recipients = ["grüße@list.test", "ann@bücher.test", "bob@list.test"]
    content = _content(1)
    with smtplib.SMTP("127.0.0.1", chain.front.port, timeout=60) as session:
        session.ehlo()
        options = ["BODY=8BITMIME", "SMTPUTF8"]
        session.sendmail("jürgen@front.test", recipients, content, mail_options=options)
    chain.upstream.mailbox.wait_for(len(recipients))
    chain.until_all_are_empty()
    arrived = chain.upstream.mailbox.arrived()

    assert {(each.reverse_path, each.recipient) for each in arrived} == {
        ("jürgen@front.test", recipient) for recipient in recipients
    }
    assert {_without_trace(each) for each in arrived} == {content}
    assert all(b"with UTF8SMTP" in each.content[:600] for each in arrived)
