"""The whole way of mail: from a Postfix to the relay, and on to a Postfix with TLS and SASL.

One chain serves all tests.  Mail to deaf.test goes to the same upstream from another source address, to which
the upstream offers no DSN.  All addresses, also the sender's, share one maildir: there reports arrive.
"""

import email
import email.policy
import re
import smtplib
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import EmailMessage

import pytest

from tests.system import postfix
from tests.system.demand import demand
from tests.system.postfix import Arrived, Postfix
from tests.system.relay import RelayProcess
from tests.system.shapes import shape
from tests.system.waiting import wait_until

USER, PASSWORD = "mjd", "correct horse"
SENDER = "mjd@front.test"
LIST, DEAF = "list.test", "deaf.test"
DEAF_ADDRESS = "127.0.0.5"
UPSTREAM = {
    # Postfix refuses nobody@… as an unknown user, in its own words.
    "virtual_mailbox_maps": "regexp:{ {!/^nobody@/ all/} }",
    "smtpd_discard_ehlo_keyword_address_maps": f"inline:{{ {{ {DEAF_ADDRESS} = dsn, silent-discard }} }}",
}
FRONT = postfix.TRIES_SOON | {
    # Postfix breaks lines longer than 998 octets unless it is told not to.
    "smtp_line_length_limit": "0",
    # Mail passes byte for byte: Postfix adds no field but Received:.
    "local_header_rewrite_clients": "",
}
MINUTES = b"From: <mjd@front.test>\nSubject: minutes\nMessage-Id: <1@front.test>\n\nAll agreed.\n"

CONTENT = shape(1) + b"y" * 5000 + b"\r\n" + b".z" * 3000 + b"\r\n"
"""It has lines longer than RFC 5322 allows."""

_OURS = re.compile(rb"Received: from .*\r\n\tby relay\.test with \S+ id \S+\r\n(?:[ \t].*\r\n)*")
_FRONTS = re.compile(rb"Received: .*\r\n\t?.*by front\.test \(Postfix.*\r\n(?:[ \t].*\r\n)*")


@dataclass(frozen=True)
class Chain:
    """The three servers in the order of the mail; started once, since Postfix takes seconds to start."""

    front: Postfix
    relay: RelayProcess
    upstream: Postfix

    def until_all_are_empty(self) -> None:
        wait_until(lambda: self.front.queue() == [])
        self.relay.wait_until_empty()
        wait_until(lambda: self.upstream.queue() == [])

    def settled(self, count: int) -> list[Arrived]:
        """Return what arrived once all queues are empty; fail unless that is `count` messages."""
        self.upstream.mailbox.wait_for(count)
        self.until_all_are_empty()
        arrived = self.upstream.mailbox.arrived()
        assert len(arrived) == count, [each.content.decode() for each in arrived]
        return arrived

    def submit(self, *arguments: str) -> None:
        self.front.run("sendmail", "-i", "-f", SENDER, *arguments, stdin=MINUTES)


@pytest.fixture(scope="module")
def _running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    demand(postfix.why_missing())
    folder = tmp_path_factory.mktemp("relay")
    password = folder / "password"
    password.write_text(PASSWORD + "\n")
    password.chmod(0o600)
    with (
        postfix.passwords({USER: PASSWORD}, "cram-md5") as checker,
        postfix.smarthost(**UPSTREAM, **checker) as upstream,
    ):
        isp = {
            "host": "localhost",
            "port": upstream.port,
            "tls": "starttls",
            "ca_file": str(upstream.certificate),
            "auth": {"user": USER, "password_file": "password"},
            # No message has to wait for these limits, but each one goes through the history.
            "limits": [{"messages": 1_000_000, "per": "1h"}, {"recipients": 3_000_000, "per": "24h"}],
            "shield": None,
        }
        deaf = isp | {"source_address": DEAF_ADDRESS, "history": "./deaf.history"}
        routes = [{"recipient_domain": DEAF, "upstreams": ["deaf"]}, {"upstreams": ["isp"]}]
        relay = RelayProcess(
            folder, {"isp": isp, "deaf": deaf}, routes=routes, reports={"upstreams": ["isp"]}
        )
        with relay, postfix.front(relay.port, **FRONT) as front:
            yield Chain(front, relay, upstream)


