"""The engines of the spool, by name.  No other module opens a spool.

`open_spool` is for the owner of the queue: a relay, or an operator's verbs while no relay runs.
`open_intake` is for a listener.

Guarantees: only the engine that a spool's `format` names opens the spool or creates files in it.  While an
intake is open, no conversion begins.
Does not: open the trigger (`root.trigger`), which is the same for every engine.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from relay.clock import SECOND_NS, Clock
from relay.policy.model import Policy
from relay.spool.disk.durable import Disk
from relay.spool.interface import Intake, Spool, WrongSpool
from relay.spool.log import layout as log_layout
from relay.spool.log.engine import LogSpool
from relay.spool.log.intake import LogIntake
from relay.spool.maildir import layout as maildir_layout
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.postgresql import IN_A_DATABASE
from relay.spool.root.lock import format_of
from relay.spool.root.quarantine import OnCorrupt


@dataclass(frozen=True, slots=True)
class Engine:
    format: bytes
    pieces: tuple[str, ...]
    """Names in the spool's folder that belong to this engine; the engines share all other names."""
    spool: Callable[[str, Disk, Clock, OnCorrupt], Spool]
    prepare: Callable[[str, Disk], None]
    intake: Callable[[str, Disk, Clock], Intake]
    remove_leftovers: Callable[[str, Disk], None] = lambda _root, _disk: None
    """Remove what a conversion left outside the folder, in a database."""
    release_claims: Callable[[str, Disk], None] = lambda _root, _disk: None
    """Let other hosts claim the messages that a conversion copied into a database."""


ENGINES: dict[str, Engine] = {
    "maildir": Engine(
        maildir_layout.FORMAT,
        maildir_layout.PIECES,
        MaildirSpool,
        maildir_layout.prepare,
        MaildirIntake,
    ),
    "log": Engine(
        log_layout.FORMAT,
        log_layout.PIECES,
        LogSpool,
        log_layout.prepare,
        LogIntake,
    ),
}
"""The engines on a disk."""
LEAST_LEASE_NS = 3600 * SECOND_NS
_NAMES = {engine.format: str(name) for name, engine in ENGINES.items()} | {IN_A_DATABASE: "postgresql"}


def open_spool(policy: Policy, disk: Disk, clock: Clock, on_corrupt: OnCorrupt) -> Spool:
    """Become the owner of the queue, or of this host's part of a queue in a database.

    `on_corrupt` is called with the name and the fault of each message that is set aside.
    Raises SpoolBusy, OSError, Unavailable if the database does not answer, and WrongSpool for a spool of
    another engine or version.
    """
    return _engine(policy, disk).spool(str(policy.spool), disk, clock, on_corrupt)


def prepare_spool(policy: Policy, disk: Disk) -> None:
    """Create what `open_intake` assumes, in case no relay has run.  Raises OSError, WrongSpool."""
    _engine(policy, disk).prepare(str(policy.spool), disk)


def open_intake(policy: Policy, disk: Disk, clock: Clock) -> Intake:
    """Open a spool that an owner or `prepare_spool` created.  Raises OSError, SpoolBusy, WrongSpool."""
    return _wanted(policy).intake(str(policy.spool), disk, clock)


def engine_of(root: str, disk: Disk) -> str | None:
    """Return the engine of the spool in a folder, or None without a spool.  Raises OSError, WrongSpool."""
    if (found := format_of(root, disk)) is None:
        return None
    if found not in _NAMES:
        raise WrongSpool(f"{root}/format says {found[:60]!r}, which this version does not know")
    return _NAMES[found]


def engines_of(policy: Policy) -> dict[str, Engine]:
    """Return the engines between which this policy can convert a spool."""
    return (
        ENGINES
        if policy.storage.postgresql is None
        else ENGINES | {"postgresql": _in_database(policy, is_converted=True)}
    )


def _engine(policy: Policy, disk: Disk) -> Engine:
    root, wanted = str(policy.spool), policy.storage.engine
    if (found := engine_of(root, disk)) not in (None, wanted):
        raise WrongSpool(
            f"{root} is a spool of the engine {found}, and the policy asks for {wanted}: "
            f"run `relay spool convert --to {wanted}`, or let the policy say `engine: {found}`"
        )
    return _wanted(policy)


def _wanted(policy: Policy) -> Engine:
    if policy.storage.engine == "postgresql":
        return _in_database(policy)
    return ENGINES[policy.storage.engine]


def _in_database(policy: Policy, *, is_converted: bool = False) -> Engine:
    from relay.spool.database.connection import database_of  # noqa: PLC0415 - it needs an extra
    from relay.spool.postgresql import engine, intake  # noqa: PLC0415 - it needs an extra

    database, host = database_of(policy.storage), policy.hostname or os.uname().nodename
    lease_ns = 2 * max(LEAST_LEASE_NS // 2, *(each.max_transaction_ns for each in policy.upstreams.values()))
    return Engine(
        IN_A_DATABASE,
        intake.PIECES,
        partial(
            engine.PostgresqlSpool,
            database=database,
            host=host,
            lease_seconds=lease_ns // SECOND_NS,
            home=str(policy.spool) if is_converted else "",
        ),
        intake.prepare,
        partial(intake.PostgresqlIntake, database=database),
        partial(engine.remove_leftovers, database=database),
        partial(engine.release_claims, database=database),
    )
