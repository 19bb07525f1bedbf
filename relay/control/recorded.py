"""What a start would know of the upstreams: read from the files of a relay that is down.

Takes no lock of a history, and changes nothing but a pause, by an operator's word.  A file that a start
would take as nothing counts as nothing here; that it does is told by the start.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import replace

from relay.clock import Clock
from relay.policy.lane import with_ceilings
from relay.policy.model import Policy
from relay.sender.state_file import AccountFile, pause_path
from relay.sender.upstreams import UpstreamView
from relay.spool.disk.durable import Disk
from relay.throttle.history import HistoryError
from relay.throttle.history_check import book_in_file
from relay.throttle.throttle import Shared, View
from relay.verdicts.account import AccountState, Event, PauseRecord, step
from relay.verdicts.health import Happening
from relay.verdicts.operator_pause import PauseAsked


def recorded_upstreams(policy: Policy, disk: Disk, clock: Clock) -> Mapping[str, UpstreamView]:
    """Raise PermissionError."""
    return {name: recorded_upstream(policy, name, disk, clock) for name in policy.upstreams}


def recorded_upstream(policy: Policy, name: str, disk: Disk, clock: Clock) -> UpstreamView:
    upstream = policy.upstreams[name]
    limits = with_ceilings(upstream.limits, policy.lanes)
    record, now_ns = recorded_pause(policy, name, disk, clock), clock.boottime_ns()
    state = AccountState() if record is None else record.at_a_start(now_ns)
    try:
        book = book_in_file(policy.history_path(name), limits, upstream.guard_ns, disk, clock)
    except HistoryError as error:
        return _found(step(state, Event(Happening.FAULT, now_ns, str(error), until_ns=now_ns)))
    return replace(_found(state), limits=View(Shared(book), clock))


def _found(state: AccountState) -> UpstreamView:
    until_ns = state.over_ns or state.until_ns
    return UpstreamView(state.shown, state.why, until_ns, operator=state.operator)


def recorded_pause(policy: Policy, name: str, disk: Disk, clock: Clock) -> PauseRecord | None:
    """Return what is kept of the last pause, as of this boot."""
    kept = None
    with contextlib.suppress(OSError, ValueError):
        kept = AccountFile(pause_path(policy, name), disk).load()
    if kept is None:
        return None
    now_ns = clock.boottime_ns()
    return kept.moved(clock.boot_id(), now_ns, clock.wall_ns())


def record_pause(policy: Policy, name: str, asked: PauseAsked, disk: Disk, clock: Clock) -> None:
    """Have the next start pause it.  Raises OSError."""
    now_ns, wall_ns = clock.boottime_ns(), clock.wall_ns()
    kept = recorded_pause(policy, name, disk, clock)
    state = AccountState() if kept is None else kept.state
    after = step(state, Event(Happening.KEEP, now_ns, pause=asked.begun(now_ns, wall_ns)))
    _write(policy, name, PauseRecord(clock.boot_id(), now_ns, wall_ns, after), disk)


def record_resume(policy: Policy, name: str, disk: Disk, clock: Clock) -> bool:
    """Have the next start use it, one message first; return whether it would have rested.  Raises OSError."""
    kept = recorded_pause(policy, name, disk, clock)
    if kept is None or not kept.state.is_resting:
        return False
    now_ns = clock.boottime_ns()
    after = step(kept.state, Event(Happening.RESUME, now_ns))
    _write(policy, name, PauseRecord(clock.boot_id(), now_ns, clock.wall_ns(), after), disk)
    return True


def _write(policy: Policy, name: str, record: PauseRecord, disk: Disk) -> None:
    # Crash here: the record of before is in force, and the operator has no answer.
    AccountFile(pause_path(policy, name), disk).save(record)
