"""What verbs have in common: options, failures with an exit code, and text for a terminal.

What reads a policy takes 0.2 s to load, so it is imported where a value that needs it is given.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from relay.policy.model import Policy, Upstream

DEFAULT_POLICY = Path("policy.yaml")
SYSTEM_POLICY = Path("/etc/relay/policy.yaml")
POLICY_VARIABLE = "RELAY_POLICY"

CliVerb = Callable[..., Any]


def default_policy(systems: Path = SYSTEM_POLICY) -> Path:
    """Return the policy where none is named: that of this folder, or the system's if only that is there."""
    return systems if not os.path.lexists(DEFAULT_POLICY) and os.path.lexists(systems) else DEFAULT_POLICY


def named(context: click.Context, option: click.Parameter, value: Path | None) -> Path | None:
    """Return what an option names: people write `relay queue --policy FILE hold ID`, too."""
    if value is None and context.parent is not None:
        value = context.parent.params.get(option.name or "")
    if value is None and option.name == "policy_path":
        return Path(os.environ.get(POLICY_VARIABLE) or default_policy())
    return value


policy_option = click.option(
    "--policy",
    "policy_path",
    type=click.Path(path_type=Path),
    callback=named,
    metavar="FILE",
    help=f"The policy; default: ${POLICY_VARIABLE}, then ./{DEFAULT_POLICY}, then {SYSTEM_POLICY}.",
)
"""`--policy FILE`, which a verb takes as `policy_path: Path`."""
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")


def checked(module: str, function: str) -> Callable[..., Any]:
    """Return a callback that has a function read a value, or each of several."""

    def read(_context: click.Context, _option: click.Parameter, value: Any) -> Any:
        if value is None or value == ():
            return value
        check, is_many = getattr(import_module(module), function), isinstance(value, tuple)
        try:
            if is_many and "" in value:
                # As of a shell variable that is not set: it would match what has none.
                raise ValueError("expected a value")
            return tuple(map(check, value)) if is_many else check(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return read


duration = checked("relay.policy.units", "duration_ns")
"""A time such as `30m`, in nanoseconds."""


def named_upstream(policy: "Policy", name: str) -> "Upstream":
    """Raise UsageError where the policy has no such upstream."""
    if name not in policy.upstreams:
        known = ", ".join(policy.upstreams)
        raise click.UsageError(f"there is no upstream {printable(name)}; the policy has {known}")
    return policy.upstreams[name]


class Failed(click.ClickException):
    def __init__(self, words: str, code: int) -> None:
        """`code`: as sysexits(3) has it."""
        super().__init__(words)
        self.exit_code = code  # type: ignore[misc]  # of click, which means it to be set


@contextmanager
def own_spool() -> Iterator[None]:
    """Tell what keeps a verb from a spool that it has to itself, by the exit codes for that."""
    from relay.spool.interface import SpoolBusy, SpoolError  # noqa: PLC0415 - few verbs need it

    try:
        yield
    except SpoolBusy as busy:
        raise Failed(str(busy), os.EX_TEMPFAIL) from busy
    except SpoolError as error:
        raise Failed(f"{error}; run this again once the disk is well", os.EX_IOERR) from error
    except ValueError as error:
        raise Failed(str(error), os.EX_CONFIG) from error


def say(text: object, *, err: bool = False) -> None:
    """Print a line as any terminal takes it."""
    click.echo(printable(text), err=err)


def printable(text: object) -> str:
    """Return text that any terminal and any encoding of stdout takes: one line, nothing that steers."""
    plain = str(text)
    if plain.isprintable():
        return plain
    # Surrogates are not printable either.
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in plain)
