"""The pause state of an account, saved for a restart: a JSON file beside its history, readable with `cat`.

The file is there whole or not at all.  A file that is unreadable or foreign is logged and ignored; the next
record replaces it.  `save_soon` never raises and never blocks the loop; it writes the newest of several.
Assumes: one writer of a file at a time; the lock of the spool sees to that.
Does not: take part in any promise; losing the file loses no mail.  Only an operator's command waits for it.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from relay.clock import Clock
from relay.mail.text import clean
from relay.policy.model import HistoryPlace, Policy
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.replacing import replace_file
from relay.verdicts.account import PauseRecord

if TYPE_CHECKING:
    from relay.sender.account_row import AccountRow

LARGEST_BYTES = 64 * 1024
"""Twice the size of the largest record."""
_RECORDS = TypeAdapter(PauseRecord)


def pause_path(policy: Policy, upstream: str) -> Path:
    history = policy.history_path(upstream)
    return history.with_name(f"{history.name}.pause")


def account_file(
    policy: Policy, upstream: str, disk: Disk, on_error: Callable[[str], None] = lambda _: None
) -> "AccountFile":
    return AccountFile(pause_path(policy, upstream), disk, on_error)


def account_row(
    place: HistoryPlace, clock: Clock, on_error: Callable[[str], None] = lambda _: None
) -> "AccountRow | None":
    """Return the row that hosts share for the account, None if its history is a file."""
    if place.database is None:
        return None
    from relay.sender.account_row import AccountRow  # noqa: PLC0415 - it needs an extra
    from relay.spool.database.account import account_of  # noqa: PLC0415 - it needs an extra

    return AccountRow(account_of(place.database, place.account, place.host), clock, on_error)


def render(record: PauseRecord) -> bytes:
    return _RECORDS.dump_json(record, indent=1) + b"\n"


def parse(content: bytes) -> PauseRecord:
    """Return the record.  Raises ValueError if the content is not one."""
    try:
        record = _RECORDS.validate_json(content, strict=True)
    except ValidationError as error:
        raise ValueError(f"not a pause record (errors: {error.error_count()})") from None
    if fault := record.fault():
        raise ValueError(f"not a pause record: {fault}")
    return record


class AccountFile:
    """Belongs to one event loop, or to a relay that is down."""

    def __init__(self, path: Path, disk: Disk, on_error: Callable[[str], None] = lambda _: None) -> None:
        """`on_error` gets the file's name and the error if `save_soon` could not write."""
        self.path, self._disk, self._on_error = str(path), disk, on_error
        self._next: PauseRecord | None = None
        self._writing: asyncio.Task[str] | None = None

    def load(self) -> PauseRecord | None:
        """Return the record, None without a file.  Raises OSError and ValueError."""
        if self._disk.inode(self.path) is None:
            return None
        with opened(self._disk, self._disk.open_read(self.path)) as fd:
            # A larger file is cut here, and is not JSON then.
            return parse(self._disk.pread(fd, LARGEST_BYTES, 0))

    def save(self, record: PauseRecord) -> None:
        """Replace the record, durably.  Raises OSError."""
        replace_file(self._disk, self.path, render(record))

    def save_soon(self, record: PauseRecord) -> None:
        """Write a record soon, in the background."""
        self._next = record
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def written(self) -> str:
        """Wait until the last record is durable; return the error, empty if there is none."""
        return "" if self._writing is None else await asyncio.shield(self._writing)

    async def _write(self) -> str:
        error = ""
        while (record := self._next) is not None:
            self._next, error = None, ""
            try:
                await asyncio.to_thread(self.save, record)
            except OSError as failed:
                error = clean(str(failed))
                self._on_error(f"{self.path}: {error}")
        return error
