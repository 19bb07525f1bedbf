"""DSN between two Postfixes: what sendmail -N asks for is told behind us, or by us where nobody else does.

The upstream has every address, also the sender's, in one maildir: there its own reports arrive, and ours.
"""

import email
import email.policy
import re
import smtplib
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from pathlib import Path

import pytest
from flufl.bounce import all_failures

from tests.proofs.peers import postfix
from tests.proofs.peers.demand import demand
from tests.proofs.peers.mailbox import Arrived
from tests.proofs.peers.postfix import Postfix
from tests.proofs.peers.relay import RelayProcess
from tests.proofs.peers.test_relay_between_postfixes import KNOWS_ITS_PEOPLE, PASSWORD, SENDER, USER, Chain

pytestmark = pytest.mark.slow

CONTENT = b"From: <mjd@front.test>\nSubject: minutes\nMessage-Id: <1@front.test>\n\nAll agreed.\n"
DEAF_TO_DSN = {"smtpd_discard_ehlo_keywords": "dsn, silent-discard"}


@contextmanager
def _chain(folder: Path, **settings: str) -> Iterator[Chain]:
    demand(postfix.why_missing())
    password = folder / "password"
    password.write_text(PASSWORD + "\n")
    password.chmod(0o600)
    with postfix.upstream(USER, PASSWORD, **KNOWS_ITS_PEOPLE, **settings) as upstream:
        isp = {
            "host": "localhost",
            "port": upstream.port,
            "tls": "starttls",
            "ca_file": str(upstream.certificate),
            "auth": {"user": USER, "password_file": "password"},
        }
        with RelayProcess(folder, {"isp": isp}) as relay, postfix.front(relay.port) as front:
            yield Chain(front, relay, upstream)


@pytest.fixture(scope="module")
def _knowing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    with _chain(tmp_path_factory.mktemp("knowing")) as chain:
        yield chain


@pytest.fixture(scope="module")
def _deaf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    with _chain(tmp_path_factory.mktemp("deaf"), **DEAF_TO_DSN) as chain:
        yield chain


@pytest.fixture
def knowing(_knowing: Chain) -> Chain:
    """Return a chain whose upstream offers DSN, empty."""
    return _emptied(_knowing)


@pytest.fixture
def deaf(_deaf: Chain) -> Chain:
    """Return a chain whose upstream does not, empty."""
    return _emptied(_deaf)


def _emptied(chain: Chain) -> Chain:
    chain.until_all_are_empty()
    for path in (chain.upstream.mailbox.folder / "new").iterdir():
        path.unlink()
    return chain


def _submit(front: Postfix, *arguments: str) -> None:
    front.run("sendmail", "-i", "-f", SENDER, *arguments, stdin=CONTENT)


def _settled(chain: Chain, count: int) -> list[Arrived]:
    """Return what arrived once all is quiet, and that it is no more than so much."""
    chain.upstream.mailbox.wait_for(count)
    chain.until_all_are_empty()
    arrived = chain.upstream.mailbox.arrived()
    assert len(arrived) == count, [each.content.decode() for each in arrived]
    return arrived


def _fields(report: Arrived) -> list[dict[str, str]]:
    found = email.message_from_bytes(report.content, policy=email.policy.SMTP)
    assert isinstance(found, EmailMessage)
    assert found.get_content_type() == "multipart/report"
    (status,) = (part for part in found.walk() if part.get_content_type() == "message/delivery-status")
    blocks = [block for block in status.walk() if block is not status]
    return [{name: " ".join(str(value).split()) for name, value in block.items()} for block in blocks]


def _reports(arrived: list[Arrived]) -> list[Arrived]:
    return [each for each in arrived if each.reverse_path == ""]


def _unsubscribed(report: Arrived) -> set[bytes]:
    return set(all_failures(email.message_from_bytes(report.content, policy=email.policy.compat32))[1])


