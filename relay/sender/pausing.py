"""Whether an upstream is used now: holds the pause state of its account, saves and logs each change.

`relay.verdicts.account` says what changes the state.  A refused account is probed each hour, or less often
if the refusal or its rule asks for that.  The time of a pause does not count as a message's age.

The saved state takes part in no promise: losing it loses no mail, and only an operator's command waits for
it.  One that is unreadable or foreign is logged and ignored; the next `save` replaces it.
Assumes: one writer of a file at a time; the lock of the spool sees to that.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from relay.clock import Clock
from relay.mail.text import clean
from relay.policy.model import Policy
from relay.queue.routes import Availability
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.replacing import replace_file
from relay.spool.interface import Unavailable
from relay.telemetry.metrics import Telemetry
from relay.throttle.throttle import View
from relay.verdicts.account import (
    MOST_SPANS,
    RESTING,
    AccountState,
    Event,
    EventKind,
    OperatorPause,
    PauseRecord,
    at_a_start,
    lapsed,
    merge_spans,
    refusal_event,
    step,
    with_shared,
)
from relay.verdicts.outcome import Answer, Outcome, is_any_relayed
from relay.verdicts.shield import Shield
from relay.verdicts.verdict import Scope, Verdict

if TYPE_CHECKING:
    from relay.spool.database.account import RowState

LARGEST_BYTES = 64 * 1024
"""Twice the size of the largest record."""
_RECORDS = TypeAdapter(PauseRecord)


def pause_path(policy: Policy, upstream: str) -> Path:
    history = policy.history_path(upstream)
    return history.with_name(f"{history.name}.pause")


def render(record: PauseRecord) -> bytes:
    return _RECORDS.dump_json(record, indent=1) + b"\n"


def parse(content: bytes, name: str) -> PauseRecord:
    """Return the record.  Raises ValueError if the content of `name` is not one."""
    try:
        return _RECORDS.validate_json(content, strict=True)
    except ValidationError as error:
        raise ValueError(f"{name}: not a pause record (errors: {error.error_count()})") from None


class AccountStore:
    """Keeps the state of an account over a restart.  This class keeps nothing; a subclass overrides it.

    `look` and `save` wait for a disk or a network, in a thread; the rest belongs to one event loop.
    """

    def look(self) -> AccountState | None:
        """Return the stored state, by the clock of this boot.  Raises OSError, ValueError, Unavailable."""

    def news(self) -> AccountState | None:
        """Return a state of another host that is not known here yet; None without one."""

    def record(self, event: Event) -> None:
        """Note an event that changed the state on this host; the next `save` makes it durable."""

    def save(self, state: AccountState) -> None:
        """Make the state, after all recorded events, durable.  Raises OSError, Unavailable."""

    def note_row(self, row: "RowState") -> None:
        """Take the row of the account as the history read it, in any thread; only a database has one."""

    async def listen(self, on_news: Callable[[], None]) -> None:
        """Call `on_news` each time another host changed the state; return if no other host shares it."""


class AccountFile(AccountStore):
    """A JSON file beside the history, of this host alone; there whole or not at all, readable with `cat`."""

    def __init__(self, path: Path, disk: Disk, clock: Clock) -> None:
        self.path, self._disk, self._clock = str(path), disk, clock

    def look(self) -> AccountState | None:
        if self._disk.inode(self.path) is None:
            return None
        with opened(self._disk, self._disk.open_read(self.path)) as fd:
            # A larger file is cut here, and is not JSON then.
            record = parse(self._disk.pread(fd, LARGEST_BYTES, 0), self.path)
        clock = self._clock
        return record.state_at(clock.boot_id(), clock.boottime_ns(), clock.wall_ns())

    def save(self, state: AccountState) -> None:
        clock = self._clock
        record = PauseRecord(clock.boot_id(), clock.boottime_ns(), clock.wall_ns(), state)
        replace_file(self._disk, self.path, render(record))


def account_store(policy: Policy, upstream: str, disk: Disk, clock: Clock) -> AccountStore:
    """Return the row that hosts share for the account, or the file of this host; reads nothing yet."""
    place = policy.history_of(upstream)
    if place.database is None:
        return AccountFile(pause_path(policy, upstream), disk, clock)
    from relay.sender.account_row import AccountRow  # noqa: PLC0415 - it needs an extra
    from relay.spool.database.account import account_of  # noqa: PLC0415 - it needs an extra

    return AccountRow(account_of(place.database, place.account, place.host), clock)


class Pausing:
    def __init__(
        self,
        upstream: str,
        telemetry: Telemetry,
        store: AccountStore,
        *,
        view: View,
        on_change: Callable[[Availability], None],
    ) -> None:
        """`view` is of the account's limits.  `on_change` gets what routing sees, at each change."""
        self.state, self._store, self.shield = AccountState(), store, Shield()
        self.is_tried = False
        """Whether a transaction or a refusal has shown since the start if the upstream works."""
        self.relayed_from_ns = 0
        """When the latest transaction began that relayed something (boottime)."""
        self._refused_at_ns = 0
        self._is_unsaved = False
        self._saving: asyncio.Task[str] | None = None
        self._upstream = upstream
        self._events, self._metrics, self._clock = telemetry
        self._view, self._on_change = view, on_change

    @property
    def availability(self) -> Availability:
        """Return what routing sees: a pause lasts until something is relayed, proving included."""
        state = self.state
        if state.is_used:
            return Availability(pauses=state.spans)
        down_since_ns = state.spans[-1][0] if state.spans else self._clock.boottime_ns()
        return Availability(down_since_ns, state.is_proving and not state.is_resting, state.spans)

    @property
    def is_well(self) -> bool:
        """Whether a transaction relayed something that began after the last refusal about us."""
        return self.relayed_from_ns > self._refused_at_ns

    async def recall(self, replaced: AccountState | None) -> None:
        """Load the state that was saved before a restart; call it before all else.

        `replaced` is the state of the account that an edit replaced by this one.  The operator's pause is
        taken from it, and not from this account's own record.
        """
        found = None
        try:
            found = await asyncio.to_thread(self._store.look)
        except (OSError, ValueError, Unavailable) as error:
            self._events.tell("pause_unrecorded", upstream=self._upstream, error=clean(str(error)))
        now_ns = self._clock.boottime_ns()
        if found is not None:
            if (started := at_a_start(found, now_ns)) != found:
                self._store.record(Event(EventKind.RESTART, now_ns))
            self._adopt(started, now_ns)
        if replaced is None:
            return
        # The messages in this line waited through the pauses of the replaced account.
        self._become(_with_rests_of(self.state, replaced, now_ns))
        if replaced.operator is not None:
            self.apply(Event(EventKind.KEEP, replaced.spans[-1][0], pause=replaced.operator))
        elif self.state.operator is not None:
            self.end()

    def learn(self) -> None:
        """Adopt the state that another host of the account made, if there is a new one."""
        if (found := self._store.news()) is not None:
            self._adopt(found, self._clock.boottime_ns())

    def _adopt(self, found: AccountState, now_ns: int) -> None:
        """Take a state that was found, and count its pauses as this host's."""
        before = self.state
        self._become(with_shared(_with_rests_of(before, found, now_ns), found, now_ns))
        if before.in_a_row > 0 and self.state.in_a_row == 0:
            # On another host an operator acted, or the upstream relayed something.
            self.shield.clear()

    def retire(self) -> AccountState:
        """Return the last state that is saved and announced: the account is used no more."""
        # Another account may have its record and its place in the queue by now.
        self._store, self._on_change = AccountStore(), lambda _: None
        return self.state

    async def recorded(self) -> str:
        """Wait until the state is durable; return the error, empty if there is none."""
        return "" if self._saving is None else await asyncio.shield(self._saving)

    def until_ns(self, now_ns: int) -> int | None:
        """End the pauses that are over; return when the first of the others ends (boottime), or None.

        None also while a failed history is due to be read again: only a SOUND event ends that.
        """
        self._become(lapsed(self.state, now_ns))
        return next((end_ns for end_ns, _ in self.state.ends if end_ns > now_ns), None)

    def rest(self, answer: Answer) -> None:
        """Pause the account after a refusal about us."""
        self.is_tried, self._refused_at_ns = True, self._clock.boottime_ns()
        in_a_row = self.state.in_a_row
        self.apply(refusal_event(answer, self._refused_at_ns, self._view.oldest_leaves_in_ns))
        is_first = in_a_row == 0 and self.state.in_a_row == 1 and answer.verdict is Verdict.PAUSE
        # Further refusals in a row belong to the same block, and tell nothing new.
        if is_first and (ruling := answer.ruling) is not None and ruling.is_too_much:
            self._metrics.count("relay_upstream_cut_offs_total", self._upstream)
            windows = ", ".join(f"{each.used}/{each.limit.label}" for each in self._view.usage()) or "none"
            self._events.tell("cut_off", upstream=self._upstream, windows=windows, named_slots=ruling.named)

    def observe(self, outcome: Outcome, began_ns: int = 0) -> None:
        """Apply the outcome of a transaction that began at `began_ns` (boottime)."""
        if is_any_relayed(outcome):
            self.relayed_from_ns = max(self.relayed_from_ns, began_ns)
        if outcome.pause is not None and outcome.pause.scope is Scope.UPSTREAM:
            self.rest(outcome.pause)
            return
        self.is_tried = True
        if proofs := sum(map(_is_proof, outcome.answers)):
            self.apply(Event(EventKind.PROOF, self._clock.boottime_ns(), recipients=proofs))

    def end(self, why: EventKind = EventKind.RESUME) -> None:
        """End the pause by an operator's command, and clear the shield; one transaction goes first.

        After an EDIT that may have removed the cause, an operator's pause goes on.
        """
        self.apply(Event(why, self._clock.boottime_ns()))
        self.shield.clear()

    def apply(self, event: Event) -> None:
        after = step(self.state, event)
        if after != self.state:
            self._store.record(event)
        self._become(after)

    def _become(self, after: AccountState) -> None:
        """Take a new state; save it, and log how it differs from the one before."""
        before, self.state = self.state, after
        if after == before:
            return
        rested, rests = (state.health in RESTING or state.fault != "" for state in (before, after))
        if rests != rested:
            change = "pauses" if rests else "resumes"
            self._metrics.count(f"relay_upstream_{change}_total", self._upstream)
        self._save_soon()
        self._on_change(self.availability)
        self._tell_word(before.operator, after.operator)
        self._tell_health(before, after)

    def _save_soon(self) -> None:
        """Save the state in the background; of several states in a row, the last is enough."""
        self._is_unsaved = True
        if self._saving is None or self._saving.done():
            self._saving = asyncio.create_task(self._save(self._store))

    async def _save(self, store: AccountStore) -> str:
        error = ""
        while self._is_unsaved:
            self._is_unsaved, error = False, ""
            try:
                await asyncio.to_thread(store.save, self.state)
            except (OSError, Unavailable) as failed:
                error = clean(str(failed))
                self._events.tell("pause_unrecorded", upstream=self._upstream, error=error)
        return error

    def _tell_word(self, before: OperatorPause | None, pause: OperatorPause | None) -> None:
        events, name = self._events, self._upstream
        if pause is not None and pause != before:
            until_at_ns = None if pause.is_lasting else self._wall_ns(pause.until_ns)
            events.tell("operator_paused", upstream=name, by=pause.by, until_at_ns=until_at_ns)
        elif pause is None and before is not None:
            is_over = before.until_ns <= self._clock.boottime_ns()
            why = EventKind.LAPSE if is_over else EventKind.RESUME
            events.tell("operator_pause_ended", upstream=name, reason=why)

    def _tell_health(self, before: AccountState, state: AccountState) -> None:
        events, name = self._events, self._upstream
        if state.health in RESTING:
            if (state.health, state.until_ns) == (before.health, before.until_ns):
                return
            if state.is_stopped:
                events.tell("upstream_stopped", upstream=name, reason=state.because)
            else:
                until_at_ns = self._wall_ns(state.until_ns)
                events.tell("upstream_paused", upstream=name, reason=state.because, until_at_ns=until_at_ns)
        elif state.fault:
            if not before.fault:
                events.tell("upstream_stopped", upstream=name, reason=state.fault)
        elif state.is_proving:
            if not before.is_proving or before.fault:
                events.tell("upstream_proving", upstream=name)
        elif before.is_proving:
            # Logged only now: if the probe is refused, the upstream never resumed.
            events.tell("upstream_resumed", upstream=name)

    def _wall_ns(self, at_ns: int) -> int:
        return self._clock.wall_ns() + at_ns - self._clock.boottime_ns()


def _with_rests_of(state: AccountState, other: AccountState, now_ns: int) -> AccountState:
    """Return the state as if this account had also rested whenever `other` rested until now."""
    rests = [(since_ns, min(until_ns, now_ns)) for since_ns, until_ns in other.spans]
    return replace(state, spans=tuple(merge_spans((*state.spans, *rests))[-MOST_SPANS:]))


def _is_proof(answer: Answer) -> bool:
    """Whether the answer shows that the upstream works; a bounce without a reply is our own."""
    return answer.verdict is Verdict.RELAYED or (
        answer.verdict is Verdict.BOUNCE and answer.reply is not None
    )
