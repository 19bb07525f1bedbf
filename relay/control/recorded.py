"""What a start would know of the upstreams, read from the files and databases of a relay that is down.

Takes no lock on a history file, but reads a history in PostgreSQL in its locking transaction.  Changes only
pauses, on an operator's word.  A file that a start would ignore counts as absent; the start reports that.
"""

import contextlib
from collections.abc import Mapping

from relay.clock import Clock
from relay.policy.model import Policy
from relay.sender.account import UpstreamView
from relay.sender.pausing import AccountFile, account_row, pause_path
from relay.spool.disk.durable import Disk
from relay.throttle.history import HistoryError
from relay.throttle.limit import with_ceilings
from relay.throttle.throttle import View, recorded_book
from relay.verdicts.account import AccountState, Event, EventKind, PauseAsked, PauseRecord, step, with_shared


def recorded_upstreams(policy: Policy, disk: Disk, clock: Clock) -> Mapping[str, UpstreamView]:
    """Raise PermissionError if this user may not read a history."""
    return {name: _recorded(policy, name, disk, clock) for name in policy.upstreams}


def record(policy: Policy, name: str, asked: PauseAsked | None, disk: Disk, clock: Clock) -> bool:
    """Have the next start pause the upstream as asked; with None asked, use it again, one message first.

    Return whether that changes anything.  Raises OSError, DatabaseError.
    """
    kept, now_ns = _kept(policy, name, disk, clock), clock.boottime_ns()
    event = Event(EventKind.RESUME, now_ns)
    if asked is not None:
        event = Event(EventKind.KEEP, now_ns, pause=asked.begun(now_ns, clock.wall_ns()))
    if is_new := asked is not None or kept.is_resting:
        # Crash here: the previous record stays in force, and the operator has no answer.
        after = PauseRecord(clock.boot_id(), now_ns, clock.wall_ns(), step(kept, event))
        AccountFile(pause_path(policy, name), disk).save(after)
    # Also if nothing is new: the database row may differ, and is unreadable while the database is away.
    if (row := account_row(policy.history_of(name), clock)) is not None:
        row.apply([event])
    return is_new


def _recorded(policy: Policy, name: str, disk: Disk, clock: Clock) -> UpstreamView:
    now_ns = clock.boottime_ns()
    kept = PauseRecord(clock.boot_id(), now_ns, clock.wall_ns(), _kept(policy, name, disk, clock))
    state, limits = kept.at_a_start(now_ns), with_ceilings(policy.upstreams[name], policy.lanes)
    try:
        book = recorded_book(policy.history_of(name), limits, disk, clock)
    except HistoryError as error:
        return UpstreamView(step(state, Event(EventKind.FAULT, now_ns, str(error), until_ns=now_ns)))
    return UpstreamView(state, View(book, clock))


def _kept(policy: Policy, name: str, disk: Disk, clock: Clock) -> AccountState:
    """Return the recorded state of the account, by the clock of this boot."""
    record = None
    with contextlib.suppress(OSError, ValueError):
        record = AccountFile(pause_path(policy, name), disk).load()
    now_ns, state = clock.boottime_ns(), AccountState()
    if record is not None:
        state = record.moved(clock.boot_id(), now_ns, clock.wall_ns()).state
    if (row := account_row(policy.history_of(name), clock)) is not None:
        row.look()
        if (shared := row.news()) is not None:
            state = with_shared(state, shared, now_ns)
    return state
