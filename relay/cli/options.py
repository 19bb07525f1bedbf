"""What several commands have in common: the option `--policy`, and text for a terminal."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from relay.policy.faults import PolicyError

DEFAULT_POLICY = Path("policy.yaml")
POLICY_VARIABLE = "RELAY_POLICY"

_Command = TypeVar("_Command", bound=Callable[..., Any])


def policy_option(verb: _Command) -> _Command:
    """Give a verb the option `--policy FILE`, which it takes as `policy_path: Path`."""
    return click.option(
        "--policy",
        "policy_path",
        type=click.Path(path_type=Path),
        envvar=POLICY_VARIABLE,
        default=DEFAULT_POLICY,
        metavar="FILE",
        help=f"The policy; default: ${POLICY_VARIABLE}, then ./{DEFAULT_POLICY}.",
    )(verb)


class NotPermitted(click.ClickException):
    exit_code = os.EX_NOPERM


def error_text(error: PolicyError) -> str:
    """Show the values of a policy only on a terminal."""
    return error.on_terminal() if sys.stderr.isatty() else str(error)


def printable(text: object) -> str:
    """Return text that any terminal and any encoding of stdout takes: one line, nothing that steers."""
    return "".join(
        c if c.isprintable() and not "\ud800" <= c <= "\udfff" else f"\\x{ord(c):02x}" for c in str(text)
    )
