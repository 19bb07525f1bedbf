"""A Postfix that knows its clients by certificate, and one that lets a login send as itself alone."""

import smtplib
from pathlib import Path

import pytest

from relay.policy.secrets import read_key_pair
from tests.proofs.peers import postfix
from tests.proofs.peers.certificate import Certificate, make_certificate
from tests.proofs.peers.demand import demand
from tests.proofs.peers.relay import RelayProcess

pytestmark = pytest.mark.slow

USER, PASSWORD, OWN = "ann", "correct horse", "news@upstream.test"
WRITTEN = b"From: Ann <ann@home.lan>\r\nSubject: hello\r\nDKIM-Signature: v=1; b=abc\r\n\r\n.first\r\n=20\r\n"


def hand_over(relay: RelayProcess, recipient: str = "bob@far.example") -> None:
    with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
        session.sendmail("ann@home.lan", [recipient], WRITTEN)


def certificate_in(folder: Path) -> tuple[Certificate, str]:
    """Make a certificate of a client; return it with its fingerprint."""
    folder.mkdir()
    made = make_certificate(folder)
    return made, str(read_key_pair(made.certificate, made.key).fingerprint)


def test_a_postfix_knows_the_relay_by_its_certificate_also_a_new_one(tmp_path: Path) -> None:
    demand(postfix.why_missing())
    own, first = certificate_in(tmp_path / "own")
    renewed, second = certificate_in(tmp_path / "renewed")
    settings = {
        "smtpd_tls_ask_ccert": "yes",
        "smtpd_tls_fingerprint_digest": "sha256",
        "relay_clientcerts": f"inline:{{ {first}=first, {second}=second }}",
        "smtpd_relay_restrictions": "permit_tls_clientcerts, reject",
        # Told apart by the address that they come from.
        "smtpd_client_restrictions": "check_client_access inline:{ 127.0.0.5=OK }, reject",
    }
    with postfix.upstream(USER, PASSWORD, **settings) as upstream:
        isp = {
            "host": "localhost",
            "port": upstream.port,
            "ca_file": str(upstream.certificate),
            "tls_certificate": str(own.certificate),
            "tls_key": str(own.key),
            "source_address": "127.0.0.5",
            "idle": "10ms",
        }
        with RelayProcess(tmp_path, {"isp": isp}) as relay:
            hand_over(relay)
            relay.wait_until_empty()
            # As certbot does it: one file, then the other.
            for new, old in ((renewed.certificate, own.certificate), (renewed.key, own.key)):
                new.replace(old)
            relay.wait_for_log(lambda line: "shows it the certificate" in line and second in line)
            hand_over(relay)
            relay.wait_until_empty()
            assert len(upstream.mailbox.wait_for(2)) == 2
            shown = [line.split()[-2] for line in relay.log() if "shows it the certificate" in line]
            assert shown == [first, second]
            assert upstream.log().count("client=unknown[127.0.0.5]") == 2


def test_a_login_that_may_send_as_itself_alone_takes_rewritten_mail(tmp_path: Path) -> None:
    demand(postfix.why_missing())
    settings = {
        "smtpd_sender_login_maps": f"inline:{{ {OWN}={USER}@upstream.test }}",
        "smtpd_sender_restrictions": "reject_sender_login_mismatch",
    }
    with postfix.upstream(USER, PASSWORD, **settings) as upstream:
        password = tmp_path / "password"
        password.touch(0o600)
        password.write_text(PASSWORD)
        isp = {
            "host": "localhost",
            "port": upstream.port,
            "ca_file": str(upstream.certificate),
            "auth": {"user": f"{USER}@upstream.test", "password_file": str(password)},
        }
        routes = [{"upstreams": ["isp"]}]
        with RelayProcess(tmp_path, {"isp": isp}, routes=routes) as relay:
            # As it was handed over it is refused, and stays.
            hand_over(relay)
            upstream.wait_for_log("Sender address rejected: not owned by user")
            assert not relay.is_empty()
            relay.policy["routes"] = [{"upstreams": ["isp"], "rewrite": OWN}]
            relay.write_policy()
            relay.wait_for_log(lambda line: line.endswith(" event=policy_loaded"))
            relay.wait_until_empty()
        (arrived,) = upstream.mailbox.wait_for(1)

    assert arrived.reverse_path == OWN
    original = b"Ann <ann@home.lan>"
    head, rest = WRITTEN.split(b"Subject", 1)
    assert head == b"From: " + original + b"\r\n"
    assert arrived.without_received() == (
        b"From: Ann <" + OWN.encode() + b">\r\nX-Original-From: " + original
        + b"\r\nReply-To: " + original + b"\r\nSubject" + rest
    )  # fmt: skip
