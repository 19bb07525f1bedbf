"""`relay sendmail` and `relay drain`: killed ahead of each change, and beside a relay that runs.

Where the spool is the caller's own no relay needs to run; elsewhere they speak to one that runs.
"""

import bisect
import json
import os
import random
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from tests.system import syscalls
from tests.system.demand import demand
from tests.system.syscalls import Call, Watcher
from tests.system.warm import WarmRelay, run, shared

pytestmark = pytest.mark.full

POLICY = """
spool: {folder}/spool
listen: [{{address: "127.0.0.1:1", clients: [127.0.0.0/8]}}]
hostname: relay.test
upstreams: {{isp: {{host: 127.0.0.1, port: 9, tls: none, limits: []}}}}
"""
TEXT = b"From: a@b.test\nDate: x\nMessage-ID: <y>\nTo: c@d.test\n\n" + b"hello\n" * 100
CONTENT = TEXT.replace(b"\n", b"\r\n")
MOST_CALLS = 200
ON_TOP = b"Return-Path: <a@b.test>\nDelivered-To: c@d.test\n"
MOST_DRAWN = 6


def killed_ahead(folder: Path, nth: int, words: list[str], text: bytes = b"") -> tuple[int, list[str]]:
    """Run a verb, killed ahead of its n-th call about the folder; return its exit status and those calls."""
    calls: list[str] = []

    def before(call: Call) -> bool:
        if str(folder) not in call.about:
            return True
        calls.append(str(call))
        if len(calls) < nth:
            return True
        os.kill(forked.pid, signal.SIGKILL)
        return False

    (folder / "text").write_bytes(text)
    with (folder / "text").open("rb") as given, Path(os.devnull).open("wb") as nothing:
        fds = given.fileno(), nothing.fileno(), nothing.fileno()
        forked = shared().fork(words, fds, os.environ, is_watched=True)
    (fd,) = forked.watched
    with Watcher(fd, before):
        return forked.wait(), calls


def contents(policy: Path) -> list[bytes]:
    """Return the content of what is queued, behind our Received line; nothing may be damaged."""
    at = ("--policy", str(policy))
    assert run("fsck", *at).returncode in (os.EX_OK, os.EX_NOINPUT)
    listed = run("queue", *at, "--json")
    ids = "\n".join(json.loads(line)["queue_id"] for line in listed.stdout.splitlines())
    with tempfile.TemporaryDirectory() as output:
        exported = run("export", *at, "--output", output, "-", stdin=ids.encode())
        assert (listed.returncode, exported.returncode) == (0, 0), exported
        return [path.read_bytes().split(b"\r\n", 3)[3] for path in Path(output).glob("*.eml")]


