"""`relay top`: asks the relay again and again, shows a table, and asks before a verb.

Guarantees: no colours, but bold and reverse; keys only, so that the mouse selects text as it does elsewhere.
A relay that stops answering or is restarted is found again; what was seen last stays.  Costs the relay a
snapshot each 2 s, and a count of the queue at most a twentieth of the time.
Does not: read the spool of a relay that is down, whose lock its next start needs.
"""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio import to_thread
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import ClassVar, NamedTuple

import click
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from relay.cli.locate import located
from relay.cli.options import Where, printable, where_options
from relay.cli.pause import who_asks
from relay.cli.render import (
    drain_words,
    in_plain_words,
    limits_of,
    relay_words,
    state_words,
    used_words,
    wrong_words,
)
from relay.clock import SystemClock
from relay.control.client import ControlClient
from relay.control.operations import ABSENT, BUSY, OK, TABLE, UNCHANGED, Unreachable, Verb
from relay.mail.formats import span
from relay.policy.units import duration_ns
from relay.status.filters import EVERYTHING, By, Filters, GroupRow, Wanted
from relay.status.snapshot import LimitStatus, QueueState, Snapshot, UpstreamStatus
from relay.verdicts.operator_pause import PauseAsked

EVERY_SECONDS = 2.0
COUNT_NS = 10_000_000_000
OFTEN = 20
"""A count is made again after so many times as long as the last one took, and not before COUNT_NS."""
MOST_LISTED = 20
"""Senders, and reasons."""
BAR_CELLS = 20
ENDS = (signal.SIGTERM, signal.SIGHUP)
_SAID = {ABSENT: "gone by now", BUSY: "in a transaction", UNCHANGED: "nothing to change"}


@click.command()
@where_options
def top(where: Where) -> int:
    """Watch a running relay in a terminal: limits, lanes, upstreams, senders; and act by keys.

    The last line lists the keys.  While the relay is down it says so, and goes on looking.
    """
    # All three: the picture goes to standard error, which is the terminal where the others are redirected.
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise click.UsageError("`relay top` needs a terminal; `relay status` prints to anything")
    if os.environ.get("TERM", "dumb") == "dumb":
        raise click.UsageError("this terminal cannot move its cursor (TERM); use `relay status`")
    return asyncio.run(_watch(located(where)[0]))


async def _watch(relay: ControlClient) -> int:
    app, loop = Top(relay), asyncio.get_running_loop()
    for number in ENDS:
        loop.add_signal_handler(number, partial(app.exit, return_code=128 + number))
    await app.run_async(mouse=False)
    # A thread that still waits for an answer would keep the program from ending.
    relay.close()
    # The library says 1 of a fault, whose traceback it printed; signals are told apart by more.
    return os.EX_SOFTWARE if app.return_code == 1 else app.return_code or os.EX_OK


class Row(NamedTuple):
    kind: str
    name: str
    now: str


def _rows(snapshot: Snapshot, senders: list[GroupRow], reasons: list[GroupRow], now_ns: int) -> Iterator[Row]:
    for upstream in snapshot.upstreams:
        yield Row("upstream", upstream.name, _upstream(upstream, now_ns))
        for limit in upstream.limits:
            yield Row("limit", f"{upstream.name} {limit.words}", _limit(limit, now_ns))
    for route in snapshot.routes:
        through = f"{', '.join(route.upstreams)}: through {route.upstream}"
        yield Row("route", route.numbers_words, "; ".join(filter(None, (through, route.why(now_ns)))))
    for lane in snapshot.lanes:
        ceiling = "" if lane.ceiling_percent is None else f", at most {lane.ceiling_percent} %"
        waits = f"{lane.waiting_messages} waiting, oldest {span(lane.oldest_age_ns)}"
        waiting = waits if lane.waiting_messages else "empty"
        yield Row("lane", lane.name, f"share {lane.share_percent:.4g} %{ceiling}; {waiting}")
    for kind, groups in (("sender", senders), ("reason", reasons)):
        for group in groups:
            if group.key:
                name = in_plain_words(group.key, limits_of(snapshot)) if kind == "reason" else group.key
                yield Row(kind, name, f"{group.messages} messages, {group.recipients} recipients")


def _upstream(upstream: UpstreamStatus, now_ns: int) -> str:
    facts = [state_words(upstream, now_ns)]
    if upstream.in_flight:
        facts.append(f"{upstream.in_flight} in flight")
    if upstream.waiting_messages:
        facts.append(f"{upstream.waiting_messages} waiting, drained {drain_words(upstream, now_ns)}")
    return "; ".join(facts)


