"""Hands over the messages of a maildir that a program of this host filled, one by one, and removes each.

Guarantees: a message leaves the maildir only once it is durably the relay's, so a kill at any instant costs
at most a duplicate of one message.  Only one drain at a time works on a maildir.  A refused message, and a
file that is no message of the maildir's owner (a symbolic link, a FIFO, another user's file), stays and is
reported.  Memory holds one message.
Assumes: a file in new/ or cur/ does not change, as maildir(5) says, and nobody moves it meanwhile.
Does not: read tmp/, wait for new messages, or return a refused message to its sender.
"""

import os
import re
import stat
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.os_errors import is_lack_of_means
from relay.submission.composing import Author, EnvelopeSource, NotAnAddress, from_maildir
from relay.submission.handover import Handover, Refusal, SessionLost

FOLDERS = ("new", "cur")
LOCK_NAME = "relay-drain.lock"
"""In the maildir, and never removed: a lock file that can disappear excludes nobody."""
_FLAGS = re.compile(r":2,([A-Za-z]*)\Z")
_NOT_TO_BE_SENT = {"D": "a draft", "T": "trash"}  # flags of maildir(5) that the user's own program set
_TRIES = 2  # the first may find that the relay has closed the session

Open = Callable[[], AbstractContextManager[Handover]]
"""Opens a session.  Raises Refusal if neither spool nor listener takes mail now, and OSError."""


class NotRemoved(Exception):  # noqa: N818 - a state of the maildir
    """The maildir keeps a message that the relay has, so it would go again.  The text says which and why."""


@dataclass(slots=True)
class Drained:
    taken: int = 0
    later: int = 0
    """Left in the maildir; another drain may take them."""
    refused: int = 0
    """Left in the maildir until somebody acts."""

    @property
    def exit_code(self) -> int:
        if self.later:
            return os.EX_TEMPFAIL
        return os.EX_DATAERR if self.refused else os.EX_OK


class MaildirDrain:
    def __init__(
        self,
        maildir: str,
        disk: Disk,
        choice: EnvelopeSource,
        author: Callable[[], Author],
        tell: Callable[[str], None],
        *,
        most_bytes: int,
    ) -> None:
        """Call `author` for each message, and `tell` with one line for each message that stays.

        A file longer than `most_bytes` is refused.
        """
        self._maildir = maildir
        self._disk = disk
        self._choice = choice
        self._author = author
        self._tell = tell
        self._most_bytes = most_bytes
        self._drained = Drained()

    def drain(self, open_smtp: Open) -> Drained:
        """Raise Refusal (unusable maildir, another drain at work, no session), NotRemoved, and OSError."""
        for path in (Path(self._maildir), *(Path(self._maildir, folder) for folder in FOLDERS)):
            if path.is_symlink():
                # A user could make a link by which root hands over and removes another user's mail.
                raise Refusal(f"{path} is a symbolic link, which is not followed", os.EX_NOINPUT)
            if not path.is_dir():
                raise Refusal(f"{path} is not a folder: {self._maildir} is not a maildir", os.EX_NOINPUT)
            # Checked before the relay takes a message: one that cannot be removed would go each time.
            if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
                raise Refusal(f"{path}: this user needs read, write and search permission", os.EX_NOPERM)
        lock = self._disk.lock(f"{self._maildir}/{LOCK_NAME}", wait=False)
        if lock is None:
            raise Refusal(f"{self._maildir}: another drain is running", os.EX_TEMPFAIL)
        with opened(self._disk, lock):
            waiting = deque(self._waiting())
            while waiting:
                with open_smtp() as handover:
                    self._hand_over(waiting, handover)
        return self._drained

    def _waiting(self) -> list[tuple[str, int]]:
        """Return paths, the oldest first, each with how often it may be tried."""
        found = []
        for folder in FOLDERS:
            for name in self._disk.names(f"{self._maildir}/{folder}"):
                flags = _FLAGS.search(name)
                why = next((w for f, w in _NOT_TO_BE_SENT.items() if flags and f in flags[1]), None)
                if why is not None:
                    self._tell(f"{folder}/{name}: left, it is {why}")
                elif not name.startswith("."):
                    since = name.partition(".")[0]
                    found.append((int(since) if since.isdecimal() else 0, name, f"{folder}/{name}"))
        return [(path, _TRIES) for *_, path in sorted(found)]

    def _hand_over(self, waiting: deque[tuple[str, int]], handover: Handover) -> None:
        while waiting:
            path, tries = waiting.popleft()
            try:
                self._give(path, handover)
            except FileNotFoundError:
                continue  # another program moved it, and has it now
            except SessionLost as lost:
                if tries > 1 and not lost.may_be_queued:
                    waiting.appendleft((path, tries - 1))
                else:
                    self._left(path, lost)
                return
            except (Refusal, NotAnAddress) as why:
                self._left(path, why)

    def _left(self, path: str, why: Exception) -> None:
        if isinstance(why, Refusal) and why.exit_code == os.EX_TEMPFAIL:
            self._drained.later += 1
        else:
            self._drained.refused += 1
        self._tell(f"{path}: left, {why}")

    def _give(self, path: str, handover: Handover) -> None:
        submission = from_maildir(self._read(f"{self._maildir}/{path}"), self._author(), self._choice)
        if not submission.recipients:
            raise NotAnAddress("its header names no recipient")
        handover.give(submission)
        # Killed here: relay and maildir both have the message; the next drain hands it over again.
        self._drained.taken += 1
        try:
            self._disk.unlink(f"{self._maildir}/{path}")
            # Crash before this: the file may be there again, and goes twice.
            self._disk.sync_directory(f"{self._maildir}/{path.partition('/')[0]}")
        except FileNotFoundError:
            self._tell(f"{path}: taken, and another program moved or removed it meanwhile")
        except OSError as error:
            why = error.strerror or error
            raise NotRemoved(f"{path}: the relay has it, but it cannot be removed: {why}") from error

    def _read(self, path: str) -> bytes:
        """Raise Refusal for a fault of the file, OSError for any other."""
        try:
            with opened(self._disk, self._disk.open_read(path)) as fd:
                self._check(fd)
                return self._disk.pread(fd, self._disk.size(fd), 0)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or is_lack_of_means(error):
                raise
            if not stat.S_ISREG(Path(path).lstat().st_mode):
                raise Refusal("it is not a regular file", os.EX_DATAERR) from None
            raise Refusal(f"it cannot be read: {error.strerror}", os.EX_TEMPFAIL) from error

    def _check(self, fd: int) -> None:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Refusal("it is not a regular file", os.EX_DATAERR)
        ours = {Path(self._maildir).stat().st_uid}
        if os.geteuid() != 0:
            # Not root's files: the maildir's owner can make new/ lead elsewhere, or link any file into it.
            ours.add(os.geteuid())
        if found.st_uid not in ours:
            raise Refusal(f"it is owned by uid {found.st_uid}, not by the maildir's owner", os.EX_DATAERR)
        if found.st_size > self._most_bytes:
            raise Refusal(f"it is longer than {self._most_bytes} bytes", os.EX_DATAERR)
