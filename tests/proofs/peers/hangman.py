"""Kills a `relay` command ahead of a call of the test's choice, and says what the spool has then."""

import os
import signal
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path

from relay.clock import SystemClock
from relay.policy.source import parse_policy
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import open_spool
from tests.proofs.peers import syscalls
from tests.proofs.peers.syscalls import Call, Watcher
from tests.unit.spool.recovering import recover


@dataclass
class Hangman:
    """Kills a program ahead of the n-th call about its own files."""

    folder: Path
    nth: int
    pid: int = 0
    calls: list[str] = field(default_factory=list)

    def before(self, call: Call) -> bool:
        if str(self.folder) not in call.about:
            return True
        self.calls.append(str(call))
        if len(self.calls) < self.nth:
            return True
        os.kill(self.pid, signal.SIGKILL)
        return False


def run_watched(hangman: Hangman, words: list[str], text: Path) -> int:
    """Return the exit status as waitpid(2) has it."""
    ours, theirs = socket.socketpair()
    hangman.pid = os.fork()
    if hangman.pid == 0:
        try:
            fd = syscalls.install()
            # sendmsg(2) is not watched: nobody could let it go on yet.
            socket.send_fds(theirs, [b"!"], [fd])
            os.dup2(os.open(text, os.O_RDONLY), 0)
            os.execv(sys.executable, [sys.executable, "-m", "relay", *words])
        finally:
            os._exit(os.EX_OSERR)
    with ours, theirs:
        _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
    with Watcher(fd, hangman.before):
        return os.waitpid(hangman.pid, 0)[1]


def contents(policy: Path) -> list[bytes]:
    """Return the content of what is queued, behind our Received line; nothing may be damaged."""
    spool = open_spool(parse_policy(policy.read_bytes(), policy), RealDisk(), SystemClock(), lambda *_: None)
    try:
        recovered = recover(spool)
        assert recovered.corrupt == 0
        entries = (*recovered.entries, *spool.take(100))
        stored = [
            spool.load(each.queue_id).content or b"".join(spool.content(each.queue_id)) for each in entries
        ]
        return [each.split(b"\r\n", 3)[3] for each in stored]
    finally:
        spool.close()
