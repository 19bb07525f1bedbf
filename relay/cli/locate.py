"""Finds what an operator asks about: a good policy, or the relay that runs though its policy is broken.

A broken policy, or one that cannot be read, does not stop a relay that runs: it goes on by its last good
one, and operators' verbs ask it.  Where its spool is, `--spool` says; else a line `spool:` of the broken
policy, and the place of the shipped unit.  Without `--spool` only a relay is asked that says itself that
it runs by this policy file: no verb acts on another one.

What talks to a relay is imported where one is asked: it takes 0.1 s to load, and a program that only hands
over a message by a good policy (`found_policy`) asks none.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from relay.cli.options import NotPermitted, TryLater, policy_option, printable
from relay.policy.document import read_document
from relay.policy.faults import PolicyError
from relay.policy.model import Policy
from relay.policy.source import parse_policy, policy_bytes

if TYPE_CHECKING:
    from relay.control.client import ControlClient

SYSTEM_SPOOL = Path("/var/lib/relay/spool")
"""Where deploy/policy.yaml has it."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Where(NamedTuple):
    policy_path: Path
    spool: Path | None
    """As the operator named it; None: the policy says it."""


class Located(NamedTuple):
    client: "ControlClient"
    """Of a relay that runs, where there is no policy."""
    policy: Policy | None


def client_of(spool: Path) -> "ControlClient":
    """Return a client of the relay that runs on a spool, if one does."""
    from relay.control.client import ControlClient  # noqa: PLC0415 - see the beginning

    return ControlClient(spool)


def spool_option(verb: _Command) -> _Command:
    """Give a verb the option `--spool DIR`, which it takes as `spool: Path | None`."""
    return click.option(
        "--spool",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Ask the relay that runs on this spool, whatever the policy says.",
    )(verb)


def where_options(verb: _Command) -> _Command:
    """Give a verb `--policy FILE` and `--spool DIR`."""
    return policy_option(spool_option(verb))


async def locate(where: Where) -> Located:
    """Raise PolicyError where neither a good policy nor a relay that runs by it was found.

    Raises TryLater where no relay runs on the spool that was named, and PermissionError.
    """
    if where.spool is not None:
        return _on_spool(where.spool, where.policy_path)
    content = b""
    try:
        content = policy_bytes(where.policy_path)
        policy = parse_policy(content, where.policy_path)
    except PolicyError as error:
        found = await _running_by(where.policy_path, content)
        if found is None:
            _warn("no relay was found that runs by this policy; --spool DIR asks the one on DIR")
            raise
        spool, client = found
        _warn(f"{_in_a_line(error)}; asking the relay on {spool}, which runs by its last good one")
        return Located(client, None)
    return Located(client_of(policy.spool), policy)


def found_spool(where: Where) -> Path:
    """Return the spool of a relay, whether one runs on it or not.  Raises as `found_policy` does."""
    try:
        return asyncio.run(_spool_of(where))
    except PermissionError as error:
        raise NotPermitted(f"{error}; run this as the user that the relay runs as") from error


async def _spool_of(where: Where) -> Path:
    client, _ = await locate(where)
    try:
        # Of a spool that may not be looked into nothing would ever be seen.
        client.is_up()
    finally:
        await client.close()
    return client.spool


def found_policy(where: Where) -> Policy:
    """Return the policy, or where that is broken the one by which the relay runs.

    Raises PolicyError, TryLater and NotPermitted.
    """
    if where.spool is None:
        # Where it is broken the relay may run by its last good one.
        with contextlib.suppress(PolicyError):
            return parse_policy(policy_bytes(where.policy_path), where.policy_path)
    from relay.control.operations import Unreachable  # noqa: PLC0415 - see the beginning

    try:
        return asyncio.run(_policy_of(where))
    except Unreachable as unreachable:
        raise TryLater(str(unreachable)) from unreachable
    except PermissionError as error:
        raise NotPermitted(f"{error}; run this as the user that the relay runs as") from error


async def _policy_of(where: Where) -> Policy:
    client, policy = await locate(where)
    if policy is not None:
        return policy
    try:
        in_force = await client.policy()
    finally:
        await client.close()
    return parse_policy(in_force.text.encode(), in_force.path)


def _on_spool(spool: Path, policy_path: Path) -> Located:
    client = client_of(spool)
    if client.is_up():
        return Located(client, None)
    policy = parse_policy(policy_bytes(policy_path), policy_path)
    if not _is_same(policy.spool, spool):
        raise TryLater(f"no relay runs on {spool}, and {policy_path} is about another spool, {policy.spool}")
    return Located(client, policy)


async def _running_by(policy_path: Path, content: bytes) -> "tuple[Path, ControlClient] | None":
    from relay.control.operations import Unreachable  # noqa: PLC0415 - see the beginning

    for spool in dict.fromkeys([*_spools_in(content, policy_path), SYSTEM_SPOOL]):
        client = client_of(spool)
        try:
            if client.is_up() and _is_same((await client.policy()).path, policy_path):
                return spool, client
        except (PermissionError, Unreachable):
            # Whoever may not ask it, or whom it does not tell, cannot know that it is the one.
            pass
        await client.close()
    return None


def _spools_in(content: bytes, policy_path: Path) -> Iterator[Path]:
    """Yield what lines at the margin say, if the whole is no YAML."""
    lines = [line for line in content.splitlines() if line.startswith(b"spool:")]
    for part in (content, *lines):
        values = read_document(part).value()
        spool = values.get("spool") if isinstance(values, dict) else None
        if isinstance(spool, dict):
            spool = spool.get("path")
        if isinstance(spool, str):
            yield policy_path.absolute().parent / spool


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return one.absolute() == other.absolute()


def _warn(text: str) -> None:
    click.echo(printable(text), err=True)


def _in_a_line(error: PolicyError) -> str:
    first, *more = error.errors
    return f"{first}" + (f" (and {len(more)} more faults)" if more else "")
