"""The options that say which messages of the queue are meant: of `relay queue` and of its verbs."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import click

from relay.cli.options import duration
from relay.status.filters import Filters
from relay.status.snapshot import QueueState

_STATES = tuple(state for state in QueueState if state is not QueueState.INCOMING)


def checked(check: Callable[[str], object]) -> Callable[..., Any]:
    """Return what click calls with one value or with several; a wrong one is a wrong usage."""

    def take(_context: click.Context, _option: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(check(each) for each in value)
            return None if value is None else check(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return take


def _by_policy(room: str, name: str) -> Callable[[str], object]:
    """Return the check that a policy has for such a value, loaded where one is given: it takes 0.2 s."""

    def check(value: str) -> object:
        return getattr(import_module(f"relay.policy.{room}"), name)(value)

    return check


def _client(value: str) -> str:
    if "/" in value:
        _by_policy("units", "any_network")(value)
    return value


_LIST: dict[str, Any] = {"multiple": True}
_WHO = _LIST | {"metavar": "WHO", "callback": checked(_by_policy("lane", "sender_pattern"))}
_DOMAIN = checked(_by_policy("lane", "domain_pattern"))
_SIZE = checked(_by_policy("units", "size_bytes"))
_OPTIONS = (
    click.option("--sender", help="By reverse-path.", **_WHO),
    click.option("--recipient", help="By a recipient left.", **_WHO),
    click.option("--domain", metavar="DOMAIN", callback=_DOMAIN, help="By a recipient's.", **_LIST),
    click.option("--user", metavar="NAME", help="By who had logged in.", **_LIST),
    click.option(
        "--client", metavar="HOST", callback=checked(_client), help="By address, network or name.", **_LIST
    ),
    click.option("--lane", metavar="NAME", help="By lane.", **_LIST),
    click.option("--upstream", metavar="NAME", help="By upstream.", **_LIST),
    click.option("--state", type=click.Choice([state.value for state in _STATES]), help="By state.", **_LIST),
    click.option("--older", metavar="AGE", callback=duration, help="At least so old: 2h."),
    click.option("--size", metavar="SIZE", callback=_SIZE, help="At least so large: 1M."),
)


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options, whose values `taken` makes filters of."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def taken(options: dict[str, Any]) -> Filters:
    """Take the values of the options out of those of a command."""
    return Filters(
        senders=options.pop("sender"),
        recipients=options.pop("recipient"),
        domains=options.pop("domain"),
        users=options.pop("user"),
        clients=options.pop("client"),
        lanes=options.pop("lane"),
        upstreams=options.pop("upstream"),
        states=tuple(map(QueueState, options.pop("state"))),
        older_ns=options.pop("older") or 0,
        size_bytes=options.pop("size") or 0,
    )
