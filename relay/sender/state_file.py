"""A small file that carries over a restart what is known of an account.

`StateFile` is the file behind the seam of an account's state: `load` and `save`.  `KeptFile` writes in the
background: `keep` never raises and never blocks the loop, and the last record given is the one that is
written.  A file is there whole or not at all.  An unreadable or foreign one is told of and taken as nothing:
the next record replaces it.
Assumes: one writer of a file at a time; the lock of the spool sees to that.
Does not: take part in any promise, and losing it loses no mail.  Only an operator waits for it (`written`).
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from relay.mail.text import clean
from relay.policy.model import Policy
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.replacing import replace_file
from relay.verdicts.account import PauseRecord

Record = TypeVar("Record")


class KeptFormat(Generic[Record]):
    """JSON, for `cat`."""

    def __init__(self, kind: type[Record], of: str, fault: Callable[[Record], str]) -> None:
        """`of` says what it is a record of; `fault` what makes no sense in one, or nothing."""
        self._adapter = TypeAdapter(kind)
        self._of, self._fault = of, fault

    def render(self, record: Record) -> bytes:
        return self._adapter.dump_json(record, indent=1) + b"\n"

    def parse(self, content: bytes) -> Record:
        """Raise ValueError for what is none of ours."""
        try:
            record = self._adapter.validate_json(content, strict=True)
        except ValidationError as error:
            raise ValueError(f"not a record of {self._of}: {error.error_count()} errors in it") from None
        if fault := self._fault(record):
            raise ValueError(f"not a record of {self._of}: {fault}")
        return record


PAUSE_FORMAT = KeptFormat(PauseRecord, "pauses", PauseRecord.fault)
LARGEST_BYTES = 64 * 1024
"""Twice as much as the most that is remembered takes."""


class StateFile(Generic[Record]):
    def __init__(self, path: Path, disk: Disk, records: KeptFormat[Record]) -> None:
        self.path, self._disk, self._records = str(path), disk, records

    def load(self) -> Record | None:
        """Return None where there is no file.  Raises OSError and ValueError."""
        if self._disk.inode(self.path) is None:
            return None
        with opened(self._disk, self._disk.open_read(self.path)) as fd:
            if self._disk.size(fd) > LARGEST_BYTES:
                raise ValueError("too large for a record of ours")
            return self._records.parse(self._disk.pread(fd, LARGEST_BYTES, 0))

    def save(self, record: Record) -> None:
        """Replace the record, durably.  Raises OSError."""
        replace_file(self._disk, self.path, self._records.render(record))


def pause_path(policy: Policy, upstream: str) -> Path:
    history = policy.history_path(upstream)
    return history.with_name(f"{history.name}.pause")


def account_file(policy: Policy, upstream: str, disk: Disk) -> StateFile[PauseRecord]:
    return StateFile(pause_path(policy, upstream), disk, PAUSE_FORMAT)


class KeptFile(Generic[Record]):
    """One record on disk.  Belongs to one event loop."""

    def __init__(self, file: StateFile[Record], on_error: Callable[[str], None]) -> None:
        """`on_error` is told, with the file's name, what could not be read or written."""
        self._file, self._on_error = file, on_error
        self._next: Record | None = None
        self._writing: asyncio.Task[None] | None = None
        self._error = ""

    async def read(self) -> Record | None:
        try:
            return await asyncio.to_thread(self._file.load)
        except (OSError, ValueError) as error:
            self._tell(error)
            return None

    def keep(self, record: Record) -> None:
        """Have a record written soon; of several, the last."""
        self._next = record
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())

    async def written(self) -> str:
        """Wait until the last record is durable; return nothing, or why it is not."""
        if self._writing is not None:
            await asyncio.shield(self._writing)
        return self._error

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing

    async def _write_all(self) -> None:
        try:
            while (record := self._next) is not None:
                self._next = None
                try:
                    await asyncio.to_thread(self._file.save, record)
                    self._error = ""
                except OSError as error:
                    self._error = clean(str(error))
                    self._tell(error)
        finally:
            self._writing = None

    def _tell(self, error: Exception) -> None:
        self._on_error(clean(f"{self._file.path}: {error}"))
