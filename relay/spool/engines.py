"""The engines of a spool, by name: opened here and nowhere else, for whoever needs one.

`open_spool` is for the one sender: of a relay, or of an operator's verbs while no relay runs.
`open_intake` is for a listener, `inspected` for fsck, which changes nothing.

Guarantees: a spool is opened by the engine that its `format` names, or not at all; nothing is made in one of
another engine, nor in one that is between two (`convert`).
Does not: open the trigger (`trigger`), which is the same for every engine.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from relay.clock import Clock
from relay.policy.model import Policy, SpoolEngine
from relay.spool.disk.durable import Disk
from relay.spool.finding import STOPS_THE_START, Finding, Inspection
from relay.spool.interface import Intake, Spool
from relay.spool.log import layout as log_layout
from relay.spool.log.engine import LogSpool
from relay.spool.log.inspection import LogInspector
from relay.spool.log.intake import LogIntake
from relay.spool.maildir import layout as maildir_layout
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.inspection import Inspector
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.root.lock import format_of

OnCorrupt = Callable[[str, str], None]
CONVERTING = "converting"
"""The folder in a spool where `convert` builds another one, and then empties the old one."""


@dataclass(frozen=True, slots=True)
class Engine:
    format: bytes
    pieces: tuple[str, ...]
    """Names in a spool's folder that are this engine's own; all others are shared by all engines."""
    spool: Callable[[str, Disk, Clock, OnCorrupt], Spool]
    prepare: Callable[[str, Disk], None]
    intake: Callable[[str, Disk, Clock], Intake]
    inspect: Callable[[str, Disk], Inspection]
    has_writers: Callable[[str, Disk], bool] = lambda _root, _disk: False
    """Whether a listener lives that could still accept mail once the pieces were moved away."""


ENGINES: dict[str, Engine] = {
    SpoolEngine.MAILDIR: Engine(
        maildir_layout.FORMAT,
        ("tmp", "new", "cur", "hold", "bounce", "ledger"),
        MaildirSpool,
        maildir_layout.prepare,
        MaildirIntake,
        lambda root, disk: Inspector(root, disk).inspect(),
    ),
    SpoolEngine.LOG: Engine(
        log_layout.FORMAT,
        ("log", "long"),
        LogSpool,
        log_layout.prepare,
        LogIntake,
        lambda root, disk: LogInspector(root, disk).inspect(),
        log_layout.has_writers,
    ),
}


def open_spool(
    policy: Policy, disk: Disk, clock: Clock, on_corrupt: OnCorrupt, engine: str | None = None
) -> Spool:
    """Take the spool.  Raises SpoolBusy, OSError, and ValueError for one of another engine or version.

    `on_corrupt` is told the name and the fault of each file that is set aside; `engine` is by default the
    policy's, here and below.
    """
    return _engine(policy, disk, engine).spool(str(policy.spool), disk, clock, on_corrupt)


def prepare_spool(policy: Policy, disk: Disk, engine: str | None = None) -> None:
    """Make sure of what `open_intake` assumes, while no sender runs.  Raises OSError, ValueError."""
    _engine(policy, disk, engine).prepare(str(policy.spool), disk)


def open_intake(policy: Policy, disk: Disk, clock: Clock, engine: str | None = None) -> Intake:
    """Assume that a sender took the spool before, or `prepare_spool`."""
    return _named(engine or policy.storage.engine).intake(str(policy.spool), disk, clock)


def inspected(policy: Policy, disk: Disk, engine: str | None = None) -> Inspection:
    """Return what there is to say, by the engine that the spool is of.

    Of what no engine knows the policy's tells.  Raises OSError; FileNotFoundError where there is no spool.
    """
    root, found = str(policy.spool), None
    with contextlib.suppress(ValueError):
        found = engine_of(root, disk)
    wanted = engine or policy.storage.engine
    seen = _named(found or wanted).inspect(root, disk)
    if found is not None:
        if disk.inode(f"{root}/{CONVERTING}") is not None:
            # They are told of as one.
            others = {piece for name, each in ENGINES.items() if name != found for piece in each.pieces}
            explained = {f"{root}/{name}" for name in (CONVERTING, *others)}
            seen.findings = [each for each in seen.findings if each.path not in explained]
        seen.findings += _between_engines(root, disk, found, wanted)
    return seen


def _between_engines(root: str, disk: Disk, found: str, wanted: str) -> Iterator[Finding]:
    if found != wanted:
        what = f"of the engine {found}, and the policy asks for {wanted}"
        advice = f"run `relay spool convert --to {wanted}`, or let the policy say `engine: {found}`"
        yield Finding(root, "other_engine", what, STOPS_THE_START, advice)
    path = f"{root}/{CONVERTING}"
    if is_half_converted(root, disk):
        advice = "run `relay spool convert` again"
        yield Finding(
            path, "half_converted", "a conversion that was cut off near its end", STOPS_THE_START, advice
        )
    elif disk.inode(path) is not None:
        becomes = "not used; `relay spool convert` begins anew, or removes it"
        yield Finding(path, "unfinished_conversion", "a spool that a conversion began to build", becomes)


def engine_of(root: str, disk: Disk) -> str | None:
    """Return whose spool is in a folder; None where there is none yet.  Raises OSError, ValueError."""
    if (found := format_of(root, disk)) is None:
        return None
    names = [name for name, engine in ENGINES.items() if engine.format == found]
    if not names:
        raise ValueError(f"{root}/format says {found[:60]!r}, which this version does not know")
    return names[0]


def is_half_converted(root: str, disk: Disk) -> bool:
    """Return whether a spool is of its new engine, and what it was before is not yet gone."""
    found = engine_of(root, disk)
    return found is not None and engine_of(f"{root}/{CONVERTING}", disk) == found


def _engine(policy: Policy, disk: Disk, engine: str | None) -> Engine:
    root, wanted = str(policy.spool), engine or policy.storage.engine
    if (found := engine_of(root, disk)) not in (None, wanted):
        raise ValueError(
            f"{root} is a spool of the engine {found}, and the policy asks for {wanted}: "
            f"run `relay spool convert --to {wanted}`, or let the policy say `engine: {found}`"
        )
    if is_half_converted(root, disk):
        raise ValueError(f"a conversion of {root} was cut off near its end: run `relay spool convert` again")
    return _named(wanted)


def _named(name: str) -> Engine:
    if name not in ENGINES:
        raise ValueError(f"this relay has no engine {name}")
    return ENGINES[name]
