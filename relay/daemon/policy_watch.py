"""The policy file, watched: a good edit takes effect, a bad one changes nothing.

Compares content, not times or inodes: editors rename a new file over the old one, and a Kubernetes
ConfigMap swaps a symbolic link two levels up.

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
from relay.policy.loosening import Loosening, loosening, rest_of, restrained
from relay.policy.model import Policy
from relay.policy.named_file import Writing, open_regular, read_descriptor, writing
from relay.policy.source import fault_of_unread, inspected_policy

SETTLE_SECONDS = 0.1
"""How long any edit must stay as it is."""


class Sight(NamedTuple):
    text: bytes
    sha256: str
    writing: Writing
    """CLOSED where nothing is new: then it was not asked."""


class Waiting(NamedTuple):
    sha256: str
    because: str
    until_ns: int | None
    """Boottime at which it comes into force; None: not by itself, or not while it is being written."""


class _Edit(NamedTuple):
    sha256: str
    found: Loosening
    has_end: bool
    meanwhile: Policy
    """What counts while the edit rests: the policy in force, or that with tighter limits of the edit."""
    since_ns: int
    """Its rest began at this boottime."""


class Edits(Protocol):
    async def apply(self, policy: Policy, sha256: str) -> None: ...

    async def hold(self, policy: Policy) -> None:
        """Go by the policy in force with tighter limits, or without them again."""
        ...

    def refuse(self, error: PolicyError) -> None: ...

    def wait(self, waiting: Waiting | None) -> None:
        """Tell of an edit that rests, again when its end changed or by request; None: no edit rests."""
        ...


class PolicyWatch:
    def __init__(
        self,
        path: Path,
        in_force: Policy,
        seen: bytes,
        edits: Edits,
        clock: Clock,
        *,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        """`seen` is the text of what is in force."""
        self._path = path
        self._in_force = self._counts = in_force
        self._seen = digest(seen)
        """Of the text that was decided about; empty where there was none."""
        self._edits = edits
        self._clock = clock
        self._settle_seconds = settle_seconds
        self._edit: _Edit | None = None
        self._waiting: Waiting | None = None
        self._unread_because: int | None = None
        self._turn = asyncio.Lock()

    async def look(self, *, is_asked: bool) -> None:
        """Read the file again if it changed, or if `is_asked` (SIGHUP)."""
        async with self._turn:
            try:
                sight = await self._settled()
            except OSError as error:
                is_told = error.errno == self._unread_because and not is_asked
                fault = PolicyError([fault_of_unread(self._path, error)])
                await self._decide("", None if is_told else fault)
                self._unread_because = error.errno
                return
            self._unread_because = None
            if sight.sha256 == self._seen and not is_asked:
                await self._follow(None)
                return
            edit = self._rested(sight)
            if edit is not None and not is_asked and (waiting := self._rest(edit, sight)):
                await self._follow(edit, waiting)
                return
            try:
                policy = await asyncio.to_thread(inspected_policy, sight.text, self._path)
            except PolicyError as error:
                await self._decide(sight.sha256, error)
                return
            edit = edit or self._judged(sight, policy)
            if waiting := self._rest(edit, sight, is_asked=is_asked):
                # A request is answered, even with what was told before.
                await self._follow(edit, waiting, again=is_asked)
                return
            self._in_force = self._counts = policy
            await self._decide(sight.sha256, None)
            await self._edits.apply(policy, sight.sha256)

    async def _decide(self, sha256: str, error: PolicyError | None) -> None:
        """Be done with a text: what is in force stays, and counts alone."""
        self._seen = sha256
        await self._follow(None)
        if error is not None:
            self._edits.refuse(error)

    async def _follow(
        self, edit: _Edit | None, waiting: Waiting | None = None, *, again: bool = False
    ) -> None:
        """Go by what counts while an edit rests, or while none does; tell what became of the rest."""
        self._edit = edit
        if waiting != self._waiting or again:
            self._waiting = waiting
            self._edits.wait(waiting)
        counts = self._in_force if edit is None else edit.meanwhile
        if counts is not self._counts:
            self._counts = counts
            await self._edits.hold(counts)

    async def _settled(self) -> Sight:
        """Wait until new content stays as it is.  Raises OSError."""
        sight = await asyncio.to_thread(_read, self._path, self._seen)
        while sight.sha256 != self._seen and self._rested(sight) is None:
            await asyncio.sleep(self._settle_seconds)
            before, sight = sight, await asyncio.to_thread(_read, self._path, self._seen)
            if before.text == sight.text:
                break
        return sight

    def _rested(self, sight: Sight) -> _Edit | None:
        """None: the file holds another text.  A rest begins anew while the edit is written."""
        edit = self._edit
        if edit is None or edit.sha256 != sight.sha256:
            return None
        return edit._replace(since_ns=self._clock.boottime_ns()) if sight.writing is Writing.OPEN else edit

    def _judged(self, sight: Sight, policy: Policy) -> _Edit:
        unfinished = read_document(sight.text).unfinished()
        return _Edit(
            sight.sha256,
            loosening(self._in_force, policy, unfinished),
            not unfinished or sight.text.endswith(b"\n"),
            restrained(self._in_force, policy),
            self._clock.boottime_ns(),
        )

    def _rest(self, edit: _Edit, sight: Sight, *, is_asked: bool = False) -> Waiting | None:
        """None: the edit may come into force."""
        rest = rest_of(edit.found, sight.writing, has_end=edit.has_end, is_asked=is_asked)
        until_ns = None if rest.ns is None else edit.since_ns + rest.ns
        if until_ns is not None and self._clock.boottime_ns() >= until_ns:
            return None
        is_tighter = edit.meanwhile is not self._in_force
        because = rest.because + ("; its tighter limits count already" if is_tighter else "")
        return Waiting(edit.sha256, because, until_ns)


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _read(path: Path, seen: str) -> Sight:
    descriptor = open_regular(path)
    try:
        text = read_descriptor(descriptor, MAX_BYTES)
        sha256 = digest(text)
        # Only for an edit: a writer that opens the file at that moment waits for us.
        return Sight(text, sha256, Writing.CLOSED if sha256 == seen else writing(descriptor))
    finally:
        os.close(descriptor)
