"""The spool and the histories as files: `relay audit`, `relay fsck` and `relay spool convert`.

`audit` counts anew the most that a window of each limit can have held; it reads only.  `fsck` owns the queue
while it reads, so no relay may run; while one runs, `fsck` reads only the histories.  Like a start, `fsck`
sets damaged messages aside.  `spool convert` converts the spool from one engine to another; no relay may run.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import click

from relay.cli.options import Failed, Target, found_policy, json_option, printable, say, target_options
from relay.clock import SystemClock
from relay.control.client import ControlClient
from relay.control.offline import refuse_strangers
from relay.mail.formats import rfc3339_or_none
from relay.policy.model import Policy, SpoolEngine
from relay.spool.convert import convert as convert_spool
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import engine_of, engines_of, open_spool
from relay.spool.interface import Corrupt, Spool, SpoolBusy
from relay.status.snapshot import to_json
from relay.throttle.audit import Audit
from relay.throttle.audit import audit as count
from relay.throttle.file_history import BEGIN_ANEW, DamagedHistory, read_events
from relay.throttle.history import NOTHING_SENT, HistoryError
from relay.throttle.limit import with_ceilings
from relay.throttle.throttle import recorded_book

EXCEEDED = 1
"""The exit code of `audit` if a window held more than today's limit."""
AT_ONCE = 256
MOST_LISTED = 1000


class Finding(NamedTuple):
    """Damage, told to a person who has never seen the files."""

    finding: str
    """A word for programs, such as `damaged_history`."""
    path: str
    what: str
    relay: str
    """What the relay does about it."""
    operator: str
    """What an operator has to do."""


@click.command()
@target_options
@json_option
def audit(target: Target, *, as_json: bool) -> int:
    """Prove from the history that no limit was exceeded.

    Prints for each limit the most that any window of its length can have held, whenever the
    upstream counts within a transaction.  Reads only; works with the relay up or down.  Exit
    code 1: a window held more than the limit allows today, because an edit lowered it, or
    something else was sent through the account's history.
    """
    policy, clock = found_policy(target), SystemClock()
    code = os.EX_OK
    for name, upstream in policy.upstreams.items():
        place, limits = policy.history_of(name), with_ceilings(upstream, policy.lanes)
        try:
            found = count(recorded_book(place, RealDisk(), clock).slots(), limits)
        except HistoryError as error:
            say(f"{name}: {error}", err=True)
            code = os.EX_DATAERR if place.database is None else os.EX_TEMPFAIL
            continue
        if code == os.EX_OK and any(peak.is_exceeded for peak in found.findings):
            code = EXCEEDED
        for told in _limit_objects(found, clock.wall_ns() - clock.boottime_ns()):
            if as_json:
                click.echo(json.dumps({"upstream": name, "history": str(place), **told}))
            else:
                say(f"{name}: {told['limit']}: {_limit_line(told)}")
    return code


def _limit_objects(found: Audit, ahead_ns: int) -> Iterator[dict[str, Any]]:
    """Yield a JSON object for each limit; keys may be added, never renamed."""

    def wall(at_ns: int | None) -> int | None:
        return None if at_ns is None else at_ns + ahead_ns

    known = {key: getattr(found, key) for key in ("transactions", "connections", "in_flight", "merged")}
    known["since"] = rfc3339_or_none(wall(found.since_ns))
    known["exact_since"] = rfc3339_or_none(wall(found.exact_since_ns))
    for peak in found.findings:
        its = to_json(replace(peak, most_at_ns=wall(peak.most_at_ns)))
        yield {"limit": peak.label, **its, "exceeded": peak.is_exceeded, **known}


def _limit_line(told: Mapping[str, Any]) -> str:
    """Return the words for a limit, without merged slots, which are not known one by one."""
    of = f" of {told['key'] or '<>'}" if told["key"] is not None else ""
    at = f" at {told['most_at']}" if told["most_at"] else ""
    verdict = f"not exceeded since {told['exact_since']}" if told["exact_since"] else "never exceeded"
    if told["exceeded"]:
        verdict = f"EXCEEDED, {told['most'] - told['count']} more than it allows today"
    known = f"{told['transactions']} transactions and {told['connections']} connections"
    since = f" since {told['since']}" if told["since"] else ""
    return f"at most {told['most']} at once{of}{at}: {verdict}; by {known}{since}"


