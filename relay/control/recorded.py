"""What a start would know of the upstreams, read from the files and databases of a relay that is down.

Takes no lock on a history file, but reads a history in PostgreSQL in its locking transaction.  Changes only
pauses, on an operator's word.  A file that a start would ignore counts as absent; the start reports that.
"""

import contextlib
from collections.abc import Mapping

from relay.clock import Clock
from relay.policy.model import Policy
from relay.sender.account import UpstreamView
from relay.sender.pausing import AccountStore, account_store
from relay.spool.disk.durable import Disk
from relay.spool.interface import Unavailable
from relay.throttle.history import HistoryError
from relay.throttle.limit import with_ceilings
from relay.throttle.throttle import View, recorded_book
from relay.verdicts.account import AccountState, Event, EventKind, PauseAsked, at_a_start, step


def recorded_upstreams(policy: Policy, disk: Disk, clock: Clock) -> Mapping[str, UpstreamView]:
    """Raise PermissionError if this user may not read a history."""
    return {name: _recorded(policy, name, disk, clock) for name in policy.upstreams}


def record(policy: Policy, name: str, asked: PauseAsked | None, disk: Disk, clock: Clock) -> bool:
    """Have the next start pause the upstream as asked; with None asked, use it again, one message first.

    Return whether that changes anything.  Raises OSError, Unavailable.
    """
    store, now_ns = account_store(policy, name, disk, clock), clock.boottime_ns()
    kept = _kept(store)
    event = Event(EventKind.RESUME, now_ns)
    if asked is not None:
        event = Event(EventKind.KEEP, now_ns, pause=asked.begun(now_ns, clock.wall_ns()))
    # Crash here: the previous record stays in force, and the operator has no answer.
    store.record(event)
    store.save(step(kept, event))
    return asked is not None or kept.is_resting


def _recorded(policy: Policy, name: str, disk: Disk, clock: Clock) -> UpstreamView:
    now_ns, limits = clock.boottime_ns(), with_ceilings(policy.upstreams[name], policy.lanes)
    state = at_a_start(_kept(account_store(policy, name, disk, clock)), now_ns)
    try:
        book = recorded_book(policy.history_of(name), limits, disk, clock)
    except HistoryError as error:
        return UpstreamView(step(state, Event(EventKind.FAULT, now_ns, str(error), until_ns=now_ns)))
    return UpstreamView(state, View(book, clock))


def _kept(store: AccountStore) -> AccountState:
    """Return the recorded state of the account, by the clock of this boot."""
    with contextlib.suppress(OSError, ValueError, Unavailable):
        store.look()
    return store.news() or AccountState()
