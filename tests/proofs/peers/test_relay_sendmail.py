"""`relay sendmail`, killed ahead of each call that changes something.

Where the spool is the caller's own no relay runs; elsewhere they speak to one that runs.
"""

import bisect
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
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
TEXT = b"From: a@b.test\nDate: x\nMessage-ID: <y>\nTo: c@d.test\n\n" + b"hello\n" * 100
CONTENT = TEXT.replace(b"\n", b"\r\n")
MOST_CALLS = 200


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "spool").mkdir(parents=True)
    policy = folder / "policy.yaml"
    policy.write_text(POLICY.format(folder=folder))
    return policy


def kept_when_killed(folder: Path, text: Path, nth: int) -> tuple[int, list[bytes]]:
    """Return the exit status of one `relay sendmail`, killed ahead of its n-th call, and what is queued."""
    policy = fresh(folder)
    status = run_watched(Hangman(folder, nth), ["sendmail", "-t", "-i", "--policy", str(policy)], text)
    kept = contents(policy)
    assert kept in ([], [CONTENT])
    return status, kept


@pytest.mark.slow
@pytest.mark.crash
def test_sendmail_killed_at_each_call_leaves_nothing_or_all(tmp_path: Path) -> None:
    demand(syscalls.why_missing())
    text, folder = tmp_path / "text", tmp_path / "run"
    text.write_bytes(TEXT)
    found: list[int] = []
    status, kept = -1, list[bytes]()
    for nth in range(1, MOST_CALLS):
        status, kept = kept_when_killed(folder, text, nth)

        found.append(len(kept))
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    assert (status, kept) == (0, [CONTENT]), "the last run was not killed"
    assert found == sorted(found), "once it is queued, it stays"
    assert len(found) > 5


@pytest.mark.slow
def test_sendmail_killed_about_its_publication_leaves_nothing_or_all(tmp_path: Path) -> None:
    """As the test at each call, which takes minutes: here at the call that publishes, and around it."""
    demand(syscalls.why_missing())
    text, folder = tmp_path / "text", tmp_path / "run"
    text.write_bytes(TEXT)

    def is_queued(nth: int) -> bool:
        status, kept = kept_when_killed(folder, text, nth)
        assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
        assert kept or status != 0, "what ends well is queued"
        return bool(kept)

    assert is_queued(MOST_CALLS)
    publishing = bisect.bisect(range(1, MOST_CALLS), 0, key=is_queued)
    around = range(publishing - 2, publishing + 5)
    assert [is_queued(nth) for nth in around] == [nth > publishing for nth in around]


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayProcess]:
    """Run a relay that keeps what it takes: its upstream is not there."""
    upstream = {"host": "127.0.0.1", "port": 9, "tls": "none", "limits": []}
    relay = RelayProcess(tmp_path, {"isp": upstream})
    with relay:
        yield relay


def stranger_to(relay: RelayProcess) -> Path:
    """Return a policy of the same relay for whoever may not look into its spool."""
    policy = relay.folder / "elsewhere.yaml"
    policy.write_text(relay.policy_path.read_text().replace("./spool", "./not/mine"))
    return policy


def link(folder: Path) -> Path:
    path = folder / "sendmail"
    path.symlink_to(Path(sys.executable).with_name("relay"))
    return path


@pytest.mark.parametrize("is_own", [True, False])
def test_sendmail_reaches_a_relay_that_runs(relay: RelayProcess, *, is_own: bool) -> None:
    policy = relay.policy_path if is_own else stranger_to(relay)
    command = [str(link(relay.folder)), "-t", "-i", "--policy", str(policy)]

    subprocess.run(command, input=TEXT, check=True)

    relay.stop()
    assert contents(relay.policy_path) == [CONTENT]
