"""`relay fsck`: reads every message of a spool and its histories, and says what is not as it should be.

It owns the queue meanwhile, so no relay may run; while one runs only the histories are looked at.  What is
damaged is set aside, as a start does it.  Exit codes: 0 clean, 1 findings that need nobody, 65 (EX_DATAERR)
damage: somebody has to look; 66 there is no spool, 74 it cannot be read, 75 a relay has it, 77 it belongs to
another user.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import replace

import click

from relay.cli.locate import found_policy
from relay.cli.options import Failed, Where, json_option, own_spool, printable, where_options
from relay.clock import SystemClock
from relay.control.offline import refuse_strangers
from relay.policy.model import Policy
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import engine_of, open_spool
from relay.spool.interface import Corrupt, Spool, SpoolBusy
from relay.throttle.history import NOTHING_SENT
from relay.throttle.opening import Finding, history_findings

FINDINGS_THAT_NEED_NOBODY = 1
AT_ONCE = 256
MOST_LISTED = 1000


@click.command()
@where_options
@json_option
def fsck(where: Where, *, as_json: bool) -> int:
    """Read every message of the spool, and the histories.

    No relay may run; while one runs, only the histories are read.  Each finding is a line: the path,
    what is wrong, what the relay does about it, and after an arrow what you can do, if anything.  A damaged
    message is moved to corrupt/, as a start of the relay does it.  Exit codes: 0 nothing found, 1 the relay
    repairs it by itself, 65 damage, 75 a relay runs.
    """
    policy = found_policy(where)
    busy, messages, findings = "", 0, list[Finding]()
    with own_spool():
        if engine_of(str(policy.spool), RealDisk()) is None:
            raise Failed(f"{policy.spool}: no spool is here", os.EX_NOINPUT)
        refuse_strangers(policy.spool)
        try:
            messages, findings = _of_spool(policy)
        except SpoolBusy as error:
            busy = str(error)
        findings += _of_histories(policy)
    damages = sum(finding.is_damage for finding in findings)
    for finding in findings:
        click.echo(json.dumps(_json(finding)) if as_json else _line(finding))
    if as_json:
        summary = {
            "finding": "summary",
            "path": printable(policy.spool),
            "messages": None if busy else messages,
            "findings": len(findings),
            "damages": damages,
            "busy": printable(busy) or None,
        }
        click.echo(json.dumps(summary))
    else:
        found = f"{len(findings)} findings, {damages} of them damage" if findings else "clean"
        read = f"not read: {busy}; stop the relay and run this again" if busy else f"{messages} messages"
        click.echo(printable(f"{policy.spool}: {read}, {found}"))
    if damages:
        return os.EX_DATAERR
    return os.EX_TEMPFAIL if busy else FINDINGS_THAT_NEED_NOBODY if findings else os.EX_OK


def _of_spool(policy: Policy) -> tuple[int, list[Finding]]:
    """Return how many whole messages there are, and what is set aside.  Raises SpoolError, OSError."""
    spool = open_spool(policy, RealDisk(), SystemClock(), lambda _name, _why: None)
    try:
        messages = sum(_whole(spool))
        findings = [
            Finding(
                f"{policy.spool}/corrupt/{each.name}",
                "set_aside",
                each.reason,
                "never sent, never deleted",
                "look at it, send by hand what is worth it, then remove it",
            )
            for each in spool.set_aside(MOST_LISTED)
        ]
    finally:
        spool.close()
    return messages, findings


def _whole(spool: Spool) -> Iterator[bool]:
    while page := spool.claim(AT_ONCE):
        for message in page:
            try:
                # Shorter content came with its message, and was checked.
                for _ in spool.content(message.queue_id) if message.content is None else ():
                    pass
            except Corrupt:
                yield False
            else:
                yield True


def _of_histories(policy: Policy) -> Iterator[Finding]:
    clock, disk = SystemClock(), RealDisk()
    paths = {policy.history_path(name): None for name in policy.upstreams}
    for path in paths:
        yield from history_findings(path, disk, clock)
    for finding in history_findings(policy.reports_history, disk, clock):
        if finding.becomes.startswith(NOTHING_SENT):
            becomes, advice = "reports are not counted", "remove it while no relay runs"
            yield replace(finding, becomes=becomes, advice=advice)
        else:
            yield finding


def _line(finding: Finding) -> str:
    advice = f" -> {finding.advice}" if finding.advice else ""
    return printable(f"{finding.path}: {finding.what}: {finding.becomes}{advice}")


def _json(finding: Finding) -> dict[str, str | bool | None]:
    """Keys may be added, never renamed."""
    return {
        "finding": finding.kind,
        "path": printable(finding.path),
        "what": printable(finding.what),
        "relay": finding.becomes,
        "operator": finding.advice or None,
        "damage": finding.is_damage,
    }
