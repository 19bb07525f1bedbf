"""`relay sendmail` and `relay drain` beside a relay that runs, on a spool of their own and on another's."""

import json
import os
import tempfile
from pathlib import Path

import pytest

from tests.system.warm import WarmRelay, run, shared

pytestmark = pytest.mark.full

TEXT = b"From: a@b.test\nDate: x\nMessage-ID: <y>\nTo: c@d.test\n\n" + b"hello\n" * 100
ON_TOP = b"Return-Path: <a@b.test>\nDelivered-To: c@d.test\n"


@pytest.fixture
def relay(tmp_path: Path) -> WarmRelay:
    """Return one that keeps what it takes: its upstream is not there."""
    return WarmRelay(tmp_path, {"isp": {"host": "127.0.0.1", "port": 9, "tls": "none"}})


def contents(policy: Path) -> list[bytes]:
    """Return the content of what is queued, behind our Received line; nothing may be damaged."""
    at = ("--policy", str(policy))
    assert run("fsck", *at).returncode == os.EX_OK
    listed = run("queue", *at, "--json")
    ids = "\n".join(json.loads(line)["queue_id"] for line in listed.stdout.splitlines())
    with tempfile.TemporaryDirectory() as output:
        exported = run("export", *at, "--output", output, "-", stdin=ids.encode())
        assert (listed.returncode, exported.returncode) == (0, 0), exported
        return [path.read_bytes().split(b"\r\n", 3)[3] for path in Path(output).glob("*.eml")]


@pytest.mark.parametrize("is_own", [True, False])
def test_a_relay_that_runs_gets_all(relay: WarmRelay, *, is_own: bool) -> None:
    sent = [b"Subject: %d\r\n\r\n" % n + b".hello\r\n" * (1 + 5000 * (n % 7 == 0)) for n in range(40)]
    maildir = relay.folder / "maildir"
    for name in ("new", "cur", "tmp"):
        (maildir / name).mkdir(parents=True)
    for number, each in enumerate(sent):
        (maildir / "new" / f"{number}.x").write_bytes(ON_TOP + each.replace(b"\r\n", b"\n"))
    with relay:
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
        assert [*maildir.glob("new/*"), *maildir.glob("cur/*")] == []
    assert sorted(contents(relay.policy_path)) == sorted([*sent, TEXT.replace(b"\n", b"\r\n")])


@pytest.mark.parametrize("to", [b"[" * 1_000_000, b"a@b.test" + b"\n x" * 300_000, b'"[\\' * 300_000])
def test_a_list_of_addresses_that_is_made_to_be_slow_is_refused(relay: WarmRelay, to: bytes) -> None:
    """None is an address: a megabyte of each is read through once, or this takes for ever."""
    refused = relay.command("sendmail", "-t", stdin=b"To: " + to + b"\n\nhi\n")
    assert refused.returncode == os.EX_DATAERR
    assert len(refused.stderr) < 10_000
