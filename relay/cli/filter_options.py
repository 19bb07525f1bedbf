"""The options that say which messages of the queue are meant: of `relay queue` and of its verbs."""

import functools
from importlib import import_module
from typing import Any

import click

from relay.cli.options import Verb, checked, duration
from relay.status.filters import Filters
from relay.status.snapshot import QueueState

_STATES = [state.value for state in QueueState if state is not QueueState.INCOMING]
_sender = checked("relay.policy.lane", "sender_pattern")
_OPTIONS = (
    click.option(
        "--sender", "senders", metavar="WHO", multiple=True, callback=_sender, help="By reverse-path."
    ),
    click.option(
        "--recipient",
        "recipients",
        metavar="WHO",
        multiple=True,
        callback=_sender,
        help="By a recipient left.",
    ),
    click.option(
        "--domain",
        "domains",
        metavar="DOMAIN",
        multiple=True,
        callback=checked("relay.policy.lane", "domain_pattern"),
        help="By a recipient's.",
    ),
    click.option("--user", "users", metavar="NAME", multiple=True, help="By who had logged in."),
    click.option(
        "--client",
        "clients",
        metavar="HOST",
        multiple=True,
        callback=checked("relay.cli.filter_options", "client_pattern"),
        help="By address, network or name.",
    ),
    click.option("--lane", "lanes", metavar="NAME", multiple=True, help="By lane."),
    click.option("--upstream", "upstreams", metavar="NAME", multiple=True, help="By upstream."),
    click.option("--state", "states", type=click.Choice(_STATES), multiple=True, help="By state."),
    click.option("--older", "older_ns", metavar="AGE", callback=duration, help="At least so old: 2h."),
    click.option(
        "--size",
        "size_bytes",
        metavar="SIZE",
        callback=checked("relay.policy.units", "size_bytes"),
        help="At least so large: 1M.",
    ),
)
_NAMES = (
    "senders",
    "recipients",
    "domains",
    "users",
    "clients",
    "lanes",
    "upstreams",
    "older_ns",
    "size_bytes",
)


def filter_options(verb: Verb) -> Verb:
    """Give a verb the options, which it takes as `filters: Filters`."""

    @functools.wraps(verb)
    def filtered(*arguments: Any, states: tuple[str, ...], **options: Any) -> Any:
        named = {name: value for name in _NAMES if (value := options.pop(name))}
        return verb(*arguments, filters=Filters(**named, states=tuple(map(QueueState, states))), **options)

    for option in reversed(_OPTIONS):
        filtered = option(filtered)
    return filtered


def client_pattern(value: str) -> str:
    """Raise ValueError for what looks like a network and is none."""
    if "/" in value:
        import_module("relay.policy.units").any_network(value)
    return value
