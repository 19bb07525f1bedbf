"""The terminal of `relay top`: draws the rows, moves the cursor, and asks before a verb.

Guarantees: the terminal's own sixteen colours, none with NO_COLOR; keys only, so that the mouse selects
text as it does elsewhere.  A fault ends it with the terminal as it was.  Does not: decide what a row says
(`relay.cli.top.picture`) or what a verb does (`relay.cli.top.acting`).
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input, Static

from relay.cli.top.acting import carried_out, planned, takes_verbs
from relay.cli.top.looking import Looking
from relay.cli.top.picture import Columns, PictureRow, RowKind, Target, head, rows
from relay.control.operations import ABSENT, OK, TABLE, UNCHANGED, Unreachable, Verb
from relay.policy.units import duration_ns
from relay.verdicts.operator_pause import PauseAsked

EVERY_SECONDS = 2.0
"""Between two looks, as the status page has it."""
DRAWN_SECONDS = 1.0
"""Countdowns go on between two looks."""
KEYS = "p pause  u use again  h hold  r retry  / find  ? help  q quit"
HELP = """\
up, down, page up, page down, home, end (or j, k)
       choose an upstream, a lane, a reason or a sender

p      pause the upstream, for a time or until it is used again: what is in
       flight finishes, nothing new begins, mail waits (relay pause)
u      use the upstream again, one message first (relay resume)
h      hold the messages of the row until they are released (relay queue hold)
r      retry the deferred messages of the row now; limits and pauses still
       hold (relay queue retry)
/      show only rows with a text in their name; Esc shows all again
Esc    stop a hold or a retry that is under way
q      quit; the relay goes on as it is

Before anything is done, it says what would be done and asks.  Counts of
reasons and senders, like everything here, are of the relay that runs.

