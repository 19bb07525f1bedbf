"""`make changes`: forty faults of the kinds that people make, and the suite that has to notice each.

For each row the fault goes into a copy of the project, and the suite runs there and has to fail.  The
simulation gets 60 s of processor time.  `python -m tests.changes WORD…` tries the rows with one of the words.
"""

import contextlib
import os
import re
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

SIMULATION = "simulation"
TABLE = """\
# a slot is freed early: at its transaction's start
throttle/book.py: simulation
-self._end(slot_id, at_ns)
+self._end(slot_id, self.in_flight[slot_id].started_at_ns if slot_id in self.in_flight else at_ns)
# a slot ends though the upstream may go on with the transaction
sender/transactions.py: simulation
-if is_over or attempt.ended_ns > reservation.deadline_ns + SUSPENDED_NS:
+if True:
# a key's window is off by one
throttle/limit.py: simulation
-return max(0, self.count - self.used(key, now_ns))
+return max(0, self.count + 1 - self.used(key, now_ns))
# recipients are marked before the final dot is answered
upstream/transaction.py: simulation
-        # Crash here: the message may have been relayed; it stays queued and its slot stays charged.
+        self._settle_rest(Answer(Verdict.RELAYED, Phase.EOD, None, "it is on its way"))
# the client is told 250 before its message is durable
listener/session.py: simulation
-        await listener.intake.accept(draft, envelope)
+        self.storing = asyncio.ensure_future(listener.intake.accept(draft, envelope))
# the account is not woken when its line changes
sender/account.py: simulation
-self._line.on_change = self.wake.set
+self._line.on_change = lambda: None
# what a refusal overtook is not given back to its line
sender/account.py: simulation
-            self._line.give_back(attempt.queued, WaitReason(why))
# what the upstream says of the account is not told to its state
sender/transactions.py: simulation
-        self._pausing.observe(decision.outcome, attempt.began_ns)
# what was settled is told and forgotten before it is durable
sender/settling.py: simulation
-            await settle(what)
+            self.under_way = asyncio.ensure_future(settle(what))
# a maildir's accepted message is not synced
spool/maildir/intake.py: simulation
-synced = self._disk.sync_each(fds, content_only=False)
+synced = [None] * len(fds)
# a host does not look at the pause of others behind its reservation
sender/account.py: simulation
-        self.pausing.learn()
-        return not (
+        return not (
# what other hosts committed is learned in any order
throttle/postgresql_history.py: simulation
- ORDER BY position
# the name of an accepted message is not made durable
spool/maildir/intake.py: tests/engines/spool/test_crash.py
-error = error_of(self._disk.sync_directory, self._layout.new)
+error = None
# a draft's second name goes before its first is there
spool/maildir/intake.py: tests/engines/spool/test_crash.py
-        synced = self._disk.sync_each(fds, content_only=False)
+        synced = self._disk.sync_each(fds, content_only=False)
+        self._disk.unlink(f"{self._layout.drafts}/{drafts[0][0].queue_id}")
# a message is claimed while its listener holds its lock
spool/maildir/engine.py: tests/engines/spool/test_crash.py
-if is_new and not self._disk.lock_open(fd):
+if False:
# status bytes are written before the notes that say why
spool/maildir/engine.py: tests/engines/spool/test_crash.py
-        self._note(group)
-        with contextlib.ExitStack() as files:
-            marks = self._mark(group, settlements, files)
+        with contextlib.ExitStack() as files:
+            marks = self._mark(group, settlements, files)
+            self._note(group)
# the message is marked as told before its report is there
spool/maildir/engine.py: tests/engines/spool/test_crash.py
-            self._publish(group, marks)
+            self._tell(group, marks)
+            self._publish(group, marks)
# the recipient that names the report is told first
spool/maildir/marks.py: tests/engines/spool/test_crash.py
-(told[1:], told[:1])
+(told[:1], told[1:])
# a new file is synced without its size
spool/disk/durable.py: tests/engines/spool/test_durable_calls.py
-sync = os.fdatasync if content_only else os.fsync
+sync = os.fdatasync
# a mark goes into a file whose recipients are others
spool/maildir/marks.py: tests/engines/spool/test_maildir.py
-if block[at + 1 : at + 1 + len(address)] != address or mark not in _BY_MARK:
+if mark not in _BY_MARK:
# long content is sent though it changed behind its check
spool/message/reading.py: tests/engines/spool/test_maildir.py tests/engines/spool/test_log.py
-if crc != checksums[number]:
+if False:
# new mail takes the room that is kept for reports and marks
spool/root/headroom.py: tests/unit/sender/test_full_disk.py
-if free_bytes <= wanted_bytes + HEADROOM_BYTES:
+if free_bytes <= wanted_bytes:
# a group of the log is not synced
spool/log/writer.py: tests/engines/spool/test_crash.py
-            self._disk.sync_content(self._fd)
+            pass
# a segment says that all of the one before it counts
spool/log/writer.py: tests/engines/spool/test_log.py
-header = header_of(self.position)
+header = header_of(Position(self._number, self._end + 4096))
# segments are removed before the checkpoint that does not need them
spool/log/engine.py: tests/engines/spool/test_crash.py
-        checkpoint.write(self._disk, self._layout, content)
+        for segment in dead:
+            with contextlib.suppress(FileNotFoundError):
+                self._disk.unlink(self._layout.segment(segment.name))
+        checkpoint.write(self._disk, self._layout, content)
# a checkpoint is renamed before it is synced
spool/disk/replacing.py: tests/engines/spool/test_durable.py
-        disk.sync(fd)
# long content is removed before its end is written
spool/log/engine.py: tests/engines/spool/test_crash.py
-        try:
-            self._write(settling.records)
+        for queue_id in long:
+            self._disk.unlink(self._layout.content(queue_id))
+        try:
+            self._write(settling.records)
# an end counts though its group is damaged
spool/log/index.py: tests/engines/spool/test_log.py
-            if is_whole:
+            if True:
# a listener's mail counts before it is announced
spool/log/streams.py: tests/engines/spool/test_log.py
-parts.append(StreamPart(number, announced.end, None))
+parts.append(StreamPart(number, end, None))
# where there is no room, relayed recipients are not marked either
spool/log/engine.py: tests/engines/spool/test_log.py
-                    self._write(settling.relayed)
+                    pass
# a spool is converted under its listeners
spool/convert.py: tests/unit/cli/test_spool_convert.py
-with kernel_errors("conversion"), opened(disk, lock_out_intakes(root, disk)):
+with kernel_errors("conversion"):
# what came in the clear counts under TLS
listener/session.py: tests/unit/listener
-        if self.has_unread:
+        if False:
# a lone line feed is taken for a line's end
listener/content.py: tests/unit/listener
-if not has_only_crlf(block):
+if False:
# an unknown user gets in with another one's password
listener/users.py: tests/unit/listener
-return matches and known is not None and self._hashes.get(name) == known
+return matches
# the balancer's header takes octets of the client along
listener/proxied.py: tests/unit/listener
-sock_recv(self._accepted, n - len(octets))
+sock_recv(self._accepted, 4096)
# a stranger that leaves keeps its place
listener/access.py: tests/unit/listener
-        if not place.may_relay:
-            _count_down(
+        if place.may_relay:
+            _count_down(
# octets that trickle in keep the deadline away
listener/wire.py: tests/unit/listener
-        if self.loop.time() >= deadline:
+        if False:
# half of an edit comes into force
daemon/policy_watch.py: tests/unit/daemon
-(now == self._decided or not rests)
+now == self._decided
# the sender is not woken for mail that was accepted
daemon/spool_intake.py: tests/unit/daemon
-            self._trigger.pull()
+            pass
# a draft is discarded while a thread writes it
daemon/spool_intake.py: tests/unit/daemon
-            await asyncio.wait([writing])
"""
"""Each fault has its name, its file below relay/, its suite, what stands there (-) and what replaces it."""


class Change(NamedTuple):
    fault: str
    file: str
    stands: str
    instead: str
    suite: str


def _changes() -> Iterator[Change]:
    for row in re.split("(?m)^# ", TABLE)[1:]:
        fault, place, *lines = row.splitlines()
        file, suite = place.split(": ")
        stands, instead = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
        yield Change(fault, file, stands, instead, suite)


CHANGES = tuple(_changes())


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
