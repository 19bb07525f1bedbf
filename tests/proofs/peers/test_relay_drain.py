"""`relay drain`, killed ahead of each call that changes something, and beside a relay that runs."""

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proofs.peers import syscalls
from tests.proofs.peers.demand import demand
from tests.proofs.peers.hangman import Hangman, contents, run_watched
from tests.proofs.peers.relay import RelayProcess

POLICY = """
spool: {folder}/spool
listen: [{{address: "127.0.0.1:1", clients: [127.0.0.0/8]}}]
hostname: relay.test
upstreams: {{isp: {{host: 127.0.0.1, port: 9, tls: none, limits: []}}}}
"""
ON_TOP = b"Return-Path: <a@b.test>\nDelivered-To: c@d.test\n"
MOST_DRAWN = 6


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


def killed(folder: Path, sent: list[bytes], nth: int) -> tuple[int, Hangman, Path, Path]:
    """Drain a new maildir, killed ahead of the n-th call; return the exit status, policy and maildir."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "spool").mkdir(parents=True)
    policy, maildir, hangman = folder / "policy.yaml", fill(folder, *sent), Hangman(folder, nth)
    policy.write_text(POLICY.format(folder=folder))
    words = ["drain", str(maildir), "--policy", str(policy)]
    return run_watched(hangman, words, Path(os.devnull)), hangman, policy, maildir


@pytest.mark.slow
def test_a_drain_killed_at_drawn_calls_loses_no_message(tmp_path: Path) -> None:
    demand(syscalls.why_missing())
    # The second is longer than what stays in memory.
    sent, folder = [content(0), content(1, 60_000)], tmp_path / "run"
    status, whole, policy, maildir = killed(folder, sent, 1 << 30)
    assert (status, left_in(maildir)) == (0, [])
    assert set(contents(policy)) == set(sent)
    rng, found = random.Random(1), list[int]()
    # Around each change of the maildir, and at others by chance.
    removals = [number for number, call in enumerate(whole.calls, 1) if str(maildir) in call]
    chosen = {number + off for number in removals[-5:] for off in (-1, 0, 1)} & {*range(1, len(whole.calls))}
    instants = sorted(chosen.union(rng.sample(range(1, len(whole.calls)), MOST_DRAWN)))
    for nth in instants:
        status, hangman, policy, maildir = killed(folder, sent, nth)

        assert os.WTERMSIG(status) == signal.SIGKILL
        left, kept = left_in(maildir), contents(policy)
        assert set(left) | set(kept) == set(sent), hangman.calls[-1]
        # At most the one that was just handed over is in both.
        assert len(left) + len(kept) <= len(sent) + 1
        assert len(kept) == len(set(kept))
        found.append(len(left))
        if nth in instants[::4]:
            # The next drain goes on where this one was killed.
            again = [sys.executable, "-m", "relay", "drain", str(maildir), "--policy", str(policy)]
            subprocess.run(again, check=True, capture_output=True)
            assert left_in(maildir) == []
            assert set(contents(policy)) == set(sent)
    assert {1, 2} <= set(found), whole.calls
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("is_own", [True, False])
def test_a_running_relay_gets_all_of_a_maildir(tmp_path: Path, *, is_own: bool) -> None:
    sent = [content(number, 1 + 5000 * (number % 7 == 0)) for number in range(40)]
    maildir = fill(tmp_path, *sent)
    with RelayProcess(
        tmp_path, {"isp": {"host": "127.0.0.1", "port": 9, "tls": "none", "limits": []}}
    ) as relay:
        policy = relay.policy_path
        if not is_own:
            # Of whoever may not look into its spool: by SMTP on loopback.
            policy = relay.folder / "elsewhere.yaml"
            policy.write_text(relay.policy_path.read_text().replace("./spool", "./not/mine"))

        # Two at once: one takes all, the other has to wait.
        command = [sys.executable, "-m", "relay", "drain", str(maildir), "--policy", str(policy)]
        both = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
        codes = {each.wait() for each in both}

        assert os.EX_OK in codes
        assert codes <= {os.EX_OK, os.EX_TEMPFAIL}
        assert left_in(maildir) == []
        relay.stop()
    assert sorted(contents(relay.policy_path)) == sorted(sent)
