"""The options that say which messages of the queue are meant: of `relay queue` and of its verbs."""

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import click

from relay.cli.options import Verb, checked, duration
from relay.status.filters import Filters
from relay.status.snapshot import QueueState

_STATES = [state.value for state in QueueState if state is not QueueState.INCOMING]
_sender = checked("relay.policy.lane", "sender_pattern")
_domain = checked("relay.policy.lane", "domain_pattern")
_client = checked("relay.cli.filter_options", "client_pattern")
_MANY: tuple[tuple[str, str, str, Callable[..., Any] | None, str], ...] = (
    ("--sender", "senders", "WHO", _sender, "By reverse-path: address, @domain, pattern, <>."),
    ("--recipient", "recipients", "WHO", _sender, "By a recipient left."),
    ("--domain", "domains", "DOMAIN", _domain, "By the domain of a recipient left; *.x.example: below it."),
    ("--user", "users", "NAME", None, "By who had logged in, or a pattern."),
    ("--client", "clients", "HOST", _client, "By the client's address, network or name."),
    ("--lane", "lanes", "NAME", None, "By lane."),
    ("--upstream", "upstreams", "NAME", None, "By upstream, also of a part of the message."),
)
"""Option, field of `Filters`, what stands for its value, what reads it, help; each may be repeated."""
_size = checked("relay.policy.units", "size_bytes")
_OPTIONS = (
    *(
        click.option(option, field, metavar=metavar, multiple=True, callback=read, help=words)
        for option, field, metavar, read, words in _MANY
    ),
    click.option("--state", "states", type=click.Choice(_STATES), multiple=True, help="By state."),
    click.option("--older", "older_ns", metavar="AGE", callback=duration, help="At least so old: 2h."),
    click.option("--size", "size_bytes", metavar="SIZE", callback=_size, help="At least so large: 1M."),
)
_NAMES = (*(field for _, field, *_ in _MANY), "older_ns", "size_bytes")


def filter_options(verb: Verb) -> Verb:
    """Give a verb the options, which it takes as `filters: Filters`."""

    @functools.wraps(verb)
    def filtered(*arguments: Any, states: tuple[str, ...], **options: Any) -> Any:
        for option, field, *_ in _MANY:
            if "" in options[field]:
                # As of a shell variable that is not set: it would match what has none.
                raise click.UsageError(f"{option} needs a value")
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