def _limit(limit: LimitStatus, now_ns: int) -> str:
    # The bar is full only where no room is left, and empty only where nothing is used.
    some = max(min(1, limit.used), min(BAR_CELLS - 1, limit.used * BAR_CELLS // limit.count))
    filled = BAR_CELLS if limit.used >= limit.count else some
    opens = "" if limit.opens_at_ns is None else f", {limit.opening_words(now_ns)}"
    return f"[{'#' * filled:-<{BAR_CELLS}}] {used_words(limit)}{opens}"


class Question(ModalScreen[str | None]):
    """Says what would be done; `y`, or with `prompt` a text and Enter, is the consent."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,n", "no", "No"), Binding("y", "yes", "Yes")]

    def __init__(self, text: str, prompt: str = "", check: Callable[[str], object] = str) -> None:
        """`check` raises ValueError for a text that will not do."""
        super().__init__()
        self._text, self._prompt, self._check = text, prompt, check

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text(self._text))
            if self._prompt:
                yield Input(placeholder=self._prompt, compact=True)
            yield Static("", id="wrong")
            yield Static("Enter: do it   Esc: leave it" if self._prompt else "y: do it   n, Esc: leave it")

    def action_no(self) -> None:
        self.dismiss(None)

    def action_yes(self) -> None:
        if not self._prompt:
            self.dismiss("")

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        try:
            self._check(submitted.value)
        except ValueError as error:
            self.query_one("#wrong", Static).update(Text(str(error)))
            return
        self.dismiss(submitted.value)


class Top(App[None]):
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen, DataTable, Footer, FooterKey, Static { background: ansi_default; color: ansi_default; }
    DataTable { height: 1fr; scrollbar-size: 0 0; }
    DataTable > .datatable--cursor, DataTable:focus > .datatable--cursor {
        background: ansi_default; color: ansi_default; text-style: reverse;
    }
    DataTable > .datatable--header { background: ansi_default; color: ansi_default; text-style: bold; }
    FooterKey .footer-key--key, FooterKey .footer-key--description {
        background: ansi_default; color: ansi_default;
    }
    Question { align: center middle; }
    Question > Vertical {
        width: 100%; max-width: 78; height: auto; border: ascii ansi_default; padding: 0 1;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "Pause"),
        Binding("u", "resume", "Use again"),
        Binding("h", "act('hold')", "Hold"),
        Binding("r", "act('retry')", "Retry"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, relay: ControlClient) -> None:
        # Its own default colours stay those of the terminal.
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self._relay, self._clock = relay, SystemClock()
        self._snapshot: Snapshot | None = None
        self._senders, self._reasons = list[GroupRow](), list[GroupRow]()
        self._seen_ns = self._counts_at_ns = 0
        """Boottime."""
        self._trouble = f"asking the relay on {relay.spool}"
        self._rows: list[Row] = []

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield DataTable(cursor_type="row")
        yield Static(id="said", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self._table.add_columns("what", "name", "now")
        self._table.focus()
        self._keep_looking()

    @work
    async def _keep_looking(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(EVERY_SECONDS)

    async def _look(self) -> None:
        try:
            self._snapshot, self._trouble = await to_thread(self._relay.snapshot), ""
            self._seen_ns = began_ns = self._clock.boottime_ns()
            if began_ns >= self._counts_at_ns:
                self._senders = await to_thread(self._relay.summary, EVERYTHING, By.SENDER, MOST_LISTED)
                self._reasons = await to_thread(self._relay.summary, EVERYTHING, By.REASON, MOST_LISTED)
                now_ns = self._clock.boottime_ns()
                self._counts_at_ns = now_ns + max(COUNT_NS, OFTEN * (now_ns - began_ns))
        except (Unreachable, OSError) as error:
            self._trouble = self._why(error)
        self._draw()

    def _why(self, error: Exception) -> str:
        """Return why the relay did not answer."""
        try:
            is_up = self._relay.is_up()
        except OSError as denied:
            return f"the relay on {self._relay.spool} cannot be asked: {denied.strerror}"
        return str(error) if is_up else f"no relay runs on {self._relay.spool}; looking again and again"

    def _draw(self) -> None:
        """Show what is known now; a row that was chosen stays so."""
        if not self.is_running or not self.screen_stack:
            return
        lines = [self._trouble] if self._trouble else []
        if self._snapshot is not None:
            now_ns = self._snapshot.at_ns + self._clock.boottime_ns() - self._seen_ns
            counts = [(self._snapshot.counts(state).messages, state.value) for state in QueueState]
            queued = ", ".join(f"{count} {state}" for count, state in counts if count) or "empty"
            lines += [relay_words(self._snapshot, now_ns), f"queue: {queued}", *wrong_words(self._snapshot)]
            self._show(list(_rows(self._snapshot, self._senders, self._reasons, now_ns)))
        self.screen_stack[0].query_one("#head", Static).update(Text("\n".join(map(printable, lines))))

    def _show(self, rows: list[Row]) -> None:
        chosen, self._rows = self._chosen, rows
        with self.batch_update():
            self._table.clear()
            for row in self._rows:
                self._table.add_row(row.kind, Text(printable(row.name)), Text(printable(row.now)))
            names = [row[:2] for row in self._rows]
            if chosen is not None and chosen[:2] in names:
                self._table.move_cursor(row=names.index(chosen[:2]))

    @property
    def _table(self) -> "DataTable[str | Text]":
        return self.screen_stack[0].query_one(DataTable)

    @property
    def _chosen(self) -> Row | None:
        at = self._table.cursor_row
        return self._rows[at] if at < len(self._rows) else None

    def _say(self, text: str) -> None:
        self.screen_stack[0].query_one("#said", Static).update(Text(printable(text)))

    @work(exclusive=True, group="asking")
    async def action_act(self, verb: Verb) -> None:
        states, row = TABLE[verb].changes, self._chosen
        match row:
            case Row("upstream", name):
                filters = Filters(upstreams=(name,), states=states)
            case Row("lane", name):
                filters = Filters(lanes=(name,), states=states)
            case Row("sender", name):
                filters = Filters(senders=(name,), states=states)
            case _:
                self._say("choose an upstream, a lane or a sender first")
                return
        async with self._told(verb):
            queue_ids = [each.queue_id for each in await to_thread(self._relay.queue, Wanted(filters))]
            what = f"{len(queue_ids)} messages of {row.kind} {name}"
            if await self._consents(f"{verb} {what} ({' or '.join(states)} now): {TABLE[verb].done}"):
                # What is in another state by then is left alone.
                results = Counter((await to_thread(self._relay.act, verb, queue_ids, states)).values())
                done = [f"{results.pop(OK, 0)} messages: {TABLE[verb].done}"]
                self._say("; ".join(done + [f"{n}: {_SAID.get(why, why)}" for why, n in results.items()]))

    @work(exclusive=True, group="asking")
    async def action_pause(self) -> None:
        if (name := self._upstream_chosen()) is None:
            return
        prompt = "for how long: 30m, 2h; empty: until it is used again"
        waits = "what is in flight finishes, nothing new begins, and mail waits"
        length = await self.push_screen_wait(Question(f"Pause upstream {name}: {waits}.", prompt, _length_ns))
        if length is None:
            self._say("nothing was done")
            return
        asked = PauseAsked(who_asks(), _length_ns(length))
        await self._do(name, "pause", to_thread(self._relay.pause, name, asked))

    @work(exclusive=True, group="asking")
    async def action_resume(self) -> None:
        name = self._upstream_chosen()
        again = "one message first; senders that it refused, and what its shield doubts, are tried again"
        if name is not None and await self._consents(f"Use upstream {name} again: {again}."):
            await self._do(name, "resume", to_thread(self._relay.resume, name))

    async def _do(self, name: str, verb: Verb, asked: Awaitable[str]) -> None:
        async with self._told(verb):
            result = await asked
            said = {OK: TABLE[verb].done, UNCHANGED: TABLE[verb].already, ABSENT: "there is no such upstream"}
            self._say(f"{name}: {said.get(result, result)}")

    @contextlib.asynccontextmanager
    async def _told(self, verb: Verb) -> AsyncIterator[None]:
        """Say what the relay left unanswered, and look at what came of it."""
        try:
            yield
        except (Unreachable, OSError) as error:
            self._say(f"{verb}: not all was answered: {self._why(error)}")
        await self._look()

    async def _consents(self, text: str) -> bool:
        consents = await self.push_screen_wait(Question(printable(text))) is not None
        if not consents:
            self._say("nothing was done")
        return consents

    def _upstream_chosen(self) -> str | None:
        row = self._chosen
        if row is None or row.kind != "upstream":
            self._say("choose an upstream first")
            return None
        return row.name


def _length_ns(text: str) -> int | None:
    """Raise ValueError for what is no time; nothing is no end."""
    return duration_ns(text.strip()) if text.strip() else None
