"""Whether an upstream is used now: holds the pause state of its account, saves and logs each change.

`relay.verdicts.account` says what changes the state.  A refused account is probed each hour, or less often
if the refusal or its rule asks for that.  The time of a pause does not count as a message's age.

The saved state takes part in no promise: losing it loses no mail, and only an operator's command waits for
it.  A file that is unreadable or foreign is logged and ignored; the next record replaces it.
Assumes: one writer of a file at a time; the lock of the spool sees to that.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from relay.clock import Clock
from relay.mail.text import clean
from relay.policy.model import HistoryPlace, Policy
from relay.queue.routes import Availability
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.replacing import replace_file
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
    from relay.sender.account_row import AccountRow

LARGEST_BYTES = 64 * 1024
"""Twice the size of the largest record."""
_RECORDS = TypeAdapter(PauseRecord)


def pause_path(policy: Policy, upstream: str) -> Path:
    history = policy.history_path(upstream)
    return history.with_name(f"{history.name}.pause")


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
    """The pause state of an account in a JSON file beside its history, readable with `cat`.

    The file is there whole or not at all.  `save_soon` never raises and never blocks the loop; it writes the
    newest of several records.  Belongs to one event loop, or to a relay that is down.
    """

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


class Pausing:
    def __init__(
        self,
        upstream: str,
        telemetry: Telemetry,
        state_file: AccountFile,
        *,
        row: "AccountRow | None" = None,
        view: View,
        on_change: Callable[[Availability], None],
    ) -> None:
        """`row` is the state that all hosts of the account share; None if the account is this host's alone.

        `view` is of the account's limits.  `on_change` is called with what routing sees, at each change.
        """
        self.state, self.state_file, self.row, self.shield = AccountState(), state_file, row, Shield()
        self.is_tried = False
        """Whether a transaction or a refusal has shown since the start if the upstream works."""
        self._is_retired = False
        """Its account left the policy; another one may have its record by now."""
        self.relayed_from_ns = 0
        """When the latest transaction began that relayed something (boottime)."""
        self._refused_at_ns = 0
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
        record, why = None, ""
        try:
            record = await asyncio.to_thread(self.state_file.load)
        except (OSError, ValueError) as error:
            why = clean(f"{self.state_file.path}: {error}")
        if record is not None:
            now_ns = self._clock.boottime_ns()
            record = record.moved(self._clock.boot_id(), now_ns, self._clock.wall_ns())
            self._become(record.at_a_start(now_ns))
            self.shield.recall(record.state.doubts)
        if self.row is not None:
            why = await asyncio.to_thread(self.row.look) or why
            self.learn()
            self.apply(EventKind.RESTART)
        if why:
            self._events.tell("pause_unrecorded", upstream=self._upstream, error=why)
        if replaced is None:
            return
        # The messages in this line waited through the pauses of the replaced account.
        now_ns = self._clock.boottime_ns()
        before = [(since_ns, min(until_ns, now_ns)) for since_ns, until_ns in replaced.spans]
        spans = merge_spans((*self.state.spans, *before))
        self._become(replace(self.state, spans=tuple(spans[-MOST_SPANS:])))
        if replaced.operator is not None:
            self.apply(EventKind.KEEP, at_ns=replaced.spans[-1][0], pause=replaced.operator)
        elif self.state.operator is not None:
            self.end()

    def learn(self) -> None:
        """Adopt the state that another host wrote, if there is news."""
        if self.row is not None and (shared := self.row.news()) is not None:
            self._become(with_shared(self.state, shared, self._clock.boottime_ns()))
            self.shield.recall(self.state.doubts)

    def ask_history(self) -> None:
        """Have a failed history read at once: its database answers again."""
        if self.state.fault:
            now_ns = self._clock.boottime_ns()
            self._become(replace(self.state, fault_until_ns=min(now_ns, self.state.fault_until_ns)))

    def retire(self) -> AccountState:
        """Return the last state that is saved and announced: the account is used no more."""
        self._is_retired = True
        return self.state

    async def recorded(self) -> str:
        """Wait until the state is durable; return the error, empty if there is none."""
        return await self.state_file.written() or ("" if self.row is None else await self.row.written())

    def until_ns(self, now_ns: int) -> int | None:
        """End the pauses that are over; return when the first of the others ends (boottime), or None.

        None also while a failed history is due to be read again: only `trust_history` ends that.
        """
        self._become(lapsed(self.state, now_ns))
        return next((end_ns for end_ns, _ in self.state.ends if end_ns > now_ns), None)

    def rest(self, answer: Answer) -> None:
        """Pause the account after a refusal about us."""
        self.is_tried, self._refused_at_ns = True, self._clock.boottime_ns()
        in_a_row = self.state.in_a_row
        self._apply(refusal_event(answer, self._refused_at_ns, self._view.oldest_leaves_in_ns))
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
            self.apply(EventKind.PROOF, recipients=proofs)

    def trust_history(self) -> None:
        """End the pause for a failed history: it was read, and is sound."""
        if self.state.fault:
            self.apply(EventKind.SOUND)
        if self.row is not None:
            self.row.write()

    def end(self, why: EventKind = EventKind.RESUME) -> None:
        """End the pause by an operator's command, and clear the shield; one transaction goes first.

        After an EDIT that may have removed the cause, an operator's pause goes on.
        """
        self.apply(why)
        self.shield.clear()

    def apply(self, kind: EventKind, *, at_ns: int | None = None, **about: Any) -> None:
        """Apply an event of now, or of `at_ns` (boottime)."""
        self._apply(Event(kind, self._clock.boottime_ns() if at_ns is None else at_ns, **about))

    def _apply(self, event: Event) -> None:
        before = self.state
        self._become(step(before, event))
        if self.row is not None and self.state != before and not self._is_retired:
            self.row.record(event)

    def _become(self, after: AccountState) -> None:
        """Take a new state; save it, and log how it differs from the one before."""
        before, self.state = self.state, after
        if after == before:
            return
        rested, rests = (state.health in RESTING or state.fault != "" for state in (before, after))
        if rests != rested:
            change = "pauses" if rests else "resumes"
            self._metrics.count(f"relay_upstream_{change}_total", self._upstream)
        clock = self._clock
        if not self._is_retired:
            record = PauseRecord(clock.boot_id(), clock.boottime_ns(), clock.wall_ns(), after)
            self.state_file.save_soon(record)
            self._on_change(self.availability)
        self._tell_word(before.operator, after.operator)
        self._tell_health(before, after)

    def _tell_word(self, before: OperatorPause | None, pause: OperatorPause | None) -> None:
        if pause is not None and pause != before:
            until_at_ns = None if pause.is_lasting else self._wall_ns(pause.until_ns)
            self._events.tell(
                "operator_paused", upstream=self._upstream, by=pause.by, until_at_ns=until_at_ns
            )
        elif pause is None and before is not None:
            is_over = before.until_ns <= self._clock.boottime_ns()
            self._events.tell(
                "operator_pause_ended",
                upstream=self._upstream,
                reason=EventKind.LAPSE if is_over else EventKind.RESUME,
            )

    def _tell_health(self, before: AccountState, state: AccountState) -> None:
        if state.health in RESTING:
            if (state.health, state.until_ns) == (before.health, before.until_ns):
                return
            if state.is_refused:
                self._events.tell("upstream_stopped", upstream=self._upstream, reason=state.because)
            else:
                self._events.tell(
                    "upstream_paused",
                    upstream=self._upstream,
                    reason=state.because,
                    until_at_ns=self._wall_ns(state.until_ns),
                )
        elif state.fault:
            if not before.fault:
                self._events.tell("upstream_stopped", upstream=self._upstream, reason=state.fault)
        elif state.is_proving:
            if not before.is_proving or before.fault:
                self._events.tell("upstream_proving", upstream=self._upstream)
        elif before.is_proving:
            # Logged only now: if the probe is refused, the upstream never resumed.
            self._events.tell("upstream_resumed", upstream=self._upstream)

    def _wall_ns(self, at_ns: int) -> int:
        return self._clock.wall_ns() + at_ns - self._clock.boottime_ns()


def _is_proof(answer: Answer) -> bool:
    """Whether the answer shows that the upstream works; a bounce without a reply is our own."""
    return answer.verdict is Verdict.RELAYED or (
        answer.verdict is Verdict.BOUNCE and answer.reply is not None
    )
