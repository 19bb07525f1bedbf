"""`make bench`: runs what is asked for and prints tables."""

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any, get_args

from rich.console import Console
from rich.table import Table

from relay.policy.model import SpoolEngine
from relay.spool.engines import ENGINES
from tests.bench import cleaning, decisions, disk, hosts, restart
from tests.bench.mail import Load, Round, aged, postfix_contender, relay_contender, run_round, summarise
from tests.system import postfix, smtp_tools

Rows = list[dict[str, Any]]


def main() -> int:
    options = _options()
    modes = [options.only] if options.only else ["decisions", "mail"]
    is_here = options.here or _STORING.isdisjoint(modes)
    if not is_here and (reason := disk.why_missing()):
        sys.stderr.write(f"make bench: no ext4 of its own: {reason}; storing where temporary files go\n")
        is_here = True
    with nullcontext() if is_here else disk.stored_on_ext4():
        for mode in modes:
            title, measure = _MODES[mode]
            if mode in _SMTP and (missing := smtp_tools.why_missing()):
                sys.stderr.write(f"make bench: {missing}\n")
                return 75
            _print_table(title, measure(options))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--messages", type=int, default=3000, help="in each round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="for each load (default: %(default)s)")
    parser.add_argument("--sessions", type=int, default=20, help="at once (default: %(default)s)")
    parser.add_argument("--size", type=int, default=4096, help="octets of content (default: %(default)s)")
    parser.add_argument(
        "--engines",
        nargs="+",
        choices=get_args(SpoolEngine),
        default=[str(name) for name in ENGINES],
        help="of the relay's spool (default: those on a disk; postgresql: by mail and age)",
    )
    parser.add_argument(
        "--processes",
        type=int,
        nargs="+",
        default=[1, 0],
        help="listener processes of the relay (default: 1 and 0)",
    )
    parser.add_argument(
        "--here", action="store_true", help="store in the folder for temporary files, not on a fresh ext4"
    )
    parser.add_argument(
        "--only", choices=_MODES, help="one of the comparisons; all but decisions and mail: only then"
    )
    return parser.parse_args()


def _mail(options: argparse.Namespace) -> Rows:
    return summarise(_run(options, [_load(options, keep_connection=keep) for keep in (False, True)]))


def _age(options: argparse.Namespace) -> Rows:
    return aged(_run(options, [_load(options)]))


def _load(options: argparse.Namespace, *, keep_connection: bool = True) -> Load:
    return Load(options.messages, options.sessions, options.size, keep_connection)


def _run(options: argparse.Namespace, loads: Sequence[Load]) -> list[Round]:
    wanted = [] if postfix.why_missing() else [postfix_contender()]
    many = itertools.product(options.engines, options.processes)
    wanted += [relay_contender(processes, engine) for engine, processes in many]
    warm_up = replace(_load(options), messages=min(200, options.messages))
    rounds: list[Round] = []
    with ExitStack() as running:
        contenders = [running.enter_context(each) for each in wanted]
        for contender in contenders:
            run_round(contender, warm_up)
        for load, _, contender in itertools.product(loads, range(options.rounds), contenders):
            rounds.append(run_round(contender, load))
            sys.stderr.write(f"{rounds[-1]}\n")
    return rounds


def _print_table(title: str, rows: Rows) -> None:
    table = Table(title=title)
    for column, value in rows[0].items():
        table.add_column(column.replace("_", " "), justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    Console().print(table)


_MODES: dict[str, tuple[str, Callable[[argparse.Namespace], Rows]]] = {
    "decisions": ("decisions per second, median", lambda asked: decisions.rows(asked.rounds)),
    "mail": ("messages per second, ratio to the first, processor time a message; medians", _mail),
    "hosts": ("decisions of hosts on one PostgreSQL", lambda asked: hosts.rows(asked.rounds)),
    "age": ("messages per second through one spool: the first round, the last, and their ratio", _age),
    "restart": ("a start with a long queue", lambda asked: restart.rows(asked.messages, asked.engines)),
    "cleaning": (
        "settling 20 at once while a tenth is held for ever",
        lambda asked: cleaning.rows(asked.messages, asked.size, asked.engines),
    ),
}
_SMTP = {"mail", "age"}
"""These need smtp-source and smtp-sink."""
_STORING = {"mail", "age", "hosts", "restart", "cleaning"}
"""These depend on the disk."""

if __name__ == "__main__":
    sys.exit(main())
