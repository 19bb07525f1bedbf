"""A small file that carries over a restart what is known: of an upstream, or of the boots of a spool.

Guarantees: `keep` never raises and never blocks the loop; the last record given is the
one that is written; a file is there whole or not at all.  What is not ours, or cannot be
read, is told of and taken as nothing: the next record replaces it.
Does not: take part in any promise.  Nothing waits for it, and losing it loses no mail.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from relay.mail.text import clean
from relay.policy.model import Policy
from relay.spool.durable import Disk, opened
from relay.spool.replacing import replace_file
from relay.throttle.limit_hints import Lessons
from relay.verdicts.offers import OffersRecord
from relay.verdicts.pauses import PauseRecord


def pause_path(policy: Policy, upstream: str) -> Path:
    """Return where the pause of an upstream is kept: beside the history of its account."""
    history = policy.history_path(upstream)
    return history.with_name(f"{history.name}.pause")


def lessons_path(policy: Policy, upstream: str) -> Path:
    """Return where is kept what the refusals of an upstream taught."""
    history = policy.history_path(upstream)
    return history.with_name(f"{history.name}.lessons")


def offers_path(policy: Policy, upstream: str) -> Path:
    """Return where is kept what the connections of an upstream offered."""
    history = policy.history_path(upstream)
    return history.with_name(f"{history.name}.offers")


def boots_path(policy: Policy) -> Path:
    """Return where is kept for how long relays of a spool ran, boot by boot."""
    return policy.spool / "boots"


LARGEST_BYTES = 64 * 1024
"""Twice as much as the most that is remembered takes."""
Record = TypeVar("Record")


class KeptFile(Generic[Record]):
    """One upstream's record on disk.  All of it belongs to one event loop."""

    def __init__(
        self,
        path: Path,
        disk: Disk,
        *,
        parse: Callable[[bytes], Record],
        render: Callable[[Record], bytes],
        on_error: Callable[[str], None],
    ) -> None:
        """`on_error` is told, with the file's name, what could not be read or written.

        `parse` raises ValueError for what is none of ours.
        """
        self._path = str(path)
        self._disk = disk
        self._parse = parse
        self._render = render
        self._on_error = on_error
        self._next: Record | None = None
        self._writing: asyncio.Task[None] | None = None

    async def read(self) -> Record | None:
        """Return what was kept, or None."""
        try:
            return await asyncio.to_thread(self._read)
        except (OSError, ValueError) as error:
            self._tell(error)
            return None

    def keep(self, record: Record) -> None:
        """Have it written soon; of several, the last."""
        self._next = record
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())

    async def close(self) -> None:
        """Wait until the last record is written."""
        if self._writing is not None:
            await self._writing

    async def _write_all(self) -> None:
        try:
            while self._next is not None:
                record, self._next = self._next, None
                try:
                    await asyncio.to_thread(replace_file, self._disk, self._path, self._render(record))
                except OSError as error:
                    self._tell(error)
        finally:
            self._writing = None

    def _read(self) -> Record | None:
        if self._disk.inode(self._path) is None:
            return None
        with opened(self._disk, self._disk.open_read(self._path)) as fd:
            if self._disk.size(fd) > LARGEST_BYTES:
                raise ValueError("too large for a record of ours")
            return self._parse(self._disk.pread(fd, LARGEST_BYTES, 0))

    def _tell(self, error: Exception) -> None:
        self._on_error(clean(f"{self._path}: {error}"))


@dataclass(frozen=True, slots=True)
class KeptState:
    """What is kept of one upstream."""

    pause: KeptFile[PauseRecord]
    lessons: KeptFile[Lessons]
    offers: KeptFile[OffersRecord]

    async def close(self) -> None:
        """Wait until all of it is written."""
        await self.pause.close()
        await self.lessons.close()
        await self.offers.close()
