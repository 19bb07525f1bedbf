"""`relay sendmail` where the spool is the caller's own, and no relay runs."""

import os
import subprocess
from pathlib import Path

import pytest

from relay.clock import SystemClock
from relay.policy.source import parse_policy
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import open_spool
from relay.spool.interface import Message
from tests.engines.spool.engine import claimed
from tests.unit.cli.terminal import forked

POLICY = """
spool: {spool}
listen:
  - {{address: "127.0.0.1:1", clients: [127.0.0.0/8], max_size: 1K, max_hops: 2, max_recipients: 3}}
hostname: relay.test
upstreams: {{isp: {{host: 127.0.0.1, port: 9, tls: none, limits: []}}}}
"""
TEXT = b"From: a@b.test\nDate: x\nMessage-ID: <y>\nTo: c@d.test\n\nhello\n.\nbye\n"
CONTENT = TEXT.replace(b"\n", b"\r\n")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    (tmp_path / "spool").mkdir()
    return written(tmp_path, "./spool")


def written(folder: Path, spool: str) -> Path:
    """Write a policy on whose port of loopback nobody listens."""
    path = folder / "policy.yaml"
    path.write_text(POLICY.format(spool=spool))
    return path


def call(
    policy: Path, *words: str, text: bytes = TEXT, called: str = ""
) -> subprocess.CompletedProcess[bytes]:
    program = {"called": f"/usr/sbin/{called}"} if called else {}
    return forked(*([] if called else ["sendmail"]), *words, given=text, RELAY_POLICY=str(policy), **program)


def queued(policy: Path) -> list[Message]:
    parsed = parse_policy(policy.read_bytes(), policy)
    spool = open_spool(parsed, RealDisk(), SystemClock(), lambda *_: None)
    try:
        found = claimed(spool)
        assert spool.look().corrupt == 0
        return found
    finally:
        spool.close()


def content_of(message: Message) -> bytes:
    """Return it behind our own Received line."""
    received, by, date, rest = (message.content or b"").split(b"\r\n", 3)
    assert received == b"Received: from relay.test (unknown [127.0.0.1])"
    assert by == f"\tby relay.test with {message.envelope.protocol} id {message.queue_id};".encode()
    assert date.startswith(b"\t")
    return rest


def test_what_exits_0_is_in_the_spool(policy: Path) -> None:
    done = call(policy, "-i", "-f", "a@b.test", "--", "x@y.test", "root")
    (message,) = queued(policy)
    assert (done.returncode, done.stdout, done.stderr) == (os.EX_OK, b"", b"")
    assert message.envelope.reverse_path == "a@b.test"
    assert message.envelope.recipients == ("x@y.test", "root@relay.test")
    assert content_of(message) == CONTENT


def test_a_lone_dot_ends_the_message_without_i(policy: Path) -> None:
    assert call(policy, "-t").returncode == os.EX_OK
    (message,) = queued(policy)
    assert message.envelope.recipients == ("c@d.test",)
    assert content_of(message) == CONTENT.partition(b".\r\nbye")[0]


def test_eight_bit_content_is_known_as_such(policy: Path) -> None:
    assert call(policy, "ö@d.test", text="Subject: ö\n\nü\n".encode()).returncode == os.EX_OK
    (message,) = queued(policy)
    assert (message.shape.eight_bit, message.shape.smtputf8) == (True, True)
    assert message.envelope.protocol == "UTF8SMTP"


@pytest.mark.parametrize(
    ("words", "text", "exit_code"),
    [
        (["-t"], b"Subject: x\n\n", os.EX_DATAERR),
        ([], TEXT, os.EX_USAGE),
        (["-bd"], TEXT, os.EX_USAGE),
        (["a b@c.test"], TEXT, os.EX_DATAERR),
        (["-f", "a b", "c@d.test"], TEXT, os.EX_DATAERR),
        (["c@d.test"], b"x" * 2000, os.EX_DATAERR),
        (["c@d.test"], b"Received: x\n" * 3 + b"\n", os.EX_DATAERR),
        (["a@b.test", "b@b.test", "c@b.test", "d@b.test"], TEXT, os.EX_DATAERR),
    ],
)
def test_what_is_refused_is_not_queued_and_told_of(
    policy: Path, words: list[str], text: bytes, exit_code: int
) -> None:
    done = call(policy, *words, text=text)
    assert done.returncode == exit_code
    assert done.stderr.startswith(b"sendmail: ")
    assert queued(policy) == []


def test_what_no_listener_takes_is_not_read_to_its_end(policy: Path) -> None:
    done = call(policy, "c@d.test", text=b"x\n" * (1 << 20))
    assert (done.returncode, done.stderr) == (os.EX_DATAERR, b"sendmail: the message is too long\n")


def test_where_nobody_may_take_it_the_caller_is_told(policy: Path) -> None:
    (policy.parent / "spool" / "format").write_text("relay spool 9 other\n")
    assert call(policy, "c@d.test").returncode == os.EX_CONFIG
    assert [path.name for path in (policy.parent / "spool").iterdir()] == ["format"]
    written(policy.parent, "./none")
    assert call(policy, "c@d.test").returncode == os.EX_TEMPFAIL
    assert call(policy, "-bs").stdout.startswith(b"421 4.3.0 ")
    assert not (policy.parent / "none").exists()
    policy.write_text("spool: [")
    assert call(policy, "c@d.test").returncode == os.EX_CONFIG


def test_bs_speaks_as_the_listener_does(policy: Path) -> None:
    lines = ["EHLO me", "MAIL FROM:<a@b.test>", "RCPT TO:<c@d.test>", "DATA", "x: y", "", "..z", ".", "QUIT"]
    text = "".join(f"{line}\r\n" for line in lines).encode()
    assert call(policy, "-bs", text=text.partition(b"\r\n.\r\n")[0]).returncode == os.EX_OK
    assert queued(policy) == [], "without its final dot"

    done = call(policy, "-bs", text=text)
    (message,) = queued(policy)
    codes = [line[:3] for line in done.stdout.split(b"\r\n") if line[3:4] == b" "]
    assert codes == [b"220", b"250", b"250", b"250", b"354", b"250", b"221"]
    assert (message.content or b"").endswith(b"\r\nx: y\r\n\r\n.z\r\n")


def test_links_act_by_their_names(policy: Path) -> None:
    assert call(policy, called="newaliases").returncode == os.EX_OK
    assert call(policy, called="mailq").stdout == b"Mail queue is empty\n"
    assert call(policy, "-t", called="sendmail").returncode == os.EX_OK
    listed = call(policy, called="mailq").stdout.decode().splitlines()
    assert listed[2:] == [" " * 47 + "c@d.test", "", "-- 1 Kbytes in 1 Request."]
