"""The engine of a policy's spool: opened here and nowhere else, for whoever needs one.

`open_spool` is for the one sender: of a relay, or of an operator's verbs while no relay runs.
`open_intake` is for a listener, `inspected` for fsck, which changes nothing.
Does not: open the trigger (`trigger`), which is the same for every engine.
"""

from collections.abc import Callable

from relay.clock import Clock
from relay.policy.model import Policy
from relay.spool.durable import Disk
from relay.spool.finding import Inspection
from relay.spool.interface import Intake, Spool
from relay.spool.log.engine import LogSpool
from relay.spool.log.inspection import LogInspector
from relay.spool.log.intake import LogIntake
from relay.spool.log.layout import prepare as prepare_log
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.inspection import Inspector
from relay.spool.maildir.intake import MaildirIntake, prepare

MAILDIR = "maildir"
LOG = "log"


def open_spool(
    policy: Policy,
    disk: Disk,
    clock: Clock,
    on_corrupt: Callable[[str, str], None],
    engine: str = MAILDIR,
) -> Spool:
    """Take the spool.  Raises SpoolBusy, OSError, and ValueError for one of another engine or format.

    `on_corrupt` is told the name and the fault of each file that is set aside.
    """
    if engine == LOG:
        return LogSpool(str(policy.spool), disk, clock, on_corrupt)
    return MaildirSpool(str(policy.spool), disk, clock, on_corrupt)


def prepare_spool(policy: Policy, disk: Disk, engine: str = MAILDIR) -> None:
    """Make sure of what `open_intake` assumes, while no sender runs.

    Raises OSError, and ValueError for a spool of another engine or format.
    """
    (prepare_log if engine == LOG else prepare)(str(policy.spool), disk)


def open_intake(policy: Policy, disk: Disk, clock: Clock, engine: str = MAILDIR) -> Intake:
    """Assume that a sender took the spool before, or `prepare_spool`."""
    if engine == LOG:
        return LogIntake(str(policy.spool), disk, clock)
    return MaildirIntake(str(policy.spool), disk, clock)


def inspected(policy: Policy, disk: Disk, engine: str = MAILDIR) -> Inspection:
    """Return what there is to say.  Raises OSError; FileNotFoundError where there is no spool."""
    if engine == LOG:
        return LogInspector(str(policy.spool), disk).inspect()
    return Inspector(str(policy.spool), disk).inspect()
