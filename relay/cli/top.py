"""`relay top`: polls the relay, shows a table, and asks for confirmation before a verb.

Guarantees: bold and reverse, no colours; keys only, so that the mouse selects text as in other programs.  If
the relay stops answering or restarts, `top` finds it again; the last snapshot stays on the screen.  The relay
gives a snapshot every 2 s, and spends at most a twentieth of the time on counts of the queue.
Does not: read the spool of a relay that is down, because the relay's next start needs the lock.
"""

import asyncio
import os
import signal
import sys
from asyncio import to_thread
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import ClassVar, NamedTuple

import click
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static

from relay.cli.options import Target, find_relay, printable, target_options
from relay.cli.output import relay_words, state_words, used_words, wrong_words
from relay.cli.queue import who_asks
from relay.clock import SystemClock
from relay.control.client import ControlClient
from relay.control.operations import OK, TABLE, UNCHANGED, WORDS, Unreachable, Verb
from relay.mail.formats import span
from relay.status.filters import EVERYTHING, By, Filters, GroupRow
from relay.status.snapshot import QueueState, Snapshot, UpstreamStatus
from relay.verdicts.account import PauseAsked

EVERY_SECONDS = 2.0
COUNT_NS = 10_000_000_000
OFTEN = 20
"""The next count comes after OFTEN times the duration of the last one, but not before COUNT_NS."""
MOST_SENDERS = 20
ENDS = (signal.SIGTERM, signal.SIGHUP)
_QUESTIONS = {
    "pause": "Pause upstream {}: transactions in flight finish, and mail waits until it is used again",
    "resume": "Use upstream {} again: one message first; refusals that its shield doubts are tried again",
}
"""For the verbs that act on an upstream; the others act on messages."""
_FILTERED_BY = {"upstream": "upstreams", "lane": "lanes", "sender": "senders"}
"""For each kind of row, the filter that finds its messages."""


@click.command()
@target_options
def top(target: Target) -> int:
    """Watch a running relay in a terminal: limits, lanes, upstreams, senders; and act by keys.

    The last line lists the keys.  While the relay is down, top says so and keeps looking.
    """
    # All three: Textual draws on stderr, which may be a terminal though stdin or stdout is redirected.
    is_terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    if not is_terminal or os.environ.get("TERM", "dumb") == "dumb":
        raise click.UsageError("`relay top` needs a full-screen terminal; use `relay status`")
    return asyncio.run(_watch(find_relay(target)[0]))


async def _watch(relay: ControlClient) -> int:
    app, loop = Top(relay), asyncio.get_running_loop()
    for number in ENDS:
        loop.add_signal_handler(number, partial(app.exit, return_code=128 + number))
    # Close the relay's client: a thread that still waits for an answer would keep the program from ending.
    with closing(relay):
        await app.run_async(mouse=False)
    # Textual returns 1 after a fault, and has printed the traceback; codes of signals are above 128.
    return os.EX_SOFTWARE if app.return_code == 1 else app.return_code or os.EX_OK


class Row(NamedTuple):
    kind: str
    name: str
    now: str


def _rows(snapshot: Snapshot, senders: list[GroupRow], now_ns: int) -> Iterator[Row]:
    for upstream in snapshot.upstreams:
        yield Row("upstream", upstream.name, _upstream(upstream, now_ns))
        for limit in upstream.limits:
            yield Row(
                "limit",
                f"{upstream.name} {limit.label}",
                f"{used_words(limit)}, {limit.opening_words(now_ns)}",
            )
    for lane in snapshot.lanes:
        waits = f"{lane.waiting_messages} waiting, oldest {span(lane.oldest_age_ns)}"
        yield Row("lane", lane.name, f"share {lane.share_percent:.4g} %; {waits}")
    for group in senders:
        if group.key:
            yield Row("sender", group.key, f"{group.messages} messages, {group.recipients} recipients")


def _upstream(upstream: UpstreamStatus, now_ns: int) -> str:
    waits = f"{upstream.waiting_messages} waiting, drained {upstream.drain_words(now_ns)}"
    return f"{state_words(upstream, now_ns)}; {upstream.in_flight} in flight; {waits}"


