"""Watches the policy file: a good edit takes effect, a bad edit changes nothing.

Compares content, not times or inodes: editors rename a new file over the old one, and a Kubernetes ConfigMap
swaps a symbolic link two levels up.  New content may be half of an edit, so it is judged once it has not
changed for REST_NS, or at once by request.
"""

import asyncio
import hashlib
from pathlib import Path
from typing import Protocol

from relay.clock import SECOND_NS, Clock
from relay.policy.model import Policy
from relay.policy.source import PolicyError, parse_policy, policy_bytes

REST_NS = 3 * SECOND_NS


class Edits(Protocol):
    async def apply(self, policy: Policy, sha256: str) -> None: ...

    def refuse(self, error: PolicyError) -> None: ...


class PolicyWatch:
    def __init__(self, path: Path, text: bytes, edits: Edits, clock: Clock) -> None:
        """`text` is that of the policy in force."""
        self._path, self._edits, self._clock = path, edits, clock
        self._decided = self._seen = digest(text)
        """Digests of the text that was judged last, and of the last look; or the error of reading it."""
        self._since_ns = 0
        """Boottime at which this text was first seen."""

    async def look(self, *, is_asked: bool) -> None:
        """Judge the file if it changed, or if `is_asked` (SIGHUP).  One look at a time."""
        text = b""
        failure: PolicyError | None = None
        try:
            text = await asyncio.to_thread(policy_bytes, self._path)
            now = digest(text)
        except PolicyError as error:
            now, failure = str(error), error
        if now != self._seen:
            self._seen, self._since_ns = now, self._clock.boottime_ns()
        rests = self._clock.boottime_ns() - self._since_ns >= REST_NS
        if not is_asked and (now == self._decided or not rests):
            return
        self._decided = now
        try:
            if failure is not None:
                raise failure
            policy = await asyncio.to_thread(parse_policy, text, self._path, looks_at_files=True)
        except PolicyError as error:
            self._edits.refuse(error)
        else:
            await self._edits.apply(policy, now)


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
