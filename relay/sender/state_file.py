"""A small file that carries over a restart what is known: of an upstream, or of the boots of a spool.

`Ages` goes by the latter: the age of a message of an earlier boot (`relay.mail.age`).

Guarantees: `keep` never raises and never blocks the loop; the last record given is the
one that is written; a file is there whole or not at all.  An unreadable or foreign file is
told of and taken as nothing: the next record replaces it.
Does not: take part in any promise, and losing it loses no mail.  Only an operator waits for it (`written`).
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from relay.clock import SECOND_NS
from relay.mail.age import Boots, BootsRecord
from relay.mail.envelope import Envelope
from relay.mail.text import clean
from relay.policy.model import Policy
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.replacing import replace_file
from relay.spool.kept_format import KeptFormat, Record
from relay.telemetry.events import Events
from relay.telemetry.telemetry import Telemetry
from relay.verdicts.account import PauseRecord

PAUSE_FORMAT = KeptFormat(PauseRecord, "pauses", PauseRecord.fault)
BOOTS_FORMAT = KeptFormat(BootsRecord, "boots", BootsRecord.fault)
LARGEST_BYTES = 64 * 1024
"""Twice as much as the most that is remembered takes."""
BOOTS_NS = 300 * SECOND_NS
"""How much age a crash of the host can cost what is queued."""


def pause_path(policy: Policy, upstream: str) -> Path:
    return _beside_history(policy, upstream, "pause")


def boots_path(policy: Policy) -> Path:
    return policy.spool / "boots"


def _beside_history(policy: Policy, upstream: str, what: str) -> Path:
    history = policy.history_path(upstream)
    return history.with_name(f"{history.name}.{what}")


def read_record(path: str, disk: Disk, records: KeptFormat[Record]) -> Record | None:
    """Return None where there is no file.  Raises OSError and ValueError."""
    if disk.inode(path) is None:
        return None
    with opened(disk, disk.open_read(path)) as fd:
        if disk.size(fd) > LARGEST_BYTES:
            raise ValueError("too large for a record of ours")
        return records.parse(disk.pread(fd, LARGEST_BYTES, 0))


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
        self._error = ""

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
            while self._next is not None:
                content, self._next = self._records.render(self._next), None
                try:
                    await asyncio.to_thread(replace_file, self._disk, self._path, content)
                    self._error = ""
                except OSError as error:
                    self._error = clean(str(error))
                    self._tell(error)
        finally:
            self._writing = None

    def _read(self) -> Record | None:
        return read_record(self._path, self._disk, self._records)

    def _tell(self, error: Exception) -> None:
        self._on_error(clean(f"{self._path}: {error}"))


@dataclass(frozen=True, slots=True)
class KeptState:
    pause: KeptFile[PauseRecord]

    async def close(self) -> None:
        await self.pause.close()


def kept_state(policy: Policy, upstream: str, disk: Disk, events: Events) -> KeptState:
    return KeptState(
        KeptFile(
            pause_path(policy, upstream),
            disk,
            PAUSE_FORMAT,
            lambda error: events.pause_unrecorded(upstream=upstream, error=error),
        ),
    )


class Ages:
    """When messages of any boot came in, by this boot's time; written every few minutes."""

    def __init__(self, policy: Policy, disk: Disk, telemetry: Telemetry) -> None:
        self._clock, events = telemetry.clock, telemetry.events
        self._boots = Boots(self._clock.boot_id(), self._clock.boottime_ns())
        self._kept: KeptFile[BootsRecord] = KeptFile(
            boots_path(policy), disk, BOOTS_FORMAT, lambda error: events.boots_unrecorded(error=error)
        )
        self._keeps_at_ns = 0

    async def recall(self) -> None:
        """Go on from what was kept; call it ahead of all else."""
        now_ns = self._clock.boottime_ns()
        self._boots = Boots(self._clock.boot_id(), now_ns, await self._kept.read())

    def forget_but(self, boot_ids: Collection[str]) -> None:
        """Forget the boots that no queued message is of."""
        self._boots.forget_but(boot_ids)

    def arrived_at_ns(self, envelope: Envelope, now_ns: int, wall_ns: int) -> int:
        wall_age_ns = wall_ns - envelope.arrival_at_ns
        return self._boots.arrived_at_ns(envelope.boot_id, envelope.boottime_ns, now_ns, wall_age_ns)

    def here(self, boot_id: str, at_ns: int) -> int | None:
        """Return an instant of another boot by this one's clock; None if unknown."""
        return self._boots.here(boot_id, at_ns)

    def keep(self, *, now: bool = True) -> None:
        """Keep the ages of queued messages for a restart in another boot; at the latest BOOTS_NS later."""
        now_ns = self._clock.boottime_ns()
        if now or now_ns >= self._keeps_at_ns:
            self._keeps_at_ns = now_ns + BOOTS_NS
            self._kept.keep(self._boots.record(now_ns))

    async def close(self) -> None:
        await self._kept.close()
