"""`make bench`: runs the rounds and prints two tables, then one JSON object."""

import argparse
import json
import sys
from contextlib import ExitStack, nullcontext
from typing import Any

from rich.console import Console
from rich.table import Table

from relay.spool.engines import ENGINES
from tests.bench import cost, decisions, disk
from tests.bench.contenders import floor_contender, postfix_contender, relay_contender
from tests.bench.measure import Load, Round, as_json, run_round, summarise
from tests.system import floods, postfix, smtp_tools


def main() -> int:
    """Run the rounds that the command line asks for.  Returns 75 where Postfix is needed and missing."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--messages", type=int, default=3000, help="in each round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="for each load (default: %(default)s)")
    parser.add_argument("--sessions", type=int, default=20, help="at once (default: %(default)s)")
    parser.add_argument("--size", type=int, default=4096, help="octets of content (default: %(default)s)")
    parser.add_argument(
        "--engines",
        nargs="+",
        choices=ENGINES,
        default=list(ENGINES),
        help="of the relay's spool (default: all)",
    )
    parser.add_argument(
        "--processes",
        type=int,
        nargs="+",
        default=[1, 0],
        help="listener processes of the relay (default: 1 and 0)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--here", action="store_true", help="store in the folder for temporary files, not on a fresh ext4"
    )
    where.add_argument(
        "--sync-ms", type=float, default=0.0, help="a disk whose flush takes so much longer (default: none)"
    )
    parser.add_argument(
        "--only",
        choices=["mail", "decisions", "floods", "cost"],
        help="one of the comparisons; floods and cost: only then",
    )
    options = parser.parse_args()
    result: dict[str, Any] = {}
    if options.only == "floods":
        result["floods"] = floods.rows()
        _print_table("how long a client waits while strangers flood, medians", result["floods"])
        sys.stdout.write(json.dumps(result) + "\n")
        return 0
    if options.only == "cost":
        return _count_cost(options)
    reason = None if options.here or options.only == "decisions" else disk.why_missing()
    if reason is not None:
        sys.stderr.write(f"make bench: no ext4 of its own: {reason}; storing where temporary files go\n")
    is_here = options.here or options.only == "decisions" or reason is not None
    with nullcontext() if is_here else disk.stored_on_ext4(options.sync_ms / 1000):
        return _compare(options, result)


def _count_cost(options: argparse.Namespace) -> int:
    """Measure processor time, which a disk changes little, wherever temporary files go."""
    if reason := smtp_tools.why_missing():
        sys.stderr.write(f"make bench: {reason}\n")
        return 75
    load = Load(options.messages, options.sessions, options.size, keep_connection=True)
    result = {"cost": cost.rows(load, options.rounds, max(options.processes), options.engines)}
    _print_table("processor time a message, medians", result["cost"])
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def _compare(options: argparse.Namespace, result: dict[str, Any]) -> int:
    """Run what was asked for and print it, adding it to the result."""
    if options.only != "mail":
        rows = decisions.summarise(decisions.measure(options.rounds, sys.stderr.write))
        _print_table("decisions per second, median", rows)
        result["decisions"] = rows
    if options.only == "decisions":
        sys.stdout.write(json.dumps(result) + "\n")
        return 0
    if reason := postfix.why_missing() or smtp_tools.why_missing():
        sys.stderr.write(f"make bench: {reason}\n")
        return 75
    result["appends_per_second"] = round(disk.appends_per_second())
    sys.stdout.write(
        f"the disk alone: {result['appends_per_second']:,} appends of 4 KiB a second, 20 in one fdatasync\n"
    )
    rounds = _run(options)
    _print_table("messages per second, median; ratio to Postfix", summarise(rounds))
    sys.stdout.write(json.dumps(result | as_json(rounds)) + "\n")
    return 0


def _run(options: argparse.Namespace) -> list[Round]:
    loads = [Load(options.messages, options.sessions, options.size, keep) for keep in (False, True)]
    warm_up = Load(min(200, options.messages), options.sessions, options.size, keep_connection=True)
    rounds: list[Round] = []
    with ExitStack() as running:
        contenders = [running.enter_context(postfix_contender())]
        contenders += [
            running.enter_context(relay_contender(processes, engine))
            for engine in options.engines
            for processes in options.processes
        ]
        contenders.append(running.enter_context(floor_contender()))
        for contender in contenders:
            run_round(contender, warm_up)
        for load in loads:
            for _ in range(options.rounds):
                for contender in contenders:
                    rounds.append(run_round(contender, load))
                    sys.stderr.write(f"{rounds[-1]}\n")
    return rounds


def _print_table(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title)
    for column, value in rows[0].items():
        table.add_column(column.replace("_", " "), justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
