"""The harness proves itself: without the relay, real peers pass mail to each other unbroken."""

import smtplib
import ssl

import pytest

from tests.proofs.peers import accounts, dovecot, postfix, prometheus, smtp_tools
from tests.proofs.peers.demand import demand
from tests.proofs.peers.ledger import Ledger
from tests.proofs.peers.postfix import Postfix
from tests.proofs.peers.waiting import free_port, wait_until

pytestmark = pytest.mark.slow

USER, PASSWORD = "mjd", "correct horse"


@pytest.fixture
def _postfix() -> None:
    demand(postfix.why_missing())


def _content(number: int) -> bytes:
    headers = "From: <mjd@front.test>\r\nDate: Sat, 1 Jan 2022 00:00:00 +0000\r\n"
    headers += f"Message-Id: <{number}@front.test>\r\n"
    return (
        headers.encode()
        + b"Subject: gr\xc3\xbc\xc3\x9fe\r\n\r\n.a dot\r\n..\r\n\r\n\xff\xfe "
        + b"x" * 900
        + b"\r\n"
    )


def _log_in(upstream: Postfix, password: str) -> smtplib.SMTP:
    trusting = ssl.create_default_context(cafile=str(upstream.certificate))
    session = smtplib.SMTP("localhost", upstream.port, timeout=30)
    try:
        session.starttls(context=trusting)
        session.login(USER, password)
    except smtplib.SMTPException:
        session.close()
        raise
    return session


@pytest.mark.usefixtures("_postfix")
def test_front_passes_every_byte_to_an_upstream_with_tls_and_sasl() -> None:
    sent = {f"r{number}@list.test": _content(number) for number in range(20)}

    with postfix.upstream(USER, PASSWORD) as upstream:
        account = {
            "relayhost": f"[localhost]:{upstream.port}",
            "smtp_tls_security_level": "secure",
            "smtp_tls_CAfile": str(upstream.certificate),
            "smtp_tls_secure_cert_match": "hostname",
            "smtp_sasl_auth_enable": "yes",
            "smtp_sasl_password_maps": f"inline:{{ {{ [localhost]:{upstream.port} = {USER}:{PASSWORD} }} }}",
            "smtp_sasl_security_options": "noanonymous",
        }
        with postfix.front(upstream.port, **account) as front:
            with smtplib.SMTP("127.0.0.1", front.port, timeout=30) as session:
                for recipient, content in sent.items():
                    session.sendmail("mjd@front.test", [recipient], content, mail_options=["BODY=8BITMIME"])
            arrived = upstream.mailbox.wait_for(len(sent))

            assert {each.recipient: each.without_received() for each in arrived} == sent
            assert {each.reverse_path for each in arrived} == {"mjd@front.test"}
            assert all(b"with ESMTPSA" in each.received for each in arrived)
            wait_until(lambda: front.log().count(": removed") >= len(sent))
            assert front.queue() == []


@pytest.mark.usefixtures("_postfix")
def test_front_takes_mail_from_sendmail_and_keeps_the_untaken() -> None:
    with postfix.front(9) as front:
        front.submit(_content(1), sender="mjd@front.test", recipients=["a@list.test", "b@list.test"])
        front.wait_for_log(r"(?s)(status=deferred.*){2}")

        queued = front.queue()

    assert [{each["address"] for each in message["recipients"]} for message in queued] == [
        {"a@list.test", "b@list.test"}
    ]


@pytest.mark.usefixtures("_postfix")
def test_upstream_refuses_a_wrong_password() -> None:
    with postfix.upstream(USER, PASSWORD) as upstream:
        with pytest.raises(smtplib.SMTPAuthenticationError) as refused:
            _log_in(upstream, "wrong")

        assert refused.value.smtp_code == 535
        _log_in(upstream, PASSWORD).close()


@pytest.mark.usefixtures("_postfix")
def test_upstream_refuses_mail_without_a_log_in() -> None:
    with postfix.upstream(USER, PASSWORD) as upstream:
        with smtplib.SMTP("127.0.0.1", upstream.port, timeout=30) as session:
            plain_reply = session.docmd("MAIL FROM:<mjd@front.test>")
            session.starttls(context=ssl.create_default_context(cafile=str(upstream.certificate)))
            session.ehlo()
            session.mail("mjd@front.test")
            rcpt_reply = session.rcpt("r@list.test")

        assert plain_reply == (530, b"5.7.0 Must issue a STARTTLS command first")
        assert rcpt_reply[0] == 554
        assert upstream.mailbox.arrived() == []


