"""The policy file, watched: a good edit takes effect, a bad one changes nothing.

Compares content, not times or inodes: editors rename a new file over the old one, and a
Kubernetes ConfigMap swaps a symbolic link two levels up.  The file's folder and that of
what it points to are watched, and once a second the content is looked at in any case,
so that an edit takes at most that long to be seen, whatever told of it.

An edit that allows more than what is in force rests first (`relay.policy.loosening`): it may
be half of one.  A new inode proves nothing: editors and `tar` write a new file in pieces too.
Meanwhile the limits of both hold, so that a tighter one waits for nothing.
"""

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from watchfiles import awatch

from relay.clock import Clock
from relay.policy.document import MAX_BYTES, read_document
from relay.policy.faults import PolicyError
from relay.policy.loosening import Loosening, loosening, rest_of, restrained
from relay.policy.model import Policy
from relay.policy.named_file import Writing, open_regular, read_descriptor, writing
from relay.policy.source import fault_of_unread, inspected_policy

LOOK_MILLISECONDS = 1000
SETTLE_SECONDS = 0.1
"""How long any edit must stay as it is."""


class Sight(NamedTuple):
    """What a look at the file saw."""

    text: bytes
    writing: Writing
    """CLOSED where nothing is new: then it was not asked."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """An edit that is not in force yet."""

    sha256: str
    because: str
    until_ns: int | None
    """Boottime at which it comes into force; None: not by itself, or not while it is being written."""


@dataclass(slots=True)
class _Resting:
    """A good edit that allows more than the policy in force."""

    sha256: str
    found: Loosening
    has_end: bool
    since_ns: int
    meanwhile: Policy
    """The one in force, or that with tighter limits of the edit."""


class PolicyWatch:
    """One policy file and what was last seen in it."""

    def __init__(
        self,
        path: Path,
        in_force: Policy,
        seen: bytes,
        *,
        on_policy: Callable[[Policy, str], Awaitable[None]],
        on_meanwhile: Callable[[Policy], Awaitable[None]],
        on_refused: Callable[[PolicyError], None],
        on_waiting: Callable[[Waiting | None], None],
        clock: Clock,
    ) -> None:
        """`seen` is the text of what is in force; `on_policy` gets a new policy and its sha256.

        `on_waiting` gets an edit that has to rest, again when its end is another or somebody asks, and
        None once the file holds another text or the edit is in force.  `on_meanwhile` gets the
        policy in force with tighter limits while such an edit rests, and without them where it is gone.
        """
        self._path = path
        self._in_force = in_force
        """The last whole one."""
        self._applied = in_force
        """That, or what counts while an edit rests."""
        self._seen = digest(seen)
        self._on_policy = on_policy
        self._on_meanwhile = on_meanwhile
        self._on_refused = on_refused
        self._on_waiting = on_waiting
        self._clock = clock
        self._resting: _Resting | None = None
        self._waiting: Waiting | None = None
        self._unread_because: int | None = None
        """The errno that was told of, while the file cannot be read."""
        self._turn = asyncio.Lock()

    async def watch(self) -> None:
        """Look whenever something may have changed, until cancelled."""
        while True:
            try:
                async for _ in awatch(
                    *self._folders(),
                    recursive=False,
                    watch_filter=None,
                    debounce=100,
                    rust_timeout=LOOK_MILLISECONDS,
                    yield_on_timeout=True,
                ):
                    await self.look(is_asked=False)
            except (OSError, RuntimeError):
                # A folder that was being replaced, or no inotify watches left (of which the library
                # makes an error of its own): looking is enough.
                await asyncio.sleep(LOOK_MILLISECONDS / 1000)
                await self.look(is_asked=False)

    async def look(self, *, is_asked: bool) -> None:
        """Read the file again if its content changed, or in any case when somebody asked."""
        async with self._turn:
            try:
                sight = await self._settled()
            except OSError as error:
                await self._forget_resting()
                self._seen = ""
                if is_asked or error.errno != self._unread_because:
                    self._unread_because = error.errno
                    self._on_refused(PolicyError([fault_of_unread(self._path, error)]))
                return
            self._unread_because = None
            sha256 = digest(sight.text)
            if sha256 == self._seen and not is_asked:
                await self._forget_resting()
                return
            if self._is_resting(sha256) and not is_asked and self._is_early(sight):
                return
            try:
                policy = await asyncio.to_thread(inspected_policy, sight.text, self._path)
            except PolicyError as error:
                await self._forget_resting()
                self._seen = sha256
                self._on_refused(error)
                return
            if not self._is_resting(sha256):
                self._resting = self._judged(sight.text, sha256, policy)
            if self._resting is not None and self._is_early(sight, is_asked=is_asked):
                await self._go_by(self._resting.meanwhile)
                return
            self._seen = sha256
            self._in_force = self._applied = policy
            await self._forget_resting()
            await self._on_policy(policy, sha256)

    async def _settled(self) -> Sight:
        """Return the content, once it stays as it is if it is another.  Raises OSError."""
        sight = await asyncio.to_thread(_read, self._path, self._seen)
        while (sha256 := digest(sight.text)) != self._seen and not self._is_resting(sha256):
            await asyncio.sleep(SETTLE_SECONDS)
            before, sight = sight, await asyncio.to_thread(_read, self._path, self._seen)
            if before.text == sight.text:
                break
        return sight

    def _judged(self, text: bytes, sha256: str, policy: Policy) -> _Resting:
        """Return what an edit comes to, beside the last whole policy."""
        unfinished = read_document(text).unfinished()
        found = loosening(self._in_force, policy, unfinished)
        has_end = not unfinished or text.endswith(b"\n")
        meanwhile = restrained(self._in_force, policy)
        return _Resting(sha256, found, has_end, self._clock.boottime_ns(), meanwhile)

    def _is_resting(self, sha256: str) -> bool:
        return self._resting is not None and self._resting.sha256 == sha256

    def _is_early(self, sight: Sight, *, is_asked: bool = False) -> bool:
        """Return whether the resting edit has to rest on, and tell so."""
        resting = self._resting
        if resting is None:
            return False
        now_ns = self._clock.boottime_ns()
        if sight.writing is Writing.OPEN:
            resting.since_ns = now_ns
        rest = rest_of(resting.found, sight.writing, has_end=resting.has_end, is_asked=is_asked)
        until_ns = None if rest.ns is None else resting.since_ns + rest.ns
        if until_ns is not None and now_ns >= until_ns:
            return False
        is_tighter = resting.meanwhile is not self._in_force
        because = rest.because + ("; its tighter limits count already" if is_tighter else "")
        # Who asked is told, though it was told before.
        self._tell(Waiting(resting.sha256, because, until_ns), again=is_asked)
        return True

    async def _forget_resting(self) -> None:
        self._resting = None
        self._tell(None)
        await self._go_by(self._in_force)

    async def _go_by(self, policy: Policy) -> None:
        """Have this policy count, which is not the file's."""
        if policy is not self._applied:
            self._applied = policy
            await self._on_meanwhile(policy)

    def _tell(self, waiting: Waiting | None, *, again: bool = False) -> None:
        if again or waiting != self._waiting:
            self._waiting = waiting
            self._on_waiting(waiting)

    def _folders(self) -> set[Path]:
        return {self._path.absolute().parent, self._path.resolve().parent}


def digest(text: bytes) -> str:
    """Return the sha256 of a policy's text, in hexadecimal."""
    return hashlib.sha256(text).hexdigest()


def _read(path: Path, seen: str) -> Sight:
    descriptor = open_regular(path)
    try:
        text = read_descriptor(descriptor, MAX_BYTES)
        # Only for an edit: a writer that opens the file at that moment waits for us.
        return Sight(text, Writing.CLOSED if digest(text) == seen else writing(descriptor))
    finally:
        os.close(descriptor)