Any key closes this."""
NO_ROW = "choose an upstream, a lane or a sender first"


class RowList(ScrollView, can_focus=True, inherit_bindings=False):
    """Rows of which one that has a target is chosen; it stays chosen where it moves."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "app.move(1)", show=False),
        Binding("up,k", "app.move(-1)", show=False),
        Binding("pagedown,space", "app.move_page(1)", show=False),
        Binding("pageup", "app.move_page(-1)", show=False),
        Binding("home", "app.move(-1000000)", show=False),
        Binding("end", "app.move(1000000)", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[PictureRow] = []
        self._at = 0

    @property
    def chosen(self) -> PictureRow | None:
        row = self._rows[self._at] if self._at < len(self._rows) else None
        return row if row is not None and row.target is not None else None

    @property
    def place(self) -> str:
        return f"{self._at + 1}/{len(self._rows)}" if self._rows else ""

    def show(self, made: list[PictureRow]) -> None:
        before, at = self.chosen, self._at
        self._rows = made
        self.virtual_size = Size(self.size.width, len(made))
        if before is not None:
            same = (number for number, row in enumerate(made) if row.target == before.target)
            at = next(same, at)
        at = self._nearest(at)
        # Who scrolled away from the chosen row is not taken back to it by each picture.
        if at != self._at:
            self._choose(at)
        self.refresh()

    def move(self, by: int) -> None:
        """Choose the row so many chosen ones further, as far as there are any."""
        can_be = self._can_be_chosen()
        after = [number for number in can_be if number > self._at]
        before = [number for number in can_be if number < self._at]
        if by > 0 and after:
            self._choose(after[min(by, len(after)) - 1])
        elif by < 0 and before:
            self._choose(before[max(by, -len(before))])
        else:
            # Nothing to choose in that direction; what cannot be chosen is still to be seen.
            self.scroll_relative(y=by, animate=False)

    def _choose(self, number: int) -> None:
        self._at = self._nearest(number)
        top, height = round(self.scroll_offset.y), max(1, self.size.height)
        if self._at < top:
            # With the heading above the first one.
            is_first = self._at == self._nearest(0)
            self.scroll_to(y=0 if is_first else self._at, animate=False)
        elif self._at >= top + height:
            self.scroll_to(y=self._at - height + 1, animate=False)
        self.refresh()

    def _nearest(self, number: int) -> int:
        can_be = self._can_be_chosen()
        return min(can_be, key=lambda each: abs(each - number)) if can_be else 0

    def _can_be_chosen(self) -> list[int]:
        return [number for number, row in enumerate(self._rows) if row.target is not None]

    def render_line(self, y: int) -> Strip:
        number = y + round(self.scroll_offset.y)
        width = self.size.width
        if number >= len(self._rows):
            return Strip.blank(width)
        row = self._rows[number]
        is_chosen = number == self._at and row.target is not None
        text = row.text
        if is_chosen:
            # A sign beside the colours: some terminals have none.
            text = Text(">") + text[1:]
        strip = Strip(text.render(self.app.console)).crop_extend(0, width, None)
        return strip.apply_style(Style(reverse=True)) if is_chosen else strip


class Question(ModalScreen[str | None]):
    """Says what would be done; `y`, or with `prompt` a text and Enter, is the consent."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "no", "No"),
        Binding("y", "yes", "Yes"),
    ]

    def __init__(self, text: str, prompt: str = "", check: Callable[[str], object] = str) -> None:
        """`check` raises ValueError for a text that will not do."""
        super().__init__()
        self._text = text
        self._prompt = prompt
        self._check = check

    def compose(self) -> ComposeResult:
        keys = "Enter: do it   Esc: leave it" if self._prompt else "y: do it   n, Esc: leave it"
        with Vertical():
            yield Static(Text(self._text), markup=False)
            if self._prompt:
                yield Input(placeholder=self._prompt, compact=True)
            yield Static("", id="wrong", markup=False)
            yield Static(Text(keys, "bold"), markup=False)

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


class Help(ModalScreen[None]):
    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text(HELP), markup=False)

    def on_key(self) -> None:
        self.dismiss()


class Top(App[None]):
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { overflow: hidden; }
    RowList { height: 1fr; min-height: 2; scrollbar-size: 0 0; }
    #head { height: auto; max-height: 40%; text-wrap: nowrap; }
    #chosen, #said { height: auto; max-height: 20%; }
    #keys { height: 1; }
    Question, Help { align: center middle; }
    Question > Vertical, Help > Vertical {
        width: 100%; max-width: 78; height: auto; max-height: 100%; border: ascii ansi_default; padding: 0 1;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("p", "pause", "Pause"),
        Binding("u", "resume", "Use again"),
        Binding("h", "act('hold')", "Hold"),
        Binding("r", "act('retry')", "Retry"),
        Binding("slash", "find", "Find"),
        Binding("escape", "escape", show=False),
        Binding("question_mark", "help", "Help"),
    ]

    def __init__(
        self, looking: Looking, who: str, *, is_utf8: bool = True, every_seconds: float = EVERY_SECONDS
    ) -> None:
        """`who` pauses."""
        # Said before the theme: NO_COLOR otherwise turns colours to shades of grey, which are colours too.
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self._looking = looking
        self._who = who
        self._is_utf8 = is_utf8
        self._every_seconds = every_seconds
        self._find = ""
        self._said = ""
        self._is_busy = self._is_stopped = False

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield RowList()
        yield Static(id="chosen", markup=False)
        yield Static(id="said", markup=False)
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        self.query_one(RowList).focus()
        self.run_worker(self._keep_looking())
        self.set_interval(DRAWN_SECONDS, self.draw)

    async def on_unmount(self) -> None:
        await self._looking.close()

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    async def _keep_looking(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(self._every_seconds)

    @property
    def layout_of_rows(self) -> Columns:
        return Columns(self.size.width, self._is_utf8)

    def draw(self) -> None:
        """Show what is known now."""
        if not self.is_running or not (lists := self.screen_stack[0].query(RowList)):
            return
        listed, screen, layout = lists.first(), self.screen_stack[0], self.layout_of_rows
        seen = self._looking.seen()
        listed.show(rows(seen, layout, self._find))
        screen.query_one("#head", Static).update(Text("\n").join(head(seen, layout)))
        self._draw_below(listed, layout)

    def _draw_below(self, listed: RowList, layout: Columns) -> None:
        screen = self.screen_stack[0]
        chosen = listed.chosen
        find = f"only rows with {layout.plain(self._find)!r} (Esc: all)  " if self._find else ""
        screen.query_one("#chosen", Static).update(Text("" if chosen is None else chosen.whole, "cyan"))
        said = screen.query_one("#said", Static)
        said.update(Text(layout.plain(self._said), "bold"))
        said.display = bool(self._said)
        keys = layout.fitted(f"{find}{KEYS}  {listed.place}", layout.width)
        screen.query_one("#keys", Static).update(Text(keys, "reverse"))

    def action_move(self, by: int) -> None:
        listed = self.query_one(RowList)
        listed.move(by)
        self._said = ""
        self._draw_below(listed, self.layout_of_rows)

    def action_move_page(self, by: int) -> None:
        self.action_move(by * max(1, self.query_one(RowList).size.height - 1))

    def action_help(self) -> None:
        self.push_screen(Help())

    def action_escape(self) -> None:
        self._is_stopped, self._find = True, ""
        self.draw()

    def action_find(self) -> None:
        self._start(self._ask_what_to_find())

    async def _ask_what_to_find(self) -> None:
        found = await self.push_screen_wait(Question("Show only rows with this text.", "a part of a name"))
        self._find = self._find if found is None else found
        self.draw()

    def action_act(self, verb: Verb) -> None:
        target = self._target()
        if target is None or not takes_verbs(target):
            self._say(NO_ROW if target is None else f"{NO_ROW}: no verb goes by a reason")
        else:
            self._start(self._act(verb, target))

    async def _act(self, verb: Verb, target: Target) -> None:
        through = 0

        async def on_progress(count: int) -> bool:
            nonlocal through
            through = count
            self._say(f"{verb}: {count} of {len(plan.queue_ids)} messages; Esc stops")
            # A key that waits is handled before the next messages are.
            await asyncio.sleep(0)
            return not self._is_stopped

        self._is_stopped = False
        self._say(f"looking what {verb} would do ...")
        try:
            async with self._looking.connected() as relay:
                plan = await planned(relay, verb, target)
                if not plan.queue_ids:
                    self._say(plan.words())
                elif await self._consents(plan.words()):
                    self._say(await carried_out(relay, plan, on_progress))
        except (Unreachable, OSError) as error:
            so_far = f"{through} messages were answered for" if through else "nothing was answered"
            self._say(f"{verb}: {so_far}: {await self._looking.why(error)}")
        await self._look()

    def action_pause(self) -> None:
        if (name := self._upstream()) is not None:
            self._start(self._pause(name))

    async def _pause(self, name: str) -> None:
        waits = "what is in flight finishes, nothing new begins, and mail waits"
        text = f"Pause upstream {self._plain(name)}: {waits}."
        prompt = "for how long: 30m, 2h; empty: until it is used again"
        length = await self._asked(text, prompt, _length_ns)
        if length is None:
            return
        asked = PauseAsked(self._who, _length_ns(length))
        try:
            async with self._looking.connected() as relay:
                result = await relay.pause(name, asked)
        except (Unreachable, OSError) as error:
            result = await self._looking.why(error)
        self._say(_answer(name, "pause", result))
        await self._look()

    def action_resume(self) -> None:
        if (name := self._upstream()) is not None:
            self._start(self._resume(name))

    async def _resume(self, name: str) -> None:
        again = "one message first; senders that it refused, and what its shield doubts, are tried again"
        if not await self._consents(f"Use upstream {name} again: {again}."):
            return
        try:
            async with self._looking.connected() as relay:
                result = await relay.resume(name)
        except (Unreachable, OSError) as error:
            result = await self._looking.why(error)
        self._say(_answer(name, "resume", result))
        await self._look()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Let one thing at a time ask and act."""
        if self._is_busy:
            work.close()
            self._say("one thing at a time: Esc stops it")
            return
        self._is_busy = True
        self.run_worker(self._finish(work))

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._is_busy = False

    async def _look(self) -> None:
        await self._looking.look()
        self.draw()
        # One after the other: the relay has few places for askers.
        await self._looking.count()
        self.draw()

    async def _consents(self, text: str) -> bool:
        return await self._asked(text) is not None

    async def _asked(self, text: str, prompt: str = "", check: Callable[[str], object] = str) -> str | None:
        answer = await self.push_screen_wait(Question(self._plain(text), prompt, check))
        if answer is None:
            self._say("nothing was done")
        return answer

    def _target(self) -> Target | None:
        row = self.query_one(RowList).chosen
        return None if row is None else row.target

    def _upstream(self) -> str | None:
        """Return the upstream that is chosen, or say that none is."""
        target = self._target()
        if target is None or target.kind is not RowKind.UPSTREAM:
            self._say("choose an upstream first")
            return None
        return target.name

    def _plain(self, text: str) -> str:
        return self.layout_of_rows.plain(text)

    def _say(self, text: str) -> None:
        self._said = text
        self.draw()


def _length_ns(text: str) -> int | None:
    """Raise ValueError for what is no time; nothing is no end."""
    return duration_ns(text.strip()) if text.strip() else None


def _answer(name: str, verb: Verb, result: str) -> str:
    row = TABLE[verb]
    said = {OK: row.done, UNCHANGED: row.already, ABSENT: "there is no such upstream"}
    return f"{name}: {said.get(result, result)}"
