"""The policy file, watched: a good edit takes effect, a bad one changes nothing.

Compares content, not times or inodes: editors rename a new file over the old one, and a Kubernetes
ConfigMap swaps a symbolic link two levels up.  New content is judged once two looks in a row have found it,
or at once by request.

An edit that allows more than what is in force rests first (`relay.policy.loosening`): it may
be half of one.  A new inode proves nothing: editors and `tar` write a new file in pieces too.
Meanwhile the limits of both hold, so that a tighter one waits for nothing.
"""

import asyncio
import hashlib
import os
from pathlib import Path
from typing import NamedTuple, Protocol

from relay.clock import Clock
from relay.policy.document import MAX_BYTES, read_document
from relay.policy.faults import PolicyError
from relay.policy.loosening import loosening, rest_of, restrained
from relay.policy.model import Policy
from relay.policy.named_file import Writing, open_regular, read_descriptor, writing
from relay.policy.source import fault_of_unread, inspected_policy


class Waiting(NamedTuple):
    sha256: str
    because: str
    until_ns: int | None
    """Boottime at which it comes into force; None: not by itself, or not while it is being written."""


class Edits(Protocol):
    async def apply(self, policy: Policy, sha256: str) -> None: ...

    async def hold(self, policy: Policy) -> None: ...

    def refuse(self, error: PolicyError) -> None: ...

    def wait(self, waiting: Waiting | None) -> None: ...


class PolicyWatch:
    def __init__(self, path: Path, in_force: Policy, text: bytes, edits: Edits, clock: Clock) -> None:
        """`text` of what is in force."""
        self._path = path
        self._edits = edits
        self._clock = clock
        self._in_force = self._counts = in_force
        self._decided = self._seen = digest(text)
        """Of the text that was applied or refused, and of the last look; or why it could not be read."""
        self._since_ns = 0
        """When this text was first seen, or last seen being written, by boottime."""
        self._waiting: Waiting | None = None

    async def look(self, *, is_asked: bool) -> None:
        """Judge the file if it changed, or if `is_asked` (SIGHUP).  One look at a time."""
        try:
            text, sha256, writer = await asyncio.to_thread(_read, self._path, self._decided)
        except OSError as error:
            self._seen = f"error {error.errno}"
            if is_asked or self._seen != self._decided:
                await self._refuse(PolicyError([fault_of_unread(self._path, error)]))
            return
        is_new, self._seen = sha256 != self._seen, sha256
        if is_new or writer is Writing.OPEN:
            self._since_ns = self._clock.boottime_ns()
        if is_asked or (sha256 != self._decided and not is_new):
            await self._judge(text, writer, is_asked=is_asked)
        elif sha256 == self._decided:
            await self._follow(self._in_force, None)

    async def _judge(self, text: bytes, writer: Writing, *, is_asked: bool) -> None:
        try:
            policy = await asyncio.to_thread(inspected_policy, text, self._path)
        except PolicyError as error:
            await self._refuse(error)
            return
        unfinished = read_document(text).unfinished()
        found = loosening(self._in_force, policy, unfinished)
        has_end = not unfinished or text.endswith(b"\n")
        rest = rest_of(found, writer, has_end=has_end, is_asked=is_asked)
        until_ns = None if rest.ns is None else self._since_ns + rest.ns
        if until_ns is None or self._clock.boottime_ns() < until_ns:
            counts = restrained(self._in_force, policy)
            tighter = "" if counts is self._in_force else "; its tighter limits count already"
            waiting = Waiting(self._seen, rest.because + tighter, until_ns)
            # A request is answered, even with what was told before.
            await self._follow(counts, waiting, again=is_asked)
            return
        self._decided = self._seen
        self._in_force = self._counts = policy
        await self._follow(policy, None)
        await self._edits.apply(policy, self._seen)

    async def _refuse(self, error: PolicyError) -> None:
        self._decided = self._seen
        await self._follow(self._in_force, None)
        self._edits.refuse(error)

    async def _follow(self, counts: Policy, waiting: Waiting | None, *, again: bool = False) -> None:
        """Go by what counts while an edit rests, or while none does; tell what became of the rest."""
        if waiting != self._waiting or again:
            self._waiting = waiting
            self._edits.wait(waiting)
        if counts != self._counts:
            self._counts = counts
            await self._edits.hold(counts)


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _read(path: Path, decided: str) -> tuple[bytes, str, Writing]:
    """Return text, digest, and whether it is being written: CLOSED where the text was decided about."""
    descriptor = open_regular(path)
    try:
        text = read_descriptor(descriptor, MAX_BYTES)
        sha256 = digest(text)
        # Only for an edit: a writer that opens the file at that moment waits for us.
        return text, sha256, (Writing.CLOSED if sha256 == decided else writing(descriptor))
    finally:
        os.close(descriptor)
