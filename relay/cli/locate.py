"""Finds what an operator asks about: the relay that runs by a policy file, or a good policy while none runs.

A relay that runs is asked even though an edit broke its policy since: it goes on by its last good one.
Of the file only the spool is looked for, so that nothing is loaded that checks a policy.  Without `--spool`
only a relay is asked that says itself that it runs by this file, or one on the spool of a good policy: no
verb acts on another one.

What talks to a relay is imported where one is asked, and what checks a policy where that is needed: the one
takes 0.1 s to load, the other 0.3 s.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from relay.cli.options import NotPermitted, TryLater, Unavailable, policy_option
from relay.policy.document import MAX_BYTES, read_document
from relay.policy.named_file import read_regular

if TYPE_CHECKING:
    from relay.control.client import ControlClient
    from relay.policy.model import Policy

SYSTEM_SPOOL = Path("/var/lib/relay/spool")
"""Where deploy/policy.yaml has it."""

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Answer = TypeVar("_Answer")


class Where(NamedTuple):
    policy_path: Path
    spool: Path | None
    """As the operator named it; None: the policy says it."""


class Located(NamedTuple):
    client: "ControlClient"
    """Of a relay that runs, where there is no policy."""
    policy: "Policy | None"


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


def checked_policy(path: Path) -> "Policy":
    """Raise PolicyError."""
    from relay.policy.source import parse_policy, policy_bytes  # noqa: PLC0415 - see the beginning

    return parse_policy(policy_bytes(path), path)


def text_of(path: Path) -> bytes:
    """Return the text of a policy's file, whatever it says; empty where it cannot be read."""
    try:
        return read_regular(path, MAX_BYTES)
    except OSError:
        return b""


async def locate(where: Where) -> Located:
    """Raise PolicyError where neither a relay that runs by it nor a good policy was found.

    Raises Unavailable where no relay runs on the spool that was named, and PermissionError.
    """
    if where.spool is not None:
        return _on_spool(where.spool, where.policy_path)
    if (client := await _running_by(where.policy_path)) is not None:
        return Located(client, None)
    from relay.policy.faults import PolicyError  # noqa: PLC0415 - see the beginning

    try:
        policy = checked_policy(where.policy_path)
    except PolicyError:
        hint = "no relay was found that runs by this policy; --spool DIR asks the one on DIR"
        click.echo(hint, err=True)
        raise
    return Located(client_of(policy.spool), policy)


def answered(question: Coroutine[Any, Any, _Answer]) -> _Answer:
    """Return what the relay says.  Raises TryLater and NotPermitted, and what `locate` raises."""
    from relay.control.operations import Unreachable  # noqa: PLC0415 - see the beginning

    try:
        return asyncio.run(question)
    except Unreachable as unreachable:
        raise TryLater(str(unreachable)) from unreachable
    except PermissionError as error:
        raise NotPermitted(f"{error}; run this as the user that the relay runs as") from error


def found_spool(where: Where) -> Path:
    """Return the spool of a relay, whether one runs on it or not.  Raises as `answered` does."""
    return answered(_spool_of(where))


async def _spool_of(where: Where) -> Path:
    client, _ = await locate(where)
    try:
        # Of a spool that may not be looked into nothing would ever be seen.
        client.is_up()
    finally:
        await client.close()
    return client.spool


def found_policy(where: Where) -> "Policy":
    """Return the policy, or where that is broken the one by which the relay runs.  Raises as `answered`."""
    from relay.policy.faults import PolicyError  # noqa: PLC0415 - see the beginning

    if where.spool is None:
        # Where it is broken the relay may run by its last good one.
        with contextlib.suppress(PolicyError):
            return checked_policy(where.policy_path)
    return answered(_policy_of(where))


async def _policy_of(where: Where) -> "Policy":
    client, policy = await locate(where)
    if policy is not None:
        return policy
    from relay.policy.source import parse_policy  # noqa: PLC0415 - see the beginning

    try:
        in_force = await client.policy()
    finally:
        await client.close()
    return parse_policy(in_force.text.encode(), in_force.path)


def _on_spool(spool: Path, policy_path: Path) -> Located:
    client = client_of(spool)
    if client.is_up():
        return Located(client, None)
    policy = checked_policy(policy_path)
    if not _is_same(policy.spool, spool):
        raise Unavailable(
            f"no relay runs on {spool}, and {policy_path} is about another spool, {policy.spool}"
        )
    return Located(client, policy)


async def _running_by(policy_path: Path) -> "ControlClient | None":
    from relay.control.operations import Unreachable  # noqa: PLC0415 - see the beginning

    for spool in dict.fromkeys([*_spools_in(text_of(policy_path), policy_path), SYSTEM_SPOOL]):
        client = client_of(spool)
        try:
            if client.is_up() and _is_same((await client.policy()).path, policy_path):
                return client
        except (PermissionError, Unreachable):
            # Whoever may not ask it, or whom it does not tell, cannot know that it is the one.
            pass
        await client.close()
    return None


def _spools_in(content: bytes, policy_path: Path) -> Iterator[Path]:
    """Yield what it says, and what lines at the margin say, if the whole is no YAML."""
    lines = [line for line in content.splitlines() if line.startswith(b"spool:")]
    for part in (content, *lines):
        values = read_document(part).value
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
