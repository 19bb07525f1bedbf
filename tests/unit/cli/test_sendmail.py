"""`relay sendmail` and `relay drain` by the owner of the spool, while no relay runs."""

import asyncio
import errno
import fcntl
import os
import subprocess
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.clock import SystemClock
from relay.mail.dsn import DsnRequest, Notify, RecipientRequest, Ret
from relay.policy.source import parse_policy
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import open_spool
from relay.spool.interface import Message
from tests.engines.spool.engine import claimed
from tests.unit.cli.conftest import Ran, Run
from tests.unit.cli.terminal import forked

POLICY = """
spool: {spool}
listen:
  - {{address: "127.0.0.1:1", clients: [127.0.0.0/8], max_size: 1K, max_hops: 2, max_recipients: 3,
     max_queued_per_client: 1}}
hostname: relay.test
upstreams: {{isp: {{host: 127.0.0.1, port: 9, tls: none, limits: []}}}}
"""
"""Nobody listens on its port of loopback.  Its quota does not bind the owner of the spool."""
TEXT = b"From: a@b.test\nDate: x\nMessage-ID: <y>\nTo: c@d.test\n\nhello\n.\nbye\n"
CONTENT = TEXT.replace(b"\n", b"\r\n")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    (tmp_path / "spool").mkdir()
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY.format(spool="./spool"))
    return path


def call(
    policy: Path, *words: str, text: bytes = TEXT, called: str = ""
) -> subprocess.CompletedProcess[bytes]:
    if called:
        return forked(*words, given=text, called=f"/usr/sbin/{called}", RELAY_POLICY=str(policy))
    return forked("sendmail", *words, given=text, RELAY_POLICY=str(policy))


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
    """Check the relay's own Received field, and return the content behind it."""
    received, by, date, rest = (message.content or b"").split(b"\r\n", 3)
    assert received == b"Received: from relay.test (unknown [127.0.0.1])"
    assert by == f"\tby relay.test with {message.envelope.protocol} id {message.queue_id};".encode()
    assert date.startswith(b"\t")
    return rest


def test_sendmail_that_exits_0_has_put_the_message_into_the_spool(policy: Path) -> None:
    asks = ("-N", "success", "-R", "full", "-V", "batch+7")
    done = call(policy, "-i", "-f", "a@b.test", *asks, "--", "x@y.test", "root")
    (message,) = queued(policy)
    told = RecipientRequest(Notify.SUCCESS)
    assert message.envelope.dsn == DsnRequest(Ret.FULL, "batch+2B7", (told, told))
    assert (done.returncode, done.stdout, done.stderr) == (os.EX_OK, b"", b"")
    assert message.envelope.reverse_path == "a@b.test"
    assert message.envelope.recipients == ("x@y.test", "root@relay.test")
    assert content_of(message) == CONTENT


def test_a_lone_dot_ends_the_message_without_i_and_8_bit_content_is_recognised(policy: Path) -> None:
    assert call(policy, "-t", text=TEXT.replace(b"hello", "ö".encode())).returncode == os.EX_OK
    (message,) = queued(policy)
    assert message.envelope.recipients == ("c@d.test",)
    assert content_of(message).endswith("\r\n\r\nö\r\n".encode())
    assert (message.shape.eight_bit, message.shape.smtputf8) == (True, False)


@pytest.mark.parametrize(
    ("words", "text", "exit_code"),
    [
        (["-t"], b"Subject: x\n\n", os.EX_DATAERR),
        ([], TEXT, os.EX_USAGE),
        (["a b@c.test"], TEXT, os.EX_DATAERR),
        (["-f", "a b", "c@d.test"], TEXT, os.EX_DATAERR),
        # Too long: sendmail does not read it to its end.
        (["c@d.test"], b"x\n" * (1 << 20), os.EX_DATAERR),
        (["c@d.test"], b"Received: x\n" * 3 + b"\n", os.EX_DATAERR),
        (["a@b.test", "b@b.test", "c@b.test", "d@b.test"], TEXT, os.EX_DATAERR),
    ],
)
def test_a_refused_message_is_not_queued_and_the_reason_is_printed(
    policy: Path, words: list[str], text: bytes, exit_code: int
) -> None:
    done = call(policy, *words, text=text)
    assert (done.returncode, done.stderr[:10]) == (exit_code, b"sendmail: ")
    assert queued(policy) == []


