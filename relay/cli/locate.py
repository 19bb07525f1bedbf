"""Finds what an operator asks about: the relay that runs on the spool of a policy, or the spool without one.

A relay that runs is asked even though an edit broke its policy since: it goes on by its last good one.  So of
the file only the key `spool` is read first, and nothing is loaded that checks a policy (0.2 s).
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from relay.cli.options import Failed, Where
from relay.control.client import ControlClient
from relay.control.operations import Session
from relay.policy.named_file import read_regular

if TYPE_CHECKING:
    from relay.policy.model import Policy

MOST_BYTES = 1 << 20
"""Of a policy that are read for its spool."""
_SPOOL = re.compile(r"^spool:.*(?:\n[ \t].*)*", re.MULTILINE)
"""The key, and all that is indented below it: the rest may be no YAML."""


@contextlib.contextmanager
def asked(where: Where) -> Iterator[Session]:
    """Give the relay that runs, or the spool of one that is down, as a start would read it."""
    session: Session
    session, policy = located(where)
    with contextlib.ExitStack() as stack:
        if policy is not None:
            # Imported only here: with a running relay no sender is loaded.
            from relay.control.offline import offline  # noqa: PLC0415 - see above

            try:
                session = stack.enter_context(offline(policy))
            except ValueError as error:
                raise Failed(str(error), os.EX_CONFIG) from error
        yield session


def located(where: Where) -> "tuple[ControlClient, Policy | None]":
    """Return the relay on the spool; and the policy, if none runs.

    Raises PolicyError where there is neither, and Failed where a spool was named on which none runs.
    """
    spool = where.spool or _spool_in(where.policy_path)
    if spool is not None and (client := ControlClient(spool)).is_up():
        return client, None
    from relay.policy.source import PolicyError  # noqa: PLC0415 - see the beginning

    try:
        policy = _policy_in(where.policy_path)
    except PolicyError:
        if where.spool is None:
            click.echo("no relay was found by this policy; --spool DIR asks the one on DIR", err=True)
        raise
    if where.spool is not None and policy.spool.resolve() != where.spool.resolve():
        about = f"{where.policy_path} is about another spool, {policy.spool}"
        raise Failed(f"no relay runs on {spool}, and {about}", os.EX_UNAVAILABLE)
    client = ControlClient(policy.spool)
    return client, None if client.is_up() else policy


def found_policy(where: Where) -> "Policy":
    """Return the policy; where that is broken or another spool was named, the one by which the relay runs."""
    from relay.policy.source import PolicyError, parse_policy  # noqa: PLC0415 - see the beginning

    if where.spool is None:
        with contextlib.suppress(PolicyError):
            return _policy_in(where.policy_path)
    client, policy = located(where)
    if policy is not None:
        return policy
    in_force = client.policy()
    return parse_policy(in_force.text.encode(), in_force.path)


def _policy_in(path: Path) -> "Policy":
    from relay.policy.source import read_policy  # noqa: PLC0415 - see the beginning

    # An operator need not be the user who may read its secrets.
    return read_policy(path, looks_at_files=False)


def _spool_in(policy_path: Path) -> Path | None:
    """Return where the spool is, by a policy that may be no good otherwise; None where that is not told."""
    import yaml  # noqa: PLC0415 - some verbs need no policy

    try:
        key = _SPOOL.search(read_regular(policy_path, MOST_BYTES).decode("utf-8", "replace"))
        said = yaml.safe_load(key[0])["spool"] if key else None
    except (OSError, yaml.YAMLError, RecursionError):
        return None
    path = said.get("path") if isinstance(said, dict) else said
    return policy_path.absolute().parent / path if isinstance(path, str) else None
