"""A whole relay whose disk fails a sync: it says why, and asks again."""

import asyncio
import os
import re
import smtplib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes.smarthost import Smarthost
from tests.system import smtp_tools
from tests.system.demand import demand, find, missing_program
from tests.system.smtp_tools import smtp_sink
from tests.system.waiting import HANG_S, wait_until
from tests.system.warm import WarmRelay

ENGINES = ("maildir", "log")
FOLDERS = ("tmp", "new", "long")
"""Where mail is that was not accepted yet, or just now."""
ONE_MESSAGE = re.compile(rb'\["reserved",[0-9]+,[0-9]+,[0-9]+,1,1,0,[0-9]+\]')
"""A reservation of one message to one recipient, without shares."""
LONG = (b"x" * 70 + b"\r\n") * 8192
"""Content that is streamed: above 256 KiB."""


@contextmanager
def _failing(pid: int, syscall: str) -> Iterator[None]:
    """Let the next such call of a process, in whichever thread, fail with EIO (strace(1))."""
    command = [str(find("strace")), "-f", "-p", str(pid), "-o", "/dev/null"]
    command += ["-e", f"trace={syscall}", "-e", f"inject={syscall}:error=EIO:when=1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as strace:
        try:
            assert strace.stderr is not None
            assert b"attached" in strace.stderr.readline()
            yield
        finally:
            strace.terminate()


def _hand_over(port: int) -> bytes:
    with smtplib.SMTP("127.0.0.1", port, timeout=HANG_S) as session:
        session.ehlo()
        session.mail("mjd@front.test")
        session.rcpt("r@list.test")
        code, text = session.data(b"Subject: one\r\n\r\none\r\n")
    return b"%d %s" % (code, text)


@pytest.mark.parametrize(("engine", "syscall"), [("maildir", "fdatasync"), ("log", "fsync")])
def test_marks_that_could_not_be_synced_are_written_again(tmp_path: Path, engine: str, syscall: str) -> None:
    demand(smtp_tools.why_missing(), missing_program("strace"))
    # It answers DATA late: by then the slot is durable, and what follows is the mark, in a log a new segment.
    with smtp_sink("-w", "3") as sink:
        history = tmp_path / "history"
        isp = {"host": "127.0.0.1", "port": sink.port, "tls": "none", "history": str(history)}
        relay = WarmRelay(tmp_path, {"isp": isp}, spool={"path": "./spool", "engine": engine})
        with relay:
            assert _hand_over(relay.port).startswith(b"250")
            wait_until(lambda: history.exists() and ONE_MESSAGE.search(history.read_bytes()))
            with _failing(relay.pid, syscall):
                relay.wait_for_log(lambda line: "spool failed: Input/output error" in line)
            relay.wait_until_empty()
        assert sink.count == 1
        assert relay.command("fsck").returncode == os.EX_OK


@pytest.mark.parametrize("engine", ENGINES)
def test_mail_that_cannot_be_synced_gets_451_and_is_given_up(tmp_path: Path, engine: str) -> None:
    demand(smtp_tools.why_missing(), missing_program("strace"))
    with smtp_sink() as sink:
        history = tmp_path / "history"
        isp = {"host": "127.0.0.1", "port": sink.port, "tls": "none", "history": str(history)}
        relay = WarmRelay(tmp_path, {"isp": isp}, spool={"path": "./spool", "engine": engine})
        with relay:
            # Its start has looked for the history by then, and has nothing more to sync.
            wait_until(history.with_suffix(".lock").exists)
            with _failing(relay.pid, "fsync"):
                assert _hand_over(relay.port).startswith(b"451 4.3.0")
            assert relay.queue() == []
            assert [path for name in FOLDERS for path in (tmp_path / "spool" / name).glob("*")] == []
            relay.wait_for_log(lambda line: "spool failed: accept: message: Input/output error" in line)
            assert _hand_over(relay.port).startswith(b"250")
            sink.wait_for(1)
            relay.wait_until_empty()
        assert sink.count == 1
        assert relay.command("fsck").returncode == os.EX_OK


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_damaged_sector_of_long_content_is_no_fault_of_the_sender(
    tmp_path: Path, engine: str
) -> None:
    def act(host: Smarthost) -> None:
        upstream = {"host": "127.0.0.1", "port": host.port, "tls": "none"}
        relay = WarmRelay(
            tmp_path, {"isp": upstream}, spool={"path": "./spool", "engine": engine}, hostname="relay.test"
        )
        with relay:
            assert relay.command("pause", "isp").returncode == 0
            with smtplib.SMTP("127.0.0.1", relay.port, timeout=HANG_S) as session:
                session.sendmail("mjd@front.test", ["r@list.test"], b"Subject: long\r\n\r\n" + LONG)
            relay.kill()
        (path,) = (p for p in (tmp_path / "spool").rglob("*") if p.is_file() and p.stat().st_size > len(LONG))
        with path.open("r+b") as file:
            file.seek(len(LONG) // 2)
            file.write(b"\r" * 512)
        with relay:
            assert relay.command("resume", "isp").returncode == 0
            relay.wait_for_log(lambda line: "does not match its checksum" in line or "status=" in line)
            wait_until(lambda: relay.metrics()["relay_spool_corrupt_total"] == 1)
        # Damaged mail is still there, for a human being.
        assert relay.command("fsck").returncode == os.EX_DATAERR
        assert [line for line in relay.log() if "status=" in line] == []
        assert host.relayed == []

    host = Smarthost()
    async with host:
        await asyncio.to_thread(act, host)
