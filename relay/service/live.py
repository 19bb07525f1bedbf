"""The policy file, watched: a good edit takes effect, a bad one changes nothing.

Compares content, not times or inodes: editors rename a new file over the old one, and a
Kubernetes ConfigMap swaps a symbolic link two levels up.  The file's folder and that of
what it points to are watched, and once a second the content is looked at in any case,
so that an edit takes at most that long to be seen, whatever told of it.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from watchfiles import awatch

from relay.policy.document import MAX_BYTES
from relay.policy.faults import PolicyError, fault_of_file
from relay.policy.model import Policy
from relay.policy.source import read_policy

LOOK_MILLISECONDS = 1000
SETTLE_SECONDS = 0.1
"""How long an edit must stay as it is: half of a policy may be one too, without its limits."""


class PolicyFile:
    """One policy file and what was last seen in it."""

    def __init__(
        self,
        path: Path,
        seen: bytes,
        on_policy: Callable[[Policy, str], Awaitable[None]],
        on_refused: Callable[[PolicyError], None],
    ) -> None:
        """`seen` is the text that is in force; `on_policy` gets a new one and its sha256."""
        self._path = path
        self._seen = digest(seen)
        self._on_policy = on_policy
        self._on_refused = on_refused
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
                content = await self._settled()
            except OSError as error:
                if is_asked or self._seen != "":
                    self._seen = ""
                    self._on_refused(
                        PolicyError([fault_of_file(self._path, f"cannot read it: {error.strerror}")])
                    )
                return
            if digest(content) == self._seen and not is_asked:
                return
            self._seen = digest(content)
            try:
                policy = await asyncio.to_thread(read_policy, self._path)
            except PolicyError as error:
                self._on_refused(error)
                return
            await self._on_policy(policy, self._seen)

    async def _settled(self) -> bytes:
        """Return the content, once it stays as it is if it is another.  Raises OSError."""
        content = await asyncio.to_thread(_read, self._path)
        while digest(content) != self._seen:
            await asyncio.sleep(SETTLE_SECONDS)
            before, content = content, await asyncio.to_thread(_read, self._path)
            if before == content:
                break
        return content

    def _folders(self) -> set[Path]:
        return {self._path.absolute().parent, self._path.resolve().parent}


def digest(text: bytes) -> str:
    """Return the sha256 of a policy's text, in hexadecimal."""
    return hashlib.sha256(text).hexdigest()


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)
