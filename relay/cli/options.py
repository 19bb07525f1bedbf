"""What several commands have in common: the option `--policy`, and text for a terminal."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

DEFAULT_POLICY = Path("policy.yaml")
SYSTEM_POLICY = Path("/etc/relay/policy.yaml")
POLICY_VARIABLE = "RELAY_POLICY"
DEFAULTS = f"${POLICY_VARIABLE}, then ./{DEFAULT_POLICY}, then {SYSTEM_POLICY}"

_Command = TypeVar("_Command", bound=Callable[..., Any])


def default_policy(systems: Path = SYSTEM_POLICY) -> Path:
    """Return the policy where none is named: that of this folder, or the system's if only that is there."""
    return systems if not os.path.lexists(DEFAULT_POLICY) and os.path.lexists(systems) else DEFAULT_POLICY


def policy_option(verb: _Command) -> _Command:
    """Give a verb the option `--policy FILE`, which it takes as `policy_path: Path`."""
    return click.option(
        "--policy",
        "policy_path",
        type=click.Path(path_type=Path),
        envvar=POLICY_VARIABLE,
        default=default_policy,
        metavar="FILE",
        help=f"The policy; default: {DEFAULTS}.",
    )(verb)


def duration(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """Read the value of an option, such as `30m`, in nanoseconds: a callback for `click.option`."""
    if text is None:
        return None
    # Imported only here: most verbs go without a duration, and what reads a policy takes 0.2 s to load.
    from relay.policy.units import duration_ns  # noqa: PLC0415 - see above

    try:
        return duration_ns(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


class TryLater(click.ClickException):
    exit_code = os.EX_TEMPFAIL


class Unavailable(click.ClickException):
    exit_code = os.EX_UNAVAILABLE


class Misconfigured(click.ClickException):
    exit_code = os.EX_CONFIG


class NotPermitted(click.ClickException):
    exit_code = os.EX_NOPERM


def printable(text: object) -> str:
    """Return text that any terminal and any encoding of stdout takes: one line, nothing that steers."""
    return "".join(
        c if c.isprintable() and not "\ud800" <= c <= "\udfff" else f"\\x{ord(c):02x}" for c in str(text)
    )
