"""`relay drain` where the spool is the caller's own, and no relay runs."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Ran, Run
from tests.unit.cli.test_sendmail import content_of, queued, written

ON_TOP = b"Return-Path: <a@b.test>\nDelivered-To: list-c@d.test\n"
TEXT = b"Delivered-To: other@e.test\nTo: t@u.test\nBcc: hidden@v.test\nSubject: x\n\n.hello\n"
SENT = TEXT.replace(b"Bcc: hidden@v.test\n", b"").replace(b"\n", b"\r\n")


class Maildir:
    def __init__(self, folder: Path, run: Run) -> None:
        self.path, self._run = folder / "maildir", run
        for name in ("new", "cur", "tmp"):
            (self.path / name).mkdir(parents=True)
        (folder / "spool").mkdir()
        self.policy = written(folder, "./spool")

    def put(self, name: str, content: bytes = ON_TOP + TEXT) -> Path:
        (path := self.path / name).write_bytes(content)
        return path

    def drain(self, *words: str) -> Ran:
        return self._run("drain", str(self.path), *words, "--policy", str(self.policy))

    @property
    def left(self) -> set[str]:
        return {f"{path.parent.name}/{path.name}" for path in self.path.glob("*/*")}


@pytest.fixture
def maildir(tmp_path: Path, run: Run) -> Iterator[Maildir]:
    before = os.umask(0o077)
    yield Maildir(tmp_path, run)
    os.umask(before)


def test_the_lines_on_top_are_the_envelope_and_all_else_stays(maildir: Maildir) -> None:
    maildir.put("new/2.x")
    maildir.put("cur/1.y:2,S", ON_TOP.replace(b"a@b.test", b"") + b"Subject: first\r\rlone\r\n\xff")
    maildir.put("tmp/0.z")

    assert maildir.drain("--prefix", "list-") == (os.EX_OK, "2 taken, 0 left\n", "")
    first, second = queued(maildir.policy)
    assert (first.envelope.reverse_path, second.envelope.reverse_path) == ("", "a@b.test")
    assert first.envelope.recipients == second.envelope.recipients == ("c@d.test",)
    assert content_of(first) == b"Subject: first\r\n\r\nlone\r\n\xff\r\n"
    assert first.shape.eight_bit
    assert content_of(second) == SENT
    assert maildir.left == {"tmp/0.z"}


@pytest.mark.parametrize(
    ("words", "reverse_path", "recipients"),
    [
        (["--to", "x@y.test", "--to", "root"], "a@b.test", ("x@y.test", "root@relay.test")),
        (["--to", "x@y.test", "--sender", "<>"], "", ("x@y.test",)),
        (["-t", "--sender", "me@b.test"], "me@b.test", ("t@u.test", "hidden@v.test")),
        (["-t", "--to", "x@y.test"], "a@b.test", ("x@y.test", "t@u.test", "hidden@v.test")),
        ([], "a@b.test", ("list-c@d.test",)),
    ],
)
def test_the_caller_may_say_whose_it_is_and_for_whom(
    maildir: Maildir, words: list[str], reverse_path: str, recipients: tuple[str, ...]
) -> None:
    maildir.put("new/1.x")

    assert maildir.drain(*words).code == os.EX_OK
    (message,) = queued(maildir.policy)
    assert (message.envelope.reverse_path, message.envelope.recipients) == (reverse_path, recipients)
    # Only what a program wrote itself is completed.
    assert content_of(message).endswith(SENT)
    assert (content_of(message) == SENT) == ("-t" not in words)


@pytest.mark.parametrize(
    ("content", "words", "why"),
    [
        (ON_TOP + TEXT, ["--prefix", "x-"], "begins with 'x-'"),
        (TEXT, [], "does not begin with a Return-Path"),
        (b"Return-Path: <a@b.test>\n" + TEXT.partition(b"\n")[2], [], "no Delivered-To on top"),
        (b"Return-Path: no address\n" + TEXT, [], "is not an address"),
        (ON_TOP.replace(b"list-c@d.test", b"root") + TEXT, [], "is not an address"),
        (ON_TOP + b"Subject: x\n\n", ["-t"], "names no recipient"),
        (ON_TOP + TEXT + b"x" * 2000, [], "552"),
        (ON_TOP + TEXT + b"x" * (2 << 20), [], "longer than"),
        (ON_TOP + b"Received: x\n" * 3 + b"\n", [], "554"),
    ],
)
def test_what_is_refused_stays_and_is_told_and_others_go(
    maildir: Maildir, content: bytes, words: list[str], why: str
) -> None:
    good = ON_TOP.replace(b"list-", b"x-list-") + TEXT
    for name in ("new/1.x", "new/3.x"):
        maildir.put(name, good)
    bad = maildir.put("new/2.x", content)

    code, out, err = maildir.drain(*words)
    assert (code, out) == (os.EX_DATAERR, "2 taken, 1 left\n")
    assert err.startswith("drain: new/2.x: left, ")
    assert why in err
    assert len(queued(maildir.policy)) == 2
    assert bad.read_bytes() == content
    assert maildir.left == {"new/2.x"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a maildir away")
def test_root_takes_only_what_is_the_maildirs_owners(maildir: Maildir, tmp_path: Path) -> None:
    """Its owner may link to any file of root's."""
    (tmp_path / "elsewhere").mkdir()
    for owner, name in ((0, "of-root"), (23456, "of-another"), (12345, "of-the-owner")):
        (file := tmp_path / "elsewhere" / name).write_bytes(ON_TOP + TEXT)
        os.chown(file, owner, owner)
        os.link(file, maildir.path / "new" / name)
    os.chown(maildir.path, 12345, 12345)

    assert maildir.drain().code == os.EX_DATAERR
    assert maildir.left == {"new/of-root", "new/of-another"}
    assert len(queued(maildir.policy)) == 1


def test_an_error_of_the_system_says_nothing_of_what_was_queued(maildir: Maildir) -> None:
    maildir.put("new/1.x")
    (maildir.path / "relay-drain.lock").mkdir()
    assert maildir.drain() == (os.EX_TEMPFAIL, "", "drain: Is a directory\n")


def test_one_drain_at_a_time_takes_from_a_maildir(maildir: Maildir) -> None:
    maildir.put("new/1.x")
    with (maildir.path / "relay-drain.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = maildir.drain()
    assert (code, "another drain is at work" in err) == (os.EX_TEMPFAIL, True)
    assert maildir.drain().code == os.EX_OK


@pytest.mark.parametrize("words", [["--prefix", "x", "-t"], ["--prefix", "x", "--to", "a@b.test"]])
def test_a_wrong_call_changes_nothing(maildir: Maildir, words: list[str]) -> None:
    maildir.put("new/1.x")

    assert maildir.drain(*words).code == os.EX_USAGE
    assert maildir.left == {"new/1.x"}


@pytest.mark.parametrize("name", [".", "new", "cur"])
def test_a_symbolic_link_in_place_of_the_maildir_is_refused(
    maildir: Maildir, tmp_path: Path, name: str, run: Run
) -> None:
    """Who may make one there may make it lead to another user's mail."""
    (tmp_path / "other").mkdir()
    other = Maildir(tmp_path / "other", run)
    other.put("new/1.x")
    link = Path(os.path.normpath(maildir.path / name))
    link.rename(tmp_path / "aside")
    assert maildir.drain().code == os.EX_NOINPUT
    link.symlink_to(other.path / name)

    code, _, err = maildir.drain()
    assert (code, f"{link} is a symbolic link" in err) == (os.EX_NOINPUT, True)
    assert queued(maildir.policy) == []
    assert other.left == {"new/1.x"}
