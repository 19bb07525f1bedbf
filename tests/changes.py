"""`make changes`: forty faults of the kinds that people make, and the suite that has to notice each.

For each row the fault goes into a copy of the project, and the suite runs there and has to fail.  The
simulation gets 60 s of processor time.  `python -m tests.changes WORD…` tries the rows with one of the words.
"""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SIMULATION_CPU_S = 60
LONGEST_S = 1800
PYTEST = ("pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not full and not measures and not crash")

SIMULATION = "the simulation"
CUTS = "tests/engines/spool/test_crash.py"
FAULTS = "tests/engines/spool/test_faults.py"
LOG = "tests/engines/spool/test_log.py"
MAILDIR = "tests/engines/spool/test_maildir.py"
CONVERT = "tests/unit/cli/test_spool_convert.py"
LISTENER = "tests/unit/listener"
DAEMON = "tests/unit/daemon"


class Change(NamedTuple):
    fault: str
    file: str
    stands: str
    instead: str
    suite: str


CHANGES = (
    Change(
        "a slot is freed early: at its transaction's start",
        "throttle/book.py",
        "self._end(slot_id, at_ns)",
        "self._end(slot_id, self.in_flight[slot_id].started_at_ns if slot_id in self.in_flight else at_ns)",
        SIMULATION,
    ),
    Change(
        "a slot ends though the upstream may go on with the transaction",
        "sender/transactions.py",
        "if is_over or attempt.ended_ns > reservation.deadline_ns + SUSPENDED_NS:",
        "if True:",
        SIMULATION,
    ),
    Change(
        "a key's window is off by one",
        "throttle/limit_state.py",
        "return max(0, self.count - self.used(key, now_ns))",
        "return max(0, self.count + 1 - self.used(key, now_ns))",
        SIMULATION,
    ),
    Change(
        "recipients are marked before the final dot is answered",
        "upstream/transaction.py",
        "        # Crash here: the message may have been relayed; it stays queued and its slot stays "
        "charged.\n",
        '        self._settle_rest(Answer(Verdict.RELAYED, Phase.EOD, None, "it is on its way"))\n',
        SIMULATION,
    ),
    Change(
        "the client is told 250 before its message is durable",
        "listener/session.py",
        "        await listener.intake.accept(draft, envelope)",
        "        self.storing = asyncio.ensure_future(listener.intake.accept(draft, envelope))",
        SIMULATION,
    ),
    Change(
        "the account is not woken when its line changes",
        "sender/account.py",
        "self._line.on_change = self._wake.set",
        "self._line.on_change = lambda: None",
        SIMULATION,
    ),
    Change(
        "what a refusal overtook is not given back to its line",
        "sender/account.py",
        "            self._line.give_back(attempt.queued, WaitReason(why))\n",
        "",
        SIMULATION,
    ),
    Change(
        "what the upstream says of the account is not told to its state",
        "sender/transactions.py",
        "        self._pausing.observe(decision.outcome, began_ns)\n",
        "",
        SIMULATION,
    ),
    Change(
        "what was settled is told and forgotten before it is durable",
        "sender/settling.py",
        "            await settle(what)\n",
        "            self.under_way = asyncio.ensure_future(settle(what))\n",
        SIMULATION,
    ),
    Change(
        "a maildir's accepted message is not synced",
        "spool/maildir/intake.py",
        "synced = self._disk.sync_each(fds, content_only=False)",
        "synced = [None] * len(fds)",
        SIMULATION,
    ),
    Change(
        "a host does not look at the pause of others behind its reservation",
        "sender/account.py",
        "        self.pausing.learn()\n        return not (",
        "        return not (",
        SIMULATION,
    ),
    Change(
        "what other hosts committed is learned in any order",
        "throttle/postgresql_history.py",
        " ORDER BY position",
        "",
        SIMULATION,
    ),
    # The maildir.
    Change(
        "the name of an accepted message is not made durable",
        "spool/maildir/intake.py",
        "error = error_of(self._disk.sync_directory, self._layout.new)",
        "error = None",
        CUTS,
    ),
    Change(
        "a draft's second name goes before its first is there",
        "spool/maildir/intake.py",
        "        synced = self._disk.sync_each(fds, content_only=False)\n",
        "        synced = self._disk.sync_each(fds, content_only=False)\n"
        '        self._disk.unlink(f"{self._layout.drafts}/{drafts[0][0].queue_id}")\n',
        CUTS,
    ),
    Change(
        "a message is claimed while its listener holds its lock",
        "spool/maildir/engine.py",
        "if is_new and not self._disk.lock_open(fd):",
        "if False:",
        CUTS,
    ),
    Change(
        "status bytes are written before the notes that say why",
        "spool/maildir/engine.py",
        "        self._note(group)\n"
        "        with contextlib.ExitStack() as files:\n"
        "            marks = self._mark(group, settlements, files)\n",
        "        with contextlib.ExitStack() as files:\n"
        "            marks = self._mark(group, settlements, files)\n"
        "            self._note(group)\n",
        CUTS,
    ),
    Change(
        "the message is marked as told before its report is there",
        "spool/maildir/engine.py",
        "            self._publish(group, marks)\n",
        "            self._tell(group, marks)\n            self._publish(group, marks)\n",
        CUTS,
    ),
    Change(
        "the recipient that names the report is told first",
        "spool/maildir/marks.py",
        "(told[1:], told[:1])",
        "(told[:1], told[1:])",
        CUTS,
    ),
    Change(
        "a new file is synced without its size",
        "spool/disk/durable.py",
        "sync = os.fdatasync if content_only else os.fsync",
        "sync = os.fdatasync",
        "tests/engines/spool/test_durable_calls.py",
    ),
    Change(
        "a mark goes into a file whose recipients are others",
        "spool/maildir/marks.py",
        "if block[at + 1 : at + 1 + len(address)] != address or mark not in _BY_MARK:",
        "if mark not in _BY_MARK:",
        MAILDIR,
    ),
    Change(
        "long content is sent though it changed behind its check",
        "spool/message/reading.py",
        "if crc != checksums[number]:",
        "if False:",
        f"{MAILDIR} {LOG}",
    ),
    Change(
        "new mail takes the room that is kept for reports and marks",
        "spool/root/headroom.py",
        "if free_bytes <= wanted_bytes + HEADROOM_BYTES:",
        "if free_bytes <= wanted_bytes:",
        "tests/unit/sender/test_full_disk.py",
    ),
    # The log.
    Change(
        "a group of the log is not synced",
        "spool/log/writer.py",
        "            self._disk.sync_content(self._fd)\n",
        "            pass\n",
        CUTS,
    ),
    Change(
        "a segment says that all of the one before it counts",
        "spool/log/writer.py",
        "header = header_of(self.position)",
        "header = header_of(Position(self._number, self._end + 4096))",
        LOG,
    ),
    Change(
        "segments are removed before the checkpoint that does not need them",
        "spool/log/engine.py",
        "        checkpoint.write(self._disk, self._layout, content)\n",
        "        for segment in dead:\n"
        "            with contextlib.suppress(FileNotFoundError):\n"
        "                self._disk.unlink(self._layout.segment(segment.name))\n"
        "        checkpoint.write(self._disk, self._layout, content)\n",
        CUTS,
    ),
    Change(
        "a checkpoint is renamed before it is synced",
        "spool/disk/replacing.py",
        "        disk.sync(fd)\n",
        "",
        "tests/engines/spool/test_durable.py",
    ),
    Change(
        "long content is removed before its end is written",
        "spool/log/engine.py",
        "        try:\n            self._write(settling.records)\n",
        "        for queue_id in long:\n"
        "            self._disk.unlink(self._layout.content(queue_id))\n"
        "        try:\n            self._write(settling.records)\n",
        CUTS,
    ),
    Change(
        "an end counts though its group is damaged",
        "spool/log/index.py",
        "            if is_whole:\n",
        "            if True:\n",
        LOG,
    ),
    Change(
        "a listener's mail counts before it is announced",
        "spool/log/streams.py",
        "parts.append(StreamPart(number, announced.end, None))",
        "parts.append(StreamPart(number, end, None))",
        LOG,
    ),
    Change(
        "where there is no room, relayed recipients are not marked either",
        "spool/log/engine.py",
        "                    self._write(settling.relayed)\n",
        "                    pass\n",
        LOG,
    ),
    Change(
        "a spool is converted under its listeners",
        "spool/convert.py",
        'with kernel_errors("conversion"), opened(disk, lock_out_intakes(root, disk)):',
        'with kernel_errors("conversion"):',
        CONVERT,
    ),
    # The listener.
    Change(
        "what came in the clear counts under TLS",
        "listener/session.py",
        "        if self.has_unread:\n",
        "        if False:\n",
        LISTENER,
    ),
    Change(
        "a lone line feed is taken for a line's end",
        "listener/content.py",
        "if not has_only_crlf(block):",
        "if False:",
        LISTENER,
    ),
    Change(
        "an unknown user gets in with another one's password",
        "listener/users.py",
        "return matches and known is not None and self._hashes.get(name) == known",
        "return matches",
        LISTENER,
    ),
    Change(
        "the balancer's header takes octets of the client along",
        "listener/proxied.py",
        "sock_recv(self._accepted, n - len(octets))",
        "sock_recv(self._accepted, 4096)",
        LISTENER,
    ),
    Change(
        "a stranger that leaves keeps its place",
        "listener/access.py",
        "        if not place.may_relay:\n            _count_down(",
        "        if place.may_relay:\n            _count_down(",
        LISTENER,
    ),
    Change(
        "octets that trickle in keep the deadline away",
        "listener/wire.py",
        "        if self.loop.time() >= deadline:\n",
        "        if False:\n",
        LISTENER,
    ),
    # The daemon.
    Change(
        "half of an edit comes into force",
        "daemon/policy_watch.py",
        "(now == self._decided or not rests)",
        "now == self._decided",
        DAEMON,
    ),
    Change(
        "the sender is not woken for mail that was accepted",
        "daemon/spool_intake.py",
        "            self._trigger.pull()\n",
        "            pass\n",
        DAEMON,
    ),
    Change(
        "a draft is discarded while a thread writes it",
        "daemon/spool_intake.py",
        "            await asyncio.wait([writing])\n",
        "",
        DAEMON,
    ),
)