@pytest.mark.usefixtures("_postfix")
def test_a_stopped_instance_keeps_its_queue() -> None:
    with postfix.front(9) as front:
        front.submit(_content(1), sender="mjd@front.test", recipients=["a@list.test"])
        front.wait_for_log("status=deferred")

        front.stop()
        front.start()

        assert len(front.queue()) == 1


def test_smtp_sink_counts_what_smtp_source_sends() -> None:
    demand(smtp_tools.why_missing())
    with smtp_tools.smtp_sink() as sink:
        smtp_tools.smtp_source(sink.port, messages=50, sessions=5)
        sink.wait_for(50)
        smtp_tools.smtp_source(sink.port, messages=7, keep_connection=True)
        sink.wait_for(57)

        assert sink.count == 57


def test_smtp_source_reports_a_refused_message() -> None:
    demand(smtp_tools.why_missing())
    with smtp_tools.smtp_sink("-f", "DATA") as sink, pytest.raises(AssertionError, match="exited 1"):
        smtp_tools.smtp_source(sink.port, messages=1)


def test_swaks_hands_a_message_to_smtp_sink() -> None:
    demand(smtp_tools.why_missing(), smtp_tools.why_swaks_missing())
    with smtp_tools.smtp_sink() as sink:
        ran = smtp_tools.swaks(sink.port, "--from", "mjd@front.test", "--to", "r@list.test")

        assert ran.returncode == 0, ran.stdout
        sink.wait_for(1)


def test_prometheus_scrapes_itself_and_answers() -> None:
    demand(prometheus.why_missing())
    port = free_port()

    with prometheus.prometheus(port, port=port) as server:
        up = server.wait_for("up == 1")

        assert up[0]["metric"]["instance"] == f"127.0.0.1:{port}"
        assert [target["health"] for target in server.targets()] == ["up"]


def test_promtool_finds_a_fault_in_metrics() -> None:
    demand(prometheus.why_missing())
    faultless = "# HELP relay_x_total Counts.\n# TYPE relay_x_total counter\nrelay_x_total 1\n"

    assert prometheus.promtool("check", "metrics", stdin=faultless).returncode == 0
    assert prometheus.promtool("check", "metrics", stdin=faultless.replace("_total", "")).returncode != 0


@pytest.mark.usefixtures("_postfix")
def test_a_postfix_keeps_a_ledger_of_what_it_takes_and_of_whom() -> None:
    demand(dovecot.why_missing())
    with (
        Ledger({"messages": 2, "per": "1h"}) as ledger,
        dovecot.passwords({USER: PASSWORD}) as checker,
        postfix.smarthost(
            **(accounts.owned(USER, "front.test") | ledger.settings), **checker.settings
        ) as upstream,
    ):
        with pytest.raises(smtplib.SMTPAuthenticationError):
            _log_in(upstream, "battery staple")
        session = _log_in(upstream, PASSWORD)
        with pytest.raises(smtplib.SMTPRecipientsRefused, match="not owned by user mjd"):
            session.sendmail("mjd@elsewhere.test", ["ann@list.test"], _content(0))
        for number in range(3):
            assert ledger.exceeded == 0
            recipients = [f"ann{number}@list.test", f"bob{number}@list.test"]
            session.sendmail("mjd@front.test", recipients, _content(number))
        session.quit()
        upstream.mailbox.wait_for(6)
        ledger.read(upstream.mailbox)

    assert (ledger.taken, ledger.exceeded, ledger.witness.most_in_any_window()) == (3, 1, 3)
    assert ledger.logins == {("PLAIN", USER)}
    for number, seen in enumerate(ledger.seen()):
        assert seen.entry.envelope.recipients == (f"ann{number}@list.test", f"bob{number}@list.test")
        assert ledger.content_of(seen) == _content(number)
        assert seen.mail_at_ns < seen.entry.counted_at_ns == seen.ended_at_ns