class Top(App[None]):
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen, DataTable, Footer, FooterKey, Static, DataTable > .datatable--header,
    FooterKey .footer-key--key, FooterKey .footer-key--description {
        background: ansi_default; color: ansi_default;
    }
    DataTable { height: 1fr; scrollbar-size: 0 0; }
    DataTable > .datatable--header { text-style: bold; }
    DataTable > .datatable--cursor, DataTable:focus > .datatable--cursor {
        background: ansi_default; color: ansi_default; text-style: reverse;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "act('pause')", "Pause"),
        Binding("u", "act('resume')", "Use again"),
        Binding("h", "act('hold')", "Hold"),
        Binding("r", "act('retry')", "Retry"),
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, relay: ControlClient) -> None:
        # Textual's default colours are then those of the terminal.
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self._relay, self._clock = relay, SystemClock()
        self._snapshot: Snapshot | None = None
        self._senders = list[GroupRow]()
        self._counts_at_ns = 0
        """Boottime from when the next count is due."""
        self._rows: list[Row] = []
        self._asked: Callable[[], str] | None = None
        """What `y` does; it returns the text of the result."""

    def compose(self) -> ComposeResult:
        yield Static(f"asking the relay on {self._relay.spool}", id="head", markup=False)
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
        trouble = []
        try:
            self._snapshot = await to_thread(self._relay.snapshot)
            began_ns = self._clock.boottime_ns()
            if began_ns >= self._counts_at_ns:
                self._senders = await to_thread(self._relay.summary, EVERYTHING, By.SENDER, MOST_SENDERS)
                now_ns = self._clock.boottime_ns()
                self._counts_at_ns = now_ns + max(COUNT_NS, OFTEN * (now_ns - began_ns))
        except (Unreachable, OSError) as error:
            trouble = [self._why(error)]
        if self.is_running and self.screen_stack:
            self._draw(trouble)

    def _why(self, error: Exception) -> str:
        try:
            is_up = self._relay.is_up()
        except OSError as denied:
            return f"the relay on {self._relay.spool} cannot be asked: {denied.strerror}"
        return str(error) if is_up else f"no relay runs on {self._relay.spool}; trying again"

    def _draw(self, lines: list[str]) -> None:
        """Show the lines and the last snapshot; the chosen row stays chosen."""
        if self._snapshot is not None:
            now_ns = self._snapshot.at_ns
            counts = [(self._snapshot.counts(state).messages, state.value) for state in QueueState]
            queued = ", ".join(f"{count} {state}" for count, state in counts if count) or "empty"
            lines += [relay_words(self._snapshot, now_ns), f"queue: {queued}", *wrong_words(self._snapshot)]
            chosen, table = self._chosen, self._table
            self._rows = list(_rows(self._snapshot, self._senders, now_ns))
            with self.batch_update():
                table.clear()
                for row in self._rows:
                    table.add_row(row.kind, Text(printable(row.name)), Text(printable(row.now)))
                    if chosen is not None and chosen[:2] == row[:2]:
                        table.move_cursor(row=table.row_count - 1)
        self._update("#head", "\n".join(map(printable, lines)))

    @property
    def _table(self) -> "DataTable[str | Text]":
        return self.screen_stack[0].query_one(DataTable)

    @property
    def _chosen(self) -> Row | None:
        at = self._table.cursor_row
        return self._rows[at] if at < len(self._rows) else None

    def _update(self, which: str, text: str) -> None:
        self.screen_stack[0].query_one(which, Static).update(Text(text))

    @work(exclusive=True, group="asking")
    async def action_act(self, verb: Verb) -> None:
        row, kinds = self._chosen, ["upstream"] if verb in _QUESTIONS else [*_FILTERED_BY]
        if row is None or row.kind not in kinds:
            self._update("#said", f"choose one of these first: {', '.join(kinds)}")
            return
        question, states = _QUESTIONS.get(verb, "").format(row.name), TABLE[verb].changes
        if verb == "pause":
            asked = PauseAsked(who_asks())
            self._asked = lambda: _result_text(verb, [(row.name, self._relay.pause(row.name, asked))])
        elif verb == "resume":
            self._asked = lambda: _result_text(verb, [(row.name, self._relay.resume(row.name))])
        else:
            filters = Filters(**{_FILTERED_BY[row.kind]: (row.name,)}, states=states)  # type: ignore[arg-type]  # names only
            try:
                listed = await to_thread(self._relay.queue, filters)
            except (Unreachable, OSError) as error:
                self._update("#said", printable(f"{verb}: {self._why(error)}"))
                return
            queue_ids = [each.queue_id for each in listed]
            what = f"{len(queue_ids)} messages of {row.kind} {row.name} ({' or '.join(states)} now)"
            question = f"{verb} {what}: {TABLE[verb].done}"
            # The relay leaves alone a message that is in another state by then.
            self._asked = lambda: _result_text(
                verb,
                [
                    (f"{count} messages", why)
                    for why, count in Counter(self._relay.act(verb, queue_ids, states).values()).items()
                ],
            )
        self._update("#said", printable(f"{question}?  y: do it   n, Esc: leave it"))

    @work(exclusive=True, group="asking")
    async def action_answer(self, is_yes: bool) -> None:  # noqa: FBT001 - a binding passes it
        do, self._asked = self._asked, None
        said = "nothing was done"
        try:
            if is_yes and do is not None:
                said = await to_thread(do)
        except (Unreachable, OSError) as error:
            said = f"the result is unknown: {self._why(error)}"
        self._update("#said", printable(said))
        await self._look()


def _result_text(verb: Verb, results: Iterable[tuple[str, str]]) -> str:
    row = TABLE[verb]
    said = {**WORDS, OK: row.done, UNCHANGED: row.already or "nothing to change"}
    return "; ".join(f"{what}: {said.get(why, why)}" for what, why in results)