def main() -> int:
    words = sys.argv[1:]
    wanted = [each for each in CHANGES if not words or any(word in f"{each}" for word in words)]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="relay-changes-") as folder:
        copy = Path(folder, "copy")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "var", "__pycache__"))
        for each in wanted:
            began_s = time.monotonic()
            with _changed(copy, each):
                noticed = _noticed(copy, each.suite)
            missed += noticed is None
            took_s = time.monotonic() - began_s
            sys.stdout.write(f"{each.file}: {each.fault}\n  {took_s:.0f} s: {noticed or 'NOT NOTICED'}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(wanted) - missed} of {len(wanted)} noticed\n")
    return 1 if missed else 0


@contextlib.contextmanager
def _changed(copy: Path, change: Change) -> Iterator[None]:
    """Put a fault into the copy, and take it out again.  Raises ValueError unless it has just one place."""
    file = copy / "relay" / change.file
    text = file.read_text()
    if (found := text.count(change.stands)) != 1:
        raise ValueError(f"{change.fault}: its text is in {change.file} {found} times")
    file.write_text(text.replace(change.stands, change.instead))
    try:
        yield
    finally:
        file.write_text(text)


def _noticed(copy: Path, suite: str) -> str | None:
    """Return the first failure, or None, also if the time is up.  Raises ValueError if it does not run."""
    if suite == SIMULATION:
        arguments, most_s = ["tests.simulation", "--whole", "1", "1000"], SIMULATION_CPU_S
    else:
        arguments, most_s = [*PYTEST, *suite.split()], LONGEST_S
    ran = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=copy,
        # No .pyc: it would pass as current if the next fault in its file has the same second and length.
        env=os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s + 1)),
        check=False,
    )
    if ran.returncode in (0, -signal.SIGXCPU):
        return None
    lines = (ran.stdout + ran.stderr).splitlines()
    told = [line for line in lines if line.startswith("seed " if suite == SIMULATION else "FAILED")]
    if ran.returncode != 1 or not told:
        raise ValueError(f"{suite} did not run:\n" + "\n".join(lines[-40:]))
    return told[0]


if __name__ == "__main__":
    sys.exit(main())
