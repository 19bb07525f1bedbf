"""The demo while it runs: a live picture on a terminal, a line a second anywhere else.

Nothing here decides anything.  Fits into 80 columns; without UTF-8 the bars are ASCII.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from relay.cli.demo.plan import Plan, shown_seconds
from relay.clock import SECOND_NS
from relay.status.snapshot import LimitStatus, QueueState, Snapshot

BAR_CELLS = 24
PACE_CELLS = 64
"""How many columns of the pace are shown, the newest."""
_SHOWN_STATES = (QueueState.WAITING, QueueState.ACTIVE, QueueState.DEFERRED)
_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Frame:
    """What there is to see at one instant."""

    elapsed_ns: int
    snapshot: Snapshot | None
    """The relay as it sees itself; None before it first told."""
    relayed: int
    """This and all below by the upstream's own ledger."""
    refused: int
    most: int
    pace: Sequence[int]
    """How many the upstream counted in each fifth of a window."""

    def queued(self, state: QueueState) -> int:
        """Return how many messages of the queue are in a state."""
        return 0 if self.snapshot is None else self.snapshot.counts(state).messages

    @property
    def queued_at_all(self) -> int | None:
        """Return how many messages are in the queue in any state; None before the relay told."""
        return None if self.snapshot is None else sum(self.queued(state) for state in QueueState)

    @property
    def window(self) -> LimitStatus | None:
        """Return the limit as the relay keeps to it."""
        if self.snapshot is None:
            return None
        return next((limit for upstream in self.snapshot.upstreams for limit in upstream.limits), None)


class Picture:
    """Shows frames, while the context that `shown` returns lasts."""

    def __init__(self, plan: Plan, out: Console) -> None:
        self._plan = plan
        self._has_blocks = out.encoding.lower().startswith("utf")
        can_move = out.is_terminal and not out.is_dumb_terminal
        self._live = Live(console=out, auto_refresh=False) if can_move else None
        self._next_line_ns = 0

    def shown(self) -> AbstractContextManager[object]:
        """Return the context in which frames can be shown; in it, the terminal is the picture's."""
        return self._live or nullcontext()

    def show(self, frame: Frame, *, is_last: bool = False) -> None:
        """Show what there is to see now."""
        if self._live is not None:
            self._live.update(Group(*self._rows(frame)), refresh=True)
        elif frame.elapsed_ns >= self._next_line_ns or is_last:
            self._next_line_ns = (frame.elapsed_ns // SECOND_NS + 1) * SECOND_NS
            click.echo(self._line(frame))

    def _line(self, frame: Frame) -> str:
        window, limit = frame.window, self._plan.limit
        waiting, active, deferred = (frame.queued(state) for state in _SHOWN_STATES)
        return (
            f"{shown_seconds(frame.elapsed_ns):>6}  window {window.used if window else 0:>2}/{limit.count}"
            f"  waiting {waiting:>2}  active {active:>2}  deferred {deferred:>2}"
            f"  relayed {frame.relayed:>2}/{self._plan.messages}"
        )

    def _rows(self, frame: Frame) -> list[Text]:
        plan, window = self._plan, frame.window
        waiting, active, deferred = (frame.queued(state) for state in _SHOWN_STATES)
        count = plan.limit.count
        rows = [
            ("window", self._bar(window.used if window else 0, count, "yellow"), self._slots(frame)),
            (
                "queue",
                self._bar(frame.queued_at_all or 0, plan.messages, "cyan"),
                f"{waiting} waiting, {active} active, {deferred} deferred",
            ),
            (
                "relayed",
                self._bar(frame.relayed, plan.messages, "green"),
                f"{frame.relayed} of {plan.messages}",
            ),
            (
                "upstream",
                self._bar(frame.most, count, "red" if frame.refused else "magenta"),
                f"most in any {plan.per}: {frame.most} of {count}, {frame.refused} refused",
            ),
            ("pace", self._pace(frame.pace), ""),
            (
                "time",
                Text(shown_seconds(frame.elapsed_ns)),
                f"(ideal from first to last: {shown_seconds(plan.ideal_ns)})",
            ),
        ]
        return [Text.assemble(f"  {name:<9} ", bar, "  ", words) for name, bar, words in rows]

    def _slots(self, frame: Frame) -> str:
        window = frame.window
        if window is None or frame.snapshot is None:
            return "starting"
        if window.opens_at_ns is None:
            return f"{window.used} of {window.count} slots taken"
        opens_in_ns = max(0, window.opens_at_ns - frame.snapshot.at_ns)
        return f"all taken, next opens in {shown_seconds(opens_in_ns)}"

    def _bar(self, count: int, most: int, style: str) -> Text:
        full, empty = ("█", "░") if self._has_blocks else ("#", "-")
        cells = min(BAR_CELLS, -(-count * BAR_CELLS // most))
        return Text.assemble((full * cells, style), (empty * (BAR_CELLS - cells), "dim"))

    def _pace(self, pace: Sequence[int]) -> Text:
        """Return a column for each fifth of a window: how full it was, of a whole window's limit."""
        if not self._has_blocks:
            return Text("".join("#" if count else "." for count in pace[-PACE_CELLS:]), "magenta")
        levels = [min(len(_BLOCKS), -(-count * len(_BLOCKS) // self._plan.limit.count)) for count in pace]
        return Text(
            "".join(_BLOCKS[level - 1] if level else "·" for level in levels[-PACE_CELLS:]), "magenta"
        )
