"""`relay status --watch`: what `relay status` shows, again and again, until it is interrupted.

On a terminal each picture takes the place of the last one, cut to what fits; the last one stays there at the
end, and nothing has to be put back.  In a pipe each follows the last.  While the relay is down it says so
and goes on looking: the spool is not read, since the relay's next start needs its lock.
"""

import asyncio
import contextlib
import json
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from relay.cli.options import printable
from relay.cli.render import console, show_status
from relay.cli.top.looking import Looking
from relay.cli.top.picture import TopView
from relay.clock import SystemClock
from relay.status.snapshot import to_json

_CLEAR, _HOME, _TO_LINE_END, _BELOW = "\x1b[2J", "\x1b[H", "\x1b[K", "\x1b[J"


def watch_status(spool: Path, every_seconds: int, *, as_json: bool) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_watch(Looking(spool, SystemClock()), every_seconds, as_json=as_json))


async def _watch(looking: Looking, every_seconds: int, *, as_json: bool) -> None:
    out = console()
    is_redrawn = out.is_terminal and not out.is_dumb_terminal and not as_json
    if is_redrawn:
        click.echo(_CLEAR, nl=False)
    try:
        while True:
            await looking.look()
            seen = looking.seen()
            if is_redrawn:
                click.echo(redrawn(seen, out), nl=False)
            elif as_json:
                _print_json(seen)
            else:
                _show(seen, out)
                out.print()
            await asyncio.sleep(every_seconds)
    finally:
        await looking.close()


def redrawn(seen: TopView, out: Console) -> str:
    """Return what a terminal of this size takes for a picture in the place of the last one."""
    with out.capture() as captured:
        _show(seen, out)
    lines = captured.get().splitlines()
    room = max(1, out.height - 1)
    if len(lines) > room:
        lines[room - 1 :] = [f"... {len(lines) - room + 1} more lines: a taller terminal shows them"]
    return _HOME + "".join(f"{line}{_TO_LINE_END}\n" for line in lines) + _BELOW


def _show(seen: TopView, out: Console) -> None:
    if seen.trouble:
        out.print(Text(f"{printable(seen.trouble)}; looking again and again", style="bold red"))
    # In a pipe nobody is told again what was so before.
    if seen.snapshot is not None and (out.is_terminal or not seen.trouble):
        show_status(seen.snapshot, out)


def _print_json(seen: TopView) -> None:
    if seen.trouble or seen.snapshot is None:
        click.echo(printable(seen.trouble), err=True)
    else:
        click.echo(json.dumps(to_json(seen.snapshot)))
