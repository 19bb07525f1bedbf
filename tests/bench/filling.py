"""Mail for the benchmarks, accepted as a listener accepts it."""

import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from relay.clock import SystemClock
from relay.mail.envelope import Envelope
from relay.spool.database.connection import Database
from relay.spool.database.schema import make
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import ENGINES
from relay.spool.interface import Intake, Spool
from tests.fakes.postgresql import started


@contextmanager
def opened_spool(root: Path, engine: str) -> Iterator[tuple[Spool, Intake]]:
    disk, clock = RealDisk(), SystemClock()
    with (
        closing(ENGINES[engine].spool(str(root), disk, clock, _fail)) as spool,
        closing(ENGINES[engine].intake(str(root), disk, clock)) as intake,
    ):
        yield spool, intake


@contextmanager
def database() -> Iterator[str]:
    """Yield the URL of a database with the relay's tables, stored where temporary files are."""
    with temporary_folder() as folder, started(folder, in_memory=False) as server:
        make(Database(server.url))
        yield server.url


def accept(intake: Intake, content: bytes, paths: Iterable[tuple[str, str]]) -> None:
    """Accept the content once for each pair of a sender and a recipient, all at once."""
    drafts = []
    for sender, recipient in paths:
        draft = intake.draft()
        draft.append(content)
        drafts.append((draft, Envelope(sender, (recipient,), time.time_ns(), "", "", "")))
    failed = [error for error in intake.accept(drafts) if error is not None]
    if failed:
        raise failed[0]


@contextmanager
def temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as name:
        yield Path(name)


def _fail(name: str, why: str) -> None:
    sys.exit(f"{name}: {why}")
