"""How a verb asks: the relay that runs, over its control socket, or else the spool itself.

A policy that was broken by an edit does not stop a relay, so it does not stop asking it
either: the socket is where the last `spool` key says.  Only without a running relay is
a good policy needed.  Secrets that a policy names are not looked at: an operator who
asks need not be the user that the relay runs as.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from relay.cli.options import error_text
from relay.control.operations import Session, SpoolBusy, Unreachable
from relay.control.socket import ControlClient
from relay.policy.document import read_document
from relay.policy.faults import PolicyError
from relay.policy.model import Policy
from relay.policy.source import parse_policy, policy_bytes

Answer = TypeVar("Answer")
QUICK_ANSWER_SECONDS = 5
"""Of a relay that is only asked by the way."""


class TryLater(click.ClickException):
    """The question was right, and cannot be answered now."""

    exit_code = os.EX_TEMPFAIL


class NotPermitted(click.ClickException):
    """The spool belongs to somebody else."""

    exit_code = os.EX_NOPERM


def ask(policy_path: Path, question: Callable[[Session], Awaitable[Answer]]) -> Answer:
    """Return the answer.  Raises TryLater, NotPermitted, PolicyError."""
    try:
        return asyncio.run(_ask(policy_path, question))
    except SpoolBusy as busy:
        raise TryLater(f"the spool is in use and no relay answers; try again later: {busy}") from busy
    except Unreachable as unreachable:
        raise TryLater(str(unreachable)) from unreachable
    except PermissionError as error:
        raise NotPermitted(f"{error}; run this as the user that the relay runs as") from error


def why_an_edit_waits(spool: Path) -> str:
    """Return why the relay that runs on a spool lets an edit rest; nothing where that cannot be asked."""

    async def ask_it() -> str:
        client = ControlClient(spool)
        try:
            async with asyncio.timeout(QUICK_ANSWER_SECONDS):
                return (await client.snapshot()).policy.waiting_because if client.is_up() else ""
        finally:
            await client.close()

    try:
        return asyncio.run(ask_it())
    except (OSError, Unreachable):
        return ""


async def _ask(policy_path: Path, question: Callable[[Session], Awaitable[Answer]]) -> Answer:
    session = _open(policy_path)
    try:
        return await question(session)
    finally:
        await session.close()


def _open(policy_path: Path) -> Session:
    content = policy_bytes(policy_path)
    try:
        policy = parse_policy(content, policy_path)
    except PolicyError as error:
        client = _client_of_broken(content, policy_path)
        if client is None:
            raise
        click.echo(
            f"{policy_path} is not valid, the relay runs on its last good one: {error_text(error)}", err=True
        )
        return client
    client = ControlClient(policy.spool)
    return client if client.is_up() else _offline(policy)


def _client_of_broken(content: bytes, policy_path: Path) -> ControlClient | None:
    """Return the running relay of a policy of which no more than the spool can be told."""
    values = read_document(content).value()
    spool = values.get("spool") if isinstance(values, dict) else None
    if not isinstance(spool, str):
        return None
    client = ControlClient(policy_path.absolute().parent / spool)
    return client if client.is_up() else None


def _offline(policy: Policy) -> Session:
    # Imported only here: with a running relay nothing of the spool is loaded.
    from relay.control.offline import OfflineOperations  # noqa: PLC0415 - see above

    return OfflineOperations(policy)