def fresh(folder: Path) -> Path:
    """Return the policy of a spool that is not there yet."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "spool").mkdir(parents=True)
    policy = folder / "policy.yaml"
    policy.write_text(POLICY.format(folder=folder))
    return policy


def content(number: int, size: int = 6) -> bytes:
    return f"Subject: {number}\r\n\r\n".encode() + b".hello\r\n" * size


def fill(folder: Path, *contents_: bytes) -> Path:
    maildir = folder / "maildir"
    for name in ("new", "cur", "tmp"):
        (maildir / name).mkdir(parents=True)
    for number, each in enumerate(contents_):
        (maildir / "new" / f"{number}.x").write_bytes(ON_TOP + each.replace(b"\r\n", b"\n"))
    return maildir


def left_in(maildir: Path) -> list[bytes]:
    paths = [*maildir.glob("new/*"), *maildir.glob("cur/*")]
    return [path.read_bytes().removeprefix(ON_TOP).replace(b"\n", b"\r\n") for path in paths]


def test_sendmail_killed_about_its_publication_leaves_nothing_or_all(tmp_path: Path) -> None:
    demand(syscalls.why_missing())
    folder = tmp_path / "run"

    def is_queued(nth: int) -> bool:
        policy = fresh(folder)
        status, _ = killed_ahead(folder, nth, ["sendmail", "-t", "-i", "--policy", str(policy)], TEXT)
        assert status in (0, -signal.SIGKILL)
        kept = contents(policy)
        assert kept in ([], [CONTENT])
        assert kept or status != 0, "what ends well is queued"
        return bool(kept)

    assert is_queued(MOST_CALLS)
    publishing = bisect.bisect(range(1, MOST_CALLS), 0, key=is_queued)
    around = range(publishing - 4, publishing + 7)
    assert [is_queued(nth) for nth in around] == [nth > publishing for nth in around]


def test_a_drain_killed_at_drawn_calls_loses_no_message(tmp_path: Path) -> None:
    demand(syscalls.why_missing())
    # The second is longer than what stays in memory.
    sent, folder = [content(0), content(1, 60_000)], tmp_path / "run"

    def killed(nth: int) -> tuple[int, list[str], Path, Path]:
        """Drain a new maildir, killed ahead of the n-th call; return status, calls, policy and maildir."""
        policy, maildir = fresh(folder), fill(folder, *sent)
        words = ["drain", str(maildir), "--policy", str(policy)]
        return *killed_ahead(folder, nth, words), policy, maildir

    status, calls, policy, maildir = killed(1 << 30)
    assert (status, left_in(maildir)) == (0, [])
    assert set(contents(policy)) == set(sent)
    # Around each change of the maildir, and at others by chance.
    removals = [number for number, call in enumerate(calls, 1) if str(maildir) in call]
    chosen = {number + off for number in removals[-5:] for off in (-1, 0, 1)} & {*range(1, len(calls))}
    instants = sorted(chosen.union(random.Random(1).sample(range(1, len(calls)), MOST_DRAWN)))
    found = list[int]()
    for nth in instants:
        status, ahead_of, policy, maildir = killed(nth)

        assert status == -signal.SIGKILL
        left, kept = left_in(maildir), contents(policy)
        assert set(left) | set(kept) == set(sent), ahead_of[-1]
        # At most the one that was just handed over is in both.
        assert len(left) + len(kept) <= len(sent) + 1
        assert len(kept) == len(set(kept))
        found.append(len(left))
        if nth in instants[::4]:
            # The next drain goes on where this one was killed.
            assert run("drain", str(maildir), "--policy", str(policy)).returncode == 0
            assert left_in(maildir) == []
            assert set(contents(policy)) == set(sent)
    assert {1, 2} <= set(found), calls
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("is_own", [True, False])
def test_a_relay_that_runs_gets_all(tmp_path: Path, *, is_own: bool) -> None:
    sent = [content(number, 1 + 5000 * (number % 7 == 0)) for number in range(40)]
    maildir = fill(tmp_path, *sent)
    # It keeps what it takes: its upstream is not there.
    with WarmRelay(tmp_path, {"isp": {"host": "127.0.0.1", "port": 9, "tls": "none", "limits": []}}) as relay:
        policy = relay.policy_path
        if not is_own:
            # Of whoever may not look into its spool: by SMTP on loopback.
            policy = relay.folder / "elsewhere.yaml"
            policy.write_text(relay.policy_path.read_text().replace("./spool", "./not/mine"))
        assert run("sendmail", "-t", "-i", "--policy", str(policy), stdin=TEXT).returncode == 0
        # Two at once: one takes all, the other has to wait.
        words = ["drain", str(maildir), "--policy", str(policy)]
        with Path(os.devnull).open("r+b") as nothing:
            both = [shared().fork(words, (nothing.fileno(),) * 3, os.environ) for _ in range(2)]
        codes = {each.wait() for each in both}

        assert os.EX_OK in codes
        assert codes <= {os.EX_OK, os.EX_TEMPFAIL}
        assert left_in(maildir) == []
        relay.stop()
    assert sorted(contents(relay.policy_path)) == sorted([*sent, CONTENT])


@pytest.mark.parametrize("to", [b"[" * 1_000_000, b"a@b.test" + b"\n x" * 300_000, b'"[\\' * 300_000])
def test_a_list_of_addresses_that_is_made_to_be_slow_is_refused(tmp_path: Path, to: bytes) -> None:
    """None is an address: a megabyte of each is read through once, or this takes for ever."""
    policy = fresh(tmp_path / "run")
    refused = run("sendmail", "-t", "--policy", str(policy), stdin=b"To: " + to + b"\n\nhi\n")
    assert refused.returncode == os.EX_DATAERR
    assert len(refused.stderr) < 10_000
