"""The terminal of `relay top`: asks the relay again and again, shows a table, and asks before a verb.

Guarantees: no colours, but bold and reverse; keys only, so that the mouse selects text as it does elsewhere.
A relay that stops answering or is restarted is found again; what was seen last stays.  Costs the relay a
snapshot each 2 s, and a count of the queue at most a twentieth of the time.
Does not: read the spool of a relay that is down, whose lock its next start needs.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from relay.cli.top.rows import MOST_LISTED, Kind, Row, Sums, head, rows
from relay.clock import Clock
from relay.control.client import ControlClient
from relay.control.operations import ABSENT, BUSY, OK, TABLE, UNCHANGED, Unreachable, Verb
from relay.policy.units import duration_ns
from relay.status.filters import EVERYTHING, By, Wanted
from relay.status.snapshot import Snapshot
from relay.verdicts.operator_pause import PauseAsked

EVERY_SECONDS = 2.0
COUNT_SECONDS = 10.0
OFTEN = 20
"""A count is made again after so many times as long as the last one took, and not before COUNT_SECONDS."""
_SAID = {ABSENT: "gone by now", BUSY: "in a transaction", UNCHANGED: "nothing to change"}


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
        Binding("slash", "find", "Find", key_display="/"),
        Binding("escape", "show_all", "Show all", key_display="Esc"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, spool: Path, clock: Clock, who: str) -> None:
        """`who` pauses."""
        # Its own default colours stay those of the terminal.
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self._spool, self._clock, self._who = spool, clock, who
        self._snapshot: Snapshot | None = None
        self._seen_ns = self._counts_at_ns = 0
        """Boottime."""
        self._sums = Sums()
        self._trouble = f"asking the relay on {spool}"
        self._find = ""
        self._rows: dict[str, Row] = {}

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield DataTable(cursor_type="row")
        yield Static(id="said", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        table = self._table
        for name in ("what", "name", "now"):
            table.add_column(name, key=name)
        table.focus()
        self._keep_looking()

    @work
    async def _keep_looking(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(EVERY_SECONDS)

    async def _look(self) -> None:
        try:
            async with self._asking() as relay:
                self._snapshot, self._trouble = await relay.snapshot(), ""
                self._seen_ns = began_ns = self._clock.boottime_ns()
                if began_ns >= self._counts_at_ns:
                    senders = await relay.summary(EVERYTHING, By.SENDER, MOST_LISTED)
                    self._sums = Sums(senders, await relay.summary(EVERYTHING, By.REASON, MOST_LISTED))
                    now_ns = self._clock.boottime_ns()
                    wait_ns = max(int(COUNT_SECONDS * 1e9), OFTEN * (now_ns - began_ns))
                    self._counts_at_ns = now_ns + wait_ns
        except (Unreachable, OSError) as error:
            self._trouble = await self._why(error)
        self._draw()

    @contextlib.asynccontextmanager
    async def _asking(self) -> AsyncIterator[ControlClient]:
        client = ControlClient(self._spool)
        try:
            yield client
        finally:
            await client.close()

    async def _why(self, error: Exception) -> str:
        """Return why the relay did not answer."""
        try:
            is_up = await asyncio.to_thread(ControlClient(self._spool).is_up)
        except OSError as denied:
            return f"the relay on {self._spool} cannot be asked: {denied.strerror}"
        return str(error) if is_up else f"no relay runs on {self._spool}; looking again and again"

    def _draw(self) -> None:
        """Show what is known now; a row that was chosen stays so."""
        if not self.is_running or not self.screen_stack:
            return
        lines = [self._trouble] if self._trouble else []
        if self._snapshot is not None:
            now_ns = self._snapshot.at_ns + self._clock.boottime_ns() - self._seen_ns
            lines += head(self._snapshot, now_ns)
            self._show(rows(self._snapshot, self._sums, now_ns, self._find))
        self.screen_stack[0].query_one("#head", Static).update(Text("\n".join(lines)))

    def _show(self, made: list[Row]) -> None:
        table, chosen = self._table, self._chosen
        now = {row.key: row for row in made}
        if list(now) == list(self._rows):
            for key, row in now.items():
                if row != self._rows[key]:
                    table.update_cell(key, "now", Text(row.said), update_width=True)
            self._rows = now
            return
        self._rows = now
        table.clear()
        for key, row in now.items():
            table.add_row(row.kind.value, Text(row.shown), Text(row.said), key=key)
        if chosen is not None and chosen.key in now:
            table.move_cursor(row=list(now).index(chosen.key))

    @property
    def _table(self) -> "DataTable[str | Text]":
        return self.screen_stack[0].query_one(DataTable)

    @property
    def _chosen(self) -> Row | None:
        made = list(self._rows.values())
        return made[self._table.cursor_row] if self._table.cursor_row < len(made) else None

    def _say(self, text: str) -> None:
        self.screen_stack[0].query_one("#said", Static).update(Text(text))

    def action_show_all(self) -> None:
        self._find = ""
        self._draw()

    @work(exclusive=True, group="asking")
    async def action_find(self) -> None:
        found = await self.push_screen_wait(Question("Show only rows with this text.", "a part of a row"))
        self._find = found or ""
        self._draw()

    @work(exclusive=True, group="asking")
    async def action_act(self, verb: Verb) -> None:
        states, row = TABLE[verb].changes, self._chosen
        filters = None if row is None else row.filters(states)
        if row is None or filters is None:
            self._say("choose an upstream, a lane or a sender first")
            return
        try:
            async with self._asking() as relay:
                queue_ids = [each.queue_id for each in await relay.queue(Wanted(filters))]
                what = f"{len(queue_ids)} messages of {row.kind.value} {row.shown}"
                text = f"{verb} {what} ({' or '.join(states)} now): {TABLE[verb].done}"
                if await self._consents(text):
                    # What is in another state by then is left alone.
                    results = Counter((await relay.act(verb, queue_ids, states)).values())
                    done = [f"{results.pop(OK, 0)} messages: {TABLE[verb].done}"]
                    self._say("; ".join(done + [f"{n}: {_SAID.get(why, why)}" for why, n in results.items()]))
        except (Unreachable, OSError) as error:
            self._say(f"{verb}: not all was answered: {await self._why(error)}")
        await self._look()

    @work(exclusive=True, group="asking")
    async def action_pause(self) -> None:
        if (name := self._upstream()) is None:
            return
        prompt = "for how long: 30m, 2h; empty: until it is used again"
        waits = "what is in flight finishes, nothing new begins, and mail waits"
        length = await self.push_screen_wait(Question(f"Pause upstream {name}: {waits}.", prompt, _length_ns))
        if length is None:
            self._say("nothing was done")
            return
        await self._tell(
            name, "pause", lambda relay: relay.pause(name, PauseAsked(self._who, _length_ns(length)))
        )

    @work(exclusive=True, group="asking")
    async def action_resume(self) -> None:
        name = self._upstream()
        again = "one message first; senders that it refused, and what its shield doubts, are tried again"
        if name is not None and await self._consents(f"Use upstream {name} again: {again}."):
            await self._tell(name, "resume", lambda relay: relay.resume(name))

    async def _tell(
        self, name: str, verb: Verb, ask: Callable[[ControlClient], Coroutine[None, None, str]]
    ) -> None:
        try:
            async with self._asking() as relay:
                result = await ask(relay)
        except (Unreachable, OSError) as error:
            result = await self._why(error)
        said = {OK: TABLE[verb].done, UNCHANGED: TABLE[verb].already, ABSENT: "there is no such upstream"}
        self._say(f"{name}: {said.get(result, result)}")
        await self._look()

    async def _consents(self, text: str) -> bool:
        consents = await self.push_screen_wait(Question(text)) is not None
        if not consents:
            self._say("nothing was done")
        return consents

    def _upstream(self) -> str | None:
        """Return the upstream that is chosen, or say that none is."""
        row = self._chosen
        if row is None or row.kind is not Kind.UPSTREAM:
            self._say("choose an upstream first")
            return None
        return row.name


def _length_ns(text: str) -> int | None:
    """Raise ValueError for what is no time; nothing is no end."""
    return duration_ns(text.strip()) if text.strip() else None