def test_sendmail_exits_75_or_78_without_a_usable_spool_or_policy(policy: Path) -> None:
    (policy.parent / "spool" / "format").write_text("relay spool 9 other\n")
    assert call(policy, "c@d.test").returncode == os.EX_CONFIG
    assert [path.name for path in (policy.parent / "spool").iterdir()] == ["format"]
    policy.write_text(POLICY.format(spool="./none"))
    assert call(policy, "c@d.test").returncode == os.EX_TEMPFAIL
    assert call(policy, "-bs").stdout.startswith(b"421 4.3.0 ")
    assert not (policy.parent / "none").exists()
    policy.write_text("spool: [")
    assert call(policy, "c@d.test").returncode == os.EX_CONFIG


def test_sendmail_that_lacks_descriptors_exits_75_and_says_so(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(session: Coroutine[Any, Any, None]) -> None:
        """Fail like asyncio.run if no descriptor is left for its loop."""
        session.close()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(asyncio, "run", no_descriptor)
    done = call(policy, "c@d.test")
    assert (done.returncode, b"Too many open files" in done.stderr) == (os.EX_TEMPFAIL, True)
    assert queued(policy) == []


def test_bs_speaks_smtp_as_the_listener_does(policy: Path) -> None:
    lines = ["EHLO me", "MAIL FROM:<a@b.test>", "RCPT TO:<c@d.test>", "DATA", "x: y", "", "..z", ".", "QUIT"]
    done = call(policy, "-bs", text="".join(f"{line}\r\n" for line in lines).encode())
    (message,) = queued(policy)
    codes = [line[:3] for line in done.stdout.split(b"\r\n") if line[3:4] == b" "]
    assert codes == [b"220", b"250", b"250", b"250", b"354", b"250", b"221"]
    assert (message.content or b"").endswith(b"\r\nx: y\r\n\r\n.z\r\n")


def test_links_act_as_newaliases_mailq_and_sendmail(policy: Path) -> None:
    assert call(policy, called="newaliases").returncode == os.EX_OK
    assert call(policy, called="mailq").stdout == b"Mail queue is empty\n"
    assert call(policy, "-t", called="sendmail").returncode == os.EX_OK
    listed = call(policy, called="mailq").stdout.decode().splitlines()
    assert listed[2:] == [" " * 47 + "c@d.test", "", "-- 1 Kbytes in 1 Request."]


ON_TOP = b"Return-Path: <a@b.test>\nDelivered-To: list-c@d.test\n"
OTHER = b"Delivered-To: other@e.test\nTo: t@u.test\nBcc: hidden@v.test\nSubject: x\n\n.hello\n"
SENT = OTHER.replace(b"Bcc: hidden@v.test\n", b"").replace(b"\n", b"\r\n")


class Maildir:
    def __init__(self, folder: Path, policy: Path, run: Run) -> None:
        self.path, self.policy, self._run = folder, policy, run
        for name in ("new", "cur", "tmp"):
            (self.path / name).mkdir(parents=True)

    def put(self, name: str, content: bytes = ON_TOP + OTHER) -> Path:
        (path := self.path / name).write_bytes(content)
        return path

    def drain(self, *words: str) -> Ran:
        return self._run("drain", str(self.path), *words, "--policy", str(self.policy))

    @property
    def left(self) -> set[str]:
        return {f"{path.parent.name}/{path.name}" for path in self.path.glob("*/*")}


@pytest.fixture
def maildir(tmp_path: Path, policy: Path, run: Run) -> Iterator[Maildir]:
    before = os.umask(0o077)
    yield Maildir(tmp_path / "maildir", policy, run)
    os.umask(before)


def test_drain_takes_the_envelope_from_the_top_lines_and_keeps_the_rest(maildir: Maildir) -> None:
    maildir.put("new/2.x")
    maildir.put("cur/1.y:2,S", ON_TOP.replace(b"a@b.test", b"") + b"Subject: first\r\rlone\r\n\xff")
    maildir.put("tmp/0.z")
    bad = maildir.put("new/3.x", OTHER)

    code, out, err = maildir.drain("--prefix", "list-")
    assert (code, out) == (os.EX_DATAERR, "2 taken, 1 left\n")
    assert err.startswith("drain: new/3.x: left, no Return-Path on top")
    first, second = queued(maildir.policy)
    assert (first.envelope.reverse_path, second.envelope.reverse_path) == ("", "a@b.test")
    assert first.envelope.recipients == second.envelope.recipients == ("c@d.test",)
    assert content_of(first) == b"Subject: first\r\n\r\nlone\r\n\xff\r\n"
    assert content_of(second) == SENT
    assert (maildir.left, bad.read_bytes()) == ({"tmp/0.z", "new/3.x"}, OTHER)


@pytest.mark.parametrize(
    ("words", "reverse_path", "recipients"),
    [
        (["--to", "x@y.test", "--to", "root"], "a@b.test", ("x@y.test", "root@relay.test")),
        (["--to", "x@y.test", "--sender", "<>"], "", ("x@y.test",)),
        (["-t", "--to", "x@y.test"], "a@b.test", ("x@y.test", "t@u.test", "hidden@v.test")),
    ],
)
def test_drain_options_override_the_sender_and_the_recipients(
    maildir: Maildir, words: list[str], reverse_path: str, recipients: tuple[str, ...]
) -> None:
    maildir.put("new/1.x")

    assert maildir.drain(*words).code == os.EX_OK
    (message,) = queued(maildir.policy)
    assert (message.envelope.reverse_path, message.envelope.recipients) == (reverse_path, recipients)
    # Missing fields are added only with -t, so only to text that a program wrote itself.
    assert content_of(message).endswith(SENT)
    assert (content_of(message) == SENT) == ("-t" not in words)


@pytest.mark.parametrize(
    ("content", "words", "why"),
    [
        (ON_TOP + OTHER, ["--prefix", "x-"], "begins with 'x-'"),
        (b"Return-Path: <a@b.test>\n" + OTHER.partition(b"\n")[2], [], "no Delivered-To on top"),
        (ON_TOP + b"Subject: x\n\n", ["-t"], "names no recipient"),
        (ON_TOP + OTHER + b"x" * 2000, [], "552"),
        (ON_TOP + OTHER + b"x" * (2 << 20), [], "longer than"),
        (ON_TOP + b"Received: x\n" * 3 + b"\n", [], "554"),
    ],
)
def test_a_message_that_drain_refuses_stays_in_the_maildir(
    maildir: Maildir, content: bytes, words: list[str], why: str
) -> None:
    bad = maildir.put("new/2.x", content)
    code, out, err = maildir.drain(*words)
    assert (code, out, why in err) == (os.EX_DATAERR, "0 taken, 1 left\n", True)
    assert (queued(maildir.policy), bad.read_bytes()) == ([], content)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a maildir away")
def test_root_drains_only_files_of_the_maildirs_owner(maildir: Maildir, tmp_path: Path) -> None:
    """The owner of a maildir can hard-link a file of root's into it."""
    (tmp_path / "elsewhere").mkdir()
    for owner, name in ((0, "of-root"), (23456, "of-another"), (12345, "of-the-owner")):
        (file := tmp_path / "elsewhere" / name).write_bytes(ON_TOP + OTHER)
        os.chown(file, owner, owner)
        os.link(file, maildir.path / "new" / name)
    os.chown(maildir.path, 12345, 12345)

    assert maildir.drain().code == os.EX_DATAERR
    assert maildir.left == {"new/of-root", "new/of-another"}
    assert len(queued(maildir.policy)) == 1


def test_a_second_drain_of_a_maildir_at_the_same_time_exits_75(maildir: Maildir) -> None:
    maildir.put("new/1.x")
    with (maildir.path / "relay-drain.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = maildir.drain()
    assert (code, "another drain is running" in err, maildir.left) == (os.EX_TEMPFAIL, True, {"new/1.x"})


@pytest.mark.parametrize("name", [".", "new"])
def test_a_symlink_as_a_maildir_is_refused(maildir: Maildir, tmp_path: Path, name: str, run: Run) -> None:
    """A user who can place the link could let it lead to another user's mail."""
    other = Maildir(tmp_path / "other", maildir.policy, run)
    other.put("new/1.x")
    link = Path(os.path.normpath(maildir.path / name))
    link.rename(tmp_path / "aside")
    link.symlink_to(other.path / name)

    code, _, err = maildir.drain()
    assert (code, f"{link} is a symbolic link" in err) == (os.EX_NOINPUT, True)
    assert (queued(maildir.policy), other.left) == ([], {"new/1.x"})
