"""A small file that carries over a restart what is known: of an upstream, or of the boots of a spool.

Guarantees: `keep` never raises and never blocks the loop; the last record given is the
one that is written; a file is there whole or not at all.  An unreadable or foreign file is
told of and taken as nothing: the next record replaces it.
Does not: take part in any promise.  Nothing waits for it, and losing it loses no mail.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from relay.mail.kept_format import KeptFormat, Record
from relay.mail.text import clean
from relay.policy.model import Policy
from relay.spool.durable import Disk, opened
from relay.spool.replacing import replace_file
from relay.telemetry.events import Events
from relay.throttle.limit_hints import LESSONS_FORMAT, Lessons
from relay.verdicts.offers import OFFERS_FORMAT, OffersRecord
from relay.verdicts.pause_record import PAUSE_FORMAT, PauseRecord

LARGEST_BYTES = 64 * 1024
"""Twice as much as the most that is remembered takes."""


def pause_path(policy: Policy, upstream: str) -> Path:
    return _beside_history(policy, upstream, "pause")


def lessons_path(policy: Policy, upstream: str) -> Path:
    return _beside_history(policy, upstream, "lessons")


def offers_path(policy: Policy, upstream: str) -> Path:
    return _beside_history(policy, upstream, "offers")


def boots_path(policy: Policy) -> Path:
    return policy.spool / "boots"


def _beside_history(policy: Policy, upstream: str, what: str) -> Path:
    history = policy.history_path(upstream)
    return history.with_name(f"{history.name}.{what}")


class KeptFile(Generic[Record]):
    """One record on disk.  Belongs to one event loop."""

    def __init__(
        self, path: Path, disk: Disk, records: KeptFormat[Record], on_error: Callable[[str], None]
    ) -> None:
        """`on_error` is told, with the file's name, what could not be read or written."""
        self._path = str(path)
        self._disk = disk
        self._records = records
        self._on_error = on_error
        self._next: Record | None = None
        self._writing: asyncio.Task[None] | None = None

    async def read(self) -> Record | None:
        try:
            return await asyncio.to_thread(self._read)
        except (OSError, ValueError) as error:
            self._tell(error)
            return None

    def keep(self, record: Record) -> None:
        """Have a record written soon; of several, the last."""
        self._next = record
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing

    async def _write_all(self) -> None:
        try:
            while self._next is not None:
                content, self._next = self._records.render(self._next), None
                try:
                    await asyncio.to_thread(replace_file, self._disk, self._path, content)
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
            return self._records.parse(self._disk.pread(fd, LARGEST_BYTES, 0))

    def _tell(self, error: Exception) -> None:
        self._on_error(clean(f"{self._path}: {error}"))


@dataclass(frozen=True, slots=True)
class KeptState:
    pause: KeptFile[PauseRecord]
    lessons: KeptFile[Lessons]
    offers: KeptFile[OffersRecord]

    async def close(self) -> None:
        await self.pause.close()
        await self.lessons.close()
        await self.offers.close()


def kept_state(policy: Policy, upstream: str, disk: Disk, events: Events) -> KeptState:
    return KeptState(
        KeptFile(
            pause_path(policy, upstream),
            disk,
            PAUSE_FORMAT,
            lambda error: events.pause_unrecorded(upstream=upstream, error=error),
        ),
        KeptFile(
            lessons_path(policy, upstream),
            disk,
            LESSONS_FORMAT,
            lambda error: events.lessons_unrecorded(upstream=upstream, error=error),
        ),
        KeptFile(
            offers_path(policy, upstream),
            disk,
            OFFERS_FORMAT,
            lambda error: events.offers_unrecorded(upstream=upstream, error=error),
        ),
    )
