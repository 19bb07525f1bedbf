"""`relay fsck`: what is not as it should be in a spool and its histories, a line a finding.

Reads only, and takes no lock, so that it may be run beside a relay.  Exit codes: 0 clean,
1 findings that need nobody (the next start, or the next use, puts them right), 65
(EX_DATAERR) damage: somebody has to look; 66 there is no spool, 74 it cannot be read, 77
it belongs to another user.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import click

from relay.cli.locate import Where, found_policy, where_options
from relay.cli.options import Misconfigured, NotPermitted, printable
from relay.clock import SystemClock
from relay.control.client import ControlClient
from relay.policy.model import Policy
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import inspected
from relay.spool.finding import NOTHING_SENT, Finding, Inspection
from relay.throttle.history_check import history_findings

FINDINGS_THAT_NEED_NOBODY = 1


class NotReadable(click.ClickException):
    exit_code = os.EX_IOERR


class NoSpool(NotReadable):
    exit_code = os.EX_NOINPUT


@click.command()
@where_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
def fsck(policy_path: Path, spool: Path | None, *, as_json: bool) -> int:
    """Check the spool and the histories; read only.

    Each finding is a line: the path, what is wrong, what the relay does about it, and after
    an arrow what you can do, if anything.  Works with the relay up or down; while it is up,
    a finding may be outdated when you read it.  Exit codes: 0 nothing found, 1 the relay
    repairs it by itself, 65 damage.
    """
    policy = found_policy(Where(policy_path, spool))
    try:
        seen = inspected(policy, RealDisk())
        findings = [*seen.findings, *_of_histories(policy)]
        holder = seen.holder or ("unknown" if ControlClient(policy.spool).is_up() else None)
    except ValueError as error:
        raise Misconfigured(str(error)) from error
    except OSError as error:
        kinds: dict[type[OSError], type[click.ClickException]]
        kinds = {FileNotFoundError: NoSpool, PermissionError: NotPermitted}
        kind = kinds.get(type(error), NotReadable)
        raise kind(f"{error.filename or policy.spool}: {error.strerror or error}") from error
    damage = sum(finding.is_damage for finding in findings)
    if as_json:
        for finding in findings:
            click.echo(json.dumps({"finding": finding.kind, **_json(finding), "damage": finding.is_damage}))
        click.echo(json.dumps(_summary_json(seen, holder, findings, damage)))
    else:
        for finding in findings:
            click.echo(_line(finding))
        for line in _summary(seen, holder, findings, damage):
            click.echo(line)
    if damage:
        return os.EX_DATAERR
    return FINDINGS_THAT_NEED_NOBODY if findings else os.EX_OK


def _of_histories(policy: Policy) -> Iterator[Finding]:
    clock, disk, owner = SystemClock(), RealDisk(), policy.spool.stat().st_uid
    paths = {policy.history_path(name): None for name in policy.upstreams}
    for path in paths:
        yield from history_findings(path, disk, clock, owner)
    for finding in history_findings(policy.reports_history, disk, clock, owner):
        if finding.becomes.startswith(NOTHING_SENT):
            becomes, advice = "reports are not counted", "remove it while no relay runs"
            yield replace(finding, becomes=becomes, advice=advice)
        else:
            yield finding


def _line(finding: Finding) -> str:
    advice = f" -> {finding.advice}" if finding.advice else ""
    return printable(f"{finding.path}: {finding.what}: {finding.becomes}{advice}")


def _json(finding: Finding) -> dict[str, str | None]:
    values = asdict(finding)
    return {
        "path": printable(values["path"]),
        "what": printable(values["what"]),
        "relay": values["becomes"],
        "operator": values["advice"] or None,
    }


def _summary(seen: Inspection, holder: str | None, findings: list[Finding], damage: int) -> Iterator[str]:
    found = f"{len(findings)} findings, {damage} of them damage" if findings else "clean"
    yield printable(f"{seen.root}: {seen.messages} messages, {found}")
    if holder is not None:
        yield (
            f"a sender holds the spool (process {holder}), and {seen.arriving} messages were arriving: "
            "findings may be outdated; run fsck again before you act"
        )


def _summary_json(
    seen: Inspection, holder: str | None, findings: list[Finding], damage: int
) -> dict[str, str | int | bool | None]:
    return {
        "finding": "summary",
        "path": printable(seen.root),
        "messages": seen.messages,
        "arriving": seen.arriving,
        "findings": len(findings),
        "damages": damage,
        "is_held": holder is not None,
        "holder": holder,
    }