@pytest.fixture
def chain(_running: Chain) -> Chain:
    _running.until_all_are_empty()
    for path in (_running.upstream.mailbox.folder / "new").iterdir():
        path.unlink()
    return _running


def _written(arrived: Arrived) -> bytes:
    """Return the content without the Received: fields of the relay and of the front."""
    ours = _OURS.match(arrived.content)
    assert ours is not None, arrived.content[:400]
    fronts = _FRONTS.match(arrived.content, ours.end())
    assert fronts is not None, arrived.content[:800]
    return arrived.content[fronts.end() :]


def test_an_unknown_recipient_is_reported_and_the_others_arrive(chain: Chain) -> None:
    recipients = [f"ann@{LIST}", f"nobody@{LIST}", f"bob@{LIST}"]
    with smtplib.SMTP("127.0.0.1", chain.front.port, timeout=60) as session:
        session.sendmail(SENDER, recipients, CONTENT, mail_options=["BODY=8BITMIME"])
    arrived = {each.recipient: each for each in chain.settled(3)}

    assert set(arrived) == {f"ann@{LIST}", f"bob@{LIST}", SENDER}
    assert arrived[SENDER].reverse_path == ""
    report, (_, of_recipient) = _read(arrived[SENDER])
    assert report.get_param("report-type") == "delivery-status"
    assert report["Auto-Submitted"] == "auto-replied"
    _, _, returned = report.iter_parts()
    assert of_recipient["Final-Recipient"] == f"rfc822; nobody@{LIST}"
    assert (of_recipient["Action"], of_recipient["Status"][:5]) == ("failed", "5.1.1")
    assert "User unknown in virtual mailbox table" in of_recipient["Diagnostic-Code"]
    assert b"Message-Id: <1@front.test>" in bytes(returned)


def test_addresses_beyond_ascii_arrive_unchanged(chain: Chain) -> None:
    recipients = ["grüße@list.test", "ann@bücher.test", "bob@list.test"]
    with smtplib.SMTP("127.0.0.1", chain.front.port, timeout=60) as session:
        session.ehlo()
        options = ["BODY=8BITMIME", "SMTPUTF8"]
        session.sendmail("jürgen@front.test", recipients, CONTENT, mail_options=options)
    arrived = chain.settled(3)

    assert {each.recipient for each in arrived} == set(recipients)
    assert {(each.reverse_path, _written(each)) for each in arrived} == {("jürgen@front.test", CONTENT)}
    assert all(b"with UTF8SMTP" in each.content[:600] for each in arrived)


def _read(report: Arrived) -> tuple[EmailMessage, list[dict[str, str]]]:
    """Return a report, and the fields of each block of its status: of the message, then of recipients."""
    found = email.message_from_bytes(report.content, policy=email.policy.SMTP)
    assert isinstance(found, EmailMessage)
    assert found.get_content_type() == "multipart/report"
    (status,) = (part for part in found.walk() if part.get_content_type() == "message/delivery-status")
    blocks = [block for block in status.walk() if block is not status]
    return found, [{name: " ".join(str(value).split()) for name, value in block.items()} for block in blocks]


@pytest.mark.parametrize(("domain", "reporter"), [(LIST, "upstream.test"), (DEAF, "relay.test")])
def test_success_is_reported_by_the_upstream_or_by_the_relay_if_that_offers_no_dsn(
    chain: Chain, domain: str, reporter: str
) -> None:
    chain.submit("-N", "success,failure", "-V", "batch 7+1", "-R", "hdrs", "--", f"ann@{domain}")
    (report,) = (each for each in chain.settled(2) if each.reverse_path == "")

    _, (of_message, of_ann) = _read(report)
    assert of_message["Reporting-MTA"] == f"dns; {reporter}"
    assert of_message["Original-Envelope-Id"] == "batch 7+1"
    assert of_ann["Original-Recipient"].replace(" ", "") == f"rfc822;ann@{domain}"
    assert of_ann["Action"] == ("delivered" if domain == LIST else "relayed")