def test_what_sendmail_asks_for_reaches_an_upstream_that_offers_dsn(knowing: Chain) -> None:
    _submit(knowing.front, "-N", "success", "-V", "batch 7+1", "-R", "hdrs", "--", "ann@list.test")
    (report,) = _reports(_settled(knowing, 2))

    of_message, of_ann = _fields(report)
    assert of_message["Reporting-MTA"] == "dns; upstream.test"
    assert of_message["Original-Envelope-Id"] == "batch 7+1"
    assert of_ann["Original-Recipient"] == "rfc822;ann@list.test"
    assert of_ann["Action"] == "delivered"
    assert not any("notification" in line for line in knowing.relay.log())


def test_a_success_is_told_by_us_where_the_upstream_offers_no_dsn(deaf: Chain) -> None:
    _submit(deaf.front, "-N", "success,failure", "-V", "batch 7+1", "--", "ann@list.test", "bob@list.test")
    (report,) = _reports(_settled(deaf, 3))

    of_message, *of_both = _fields(report)
    assert of_message["Reporting-MTA"] == "dns; relay.test"
    assert of_message["Original-Envelope-Id"] == "batch 7+1"
    assert [each["Action"] for each in of_both] == ["relayed", "relayed"]
    assert of_both[0]["Original-Recipient"] == "rfc822; ann@list.test"
    assert of_both[0]["Diagnostic-Code"].startswith("smtp; 250 2.0.0 Ok: queued as")
    assert _unsubscribed(report) == set()


@pytest.mark.parametrize("which", ["knowing", "deaf"])
def test_never_silences_a_failure_through_all_three(which: str, request: pytest.FixtureRequest) -> None:
    chain: Chain = request.getfixturevalue(which)
    _submit(chain.front, "-N", "never", "--", "nobody@list.test", "ann@list.test")

    assert [each.recipient for each in _settled(chain, 1)] == ["ann@list.test"]
    assert any("no report of 1 failed recipients" in line for line in chain.relay.log())


@pytest.mark.parametrize(("ret", "is_whole"), [("full", True), ("hdrs", False)])
def test_a_failure_returns_as_much_as_was_asked_for(deaf: Chain, ret: str, *, is_whole: bool) -> None:
    _submit(deaf.front, "-R", ret, "-V", "x", "--", "nobody@list.test")
    (report,) = _settled(deaf, 1)

    of_message, of_nobody = _fields(report)
    assert of_message["Original-Envelope-Id"] == "x"
    assert (of_nobody["Action"], of_nobody["Original-Recipient"]) == ("failed", "rfc822; nobody@list.test")
    assert (b"All agreed." in report.content) is is_whole
    assert (b"Content-Type: message/rfc822\r\n" in report.content) is is_whole
    assert _unsubscribed(report) == {b"nobody@list.test"}


def test_values_pass_us_unchanged(knowing: Chain) -> None:
    """RFC 3461, 5.2.1 (d): not even the case of a letter may change."""
    with smtplib.SMTP("127.0.0.1", knowing.relay.port, timeout=60) as session:
        session.ehlo()
        assert session.has_extn("dsn")
        assert session.docmd("MAIL FROM:<mjd@front.test> ENVID=A+2Bb RET=FULL")[0] == 250
        rcpt = "RCPT TO:<ann@list.test> ORCPT=rfc822;Old+2BAnn@List.Test NOTIFY=SUCCESS"
        assert session.docmd(rcpt)[0] == 250
        assert session.data(CONTENT.replace(b"\n", b"\r\n"))[0] == 250
    (report,) = _reports(_settled(knowing, 2))

    of_message, of_ann = _fields(report)
    assert of_message["Original-Envelope-Id"] == "A+b"
    assert of_ann["Original-Recipient"] == "rfc822;Old+Ann@List.Test"


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        ("MAIL FROM:<mjd@front.test> RET=SOME", 501),
        ("MAIL FROM:<mjd@front.test> ENVID=a+2", 501),
        ("MAIL FROM:<mjd@front.test> MT-PRIORITY=3", 555),
        ("MAIL FROM:<mjd@front.test> AUTH=<>", 250),
    ],
)
def test_only_what_was_not_announced_gets_555(knowing: Chain, command: str, reply: int) -> None:
    with smtplib.SMTP("127.0.0.1", knowing.relay.port, timeout=60) as session:
        session.ehlo()
        code, text = session.docmd(command)

    assert code == reply
    assert re.match(rb"[25]\.[157]\.[0-9] ", text)