@click.command()
@target_options
@json_option
def fsck(target: Target, *, as_json: bool) -> int:
    """Read every message of the spool, and the histories.

    Stop the relay first; while it runs, only the histories are read.  Each finding is a line: the path,
    what is wrong, what the relay does about it, and after an arrow what you can do.  A damaged message is
    moved to corrupt/, as at a start of the relay.  Exit codes: 0 nothing found, 65 damage, 66 no spool, 75 a
    relay runs, or the database does not answer.
    """
    policy = found_policy(target)
    busy, messages, findings = "", 0, list[Finding]()
    _check_folder(policy)
    try:
        messages, findings = _of_spool(policy)
    except SpoolBusy as error:
        busy = str(error)
    findings += _of_histories(policy)
    for finding in findings:
        # Keys of the JSON object may be added, never renamed.
        as_object = {key: printable(value) for key, value in finding._asdict().items()}
        line = f"{finding.path}: {finding.what}: {finding.relay} -> {finding.operator}"
        click.echo(json.dumps(as_object) if as_json else printable(line))
    if as_json:
        counts = {"messages": None if busy else messages, "findings": len(findings)}
        summary = {"finding": "summary", "path": printable(policy.spool), **counts}
        click.echo(json.dumps({**summary, "busy": printable(busy) or None}))
    else:
        found = f"{len(findings)} findings" if findings else "clean"
        unread = f"not read: {busy}; stop the relay and run this again. The histories:"
        say(f"{policy.spool}: {unread if busy else f'{messages} messages,'} {found}")
    return os.EX_DATAERR if findings else os.EX_TEMPFAIL if busy else os.EX_OK


def _check_folder(policy: Policy) -> None:
    """Refuse a folder without a spool, and a spool of another user or version."""
    if engine_of(str(policy.spool), RealDisk()) is None:
        raise Failed(f"{policy.spool}: there is no spool in this folder", os.EX_NOINPUT)
    refuse_strangers(policy.spool)


def _of_spool(policy: Policy) -> tuple[int, list[Finding]]:
    """Return the number of whole messages, and what is set aside.  Raises SpoolError, OSError."""
    spool = open_spool(policy, RealDisk(), SystemClock(), lambda _name, _why: None)
    becomes = "never sent, never deleted"
    advice = "look at it, send by hand what is worth it, then remove it"
    try:
        messages = sum(_whole(spool))
        return messages, [
            Finding("set_aside", f"{policy.spool}/corrupt/{each.name}", each.reason, becomes, advice)
            for each in spool.set_aside(MOST_LISTED)
        ]
    finally:
        spool.close()


def _whole(spool: Spool) -> Iterator[bool]:
    while page := spool.claim(AT_ONCE):
        for message in page:
            try:
                # Short content came with its message, and was checked then.
                for _ in spool.content(message.queue_id) if message.content is None else ():
                    pass
            except Corrupt:
                yield False
            else:
                yield True


def _of_histories(policy: Policy) -> Iterator[Finding]:
    for path in dict.fromkeys([*map(policy.history_path, policy.upstreams), policy.reports_history]):
        becomes, advice = NOTHING_SENT, BEGIN_ANEW
        if path == policy.reports_history:
            becomes, advice = "reports are not counted", "remove it while no relay runs"
        try:
            read_events(path, RealDisk(), SystemClock())
        except DamagedHistory as damage:
            yield Finding("damaged_history", str(path), str(damage), becomes, advice)


@click.group()
def spool() -> None:
    """Work on the spool as a whole."""


@spool.command()
@target_options
@click.option(
    "--to",
    "engine",
    type=click.Choice(get_args(SpoolEngine)),
    help="Default: the policy's engine.",
)
def convert(target: Target, *, engine: str | None) -> None:
    """Convert the spool from one engine to another.

    Stop the relay first.  All queued or held messages are kept, with all that is known of them; files in
    corrupt/ stay there.  If this command is killed, the spool is the old one or the new one; call it again
    to go on.  From a database, all queued messages move to this host: stop the relays on all hosts.
    """
    policy = found_policy(target)
    wanted = engine or policy.storage.engine
    if ControlClient(policy.spool).is_up():
        raise Failed(f"a relay runs on {policy.spool}: stop it first", os.EX_TEMPFAIL)
    # A start would set aside files that others may write.
    os.umask(0o077)
    _check_folder(policy)
    engines = engines_of(policy)
    done = convert_spool(str(policy.spool), wanted, RealDisk(), SystemClock(), _tell_corrupt, engines=engines)
    words = f"already uses the engine {done.now}"
    if done.was != done.now:
        what = f"{done.messages} messages, {done.held} of them held, {done.recipients} recipients to do"
        words = f"{done.was} to {done.now}: {what}"
    say(f"{policy.spool}: {words}")
    if wanted != policy.storage.engine:
        say(f"now write in the policy  spool: {{path: {policy.spool}, engine: {wanted}}}")


def _tell_corrupt(name: str, why: str) -> None:
    say(f"{name}: {why}; it is in corrupt/", err=True)
