"""What verbs share: options, the relay or spool that they ask, failures, text for a terminal.

A running relay is asked even if an edit broke its policy file: it goes on with its last good policy.  So only
the key `spool` of the file is read first.  The modules that check a policy take 0.2 s to load, and are
imported only where a value or a verb needs them.
"""

import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from relay.mail.envelope import QUEUE_ID_PATTERN, QueueId
from relay.policy.named_file import read_regular

if TYPE_CHECKING:
    from relay.control.client import ControlClient
    from relay.control.operations import Session
    from relay.policy.model import Policy, Upstream

DEFAULT_POLICY = Path("policy.yaml")
SYSTEM_POLICY = Path("/etc/relay/policy.yaml")
POLICY_VARIABLE = "RELAY_POLICY"

CliVerb = Callable[..., Any]


def default_policy(systems: Path = SYSTEM_POLICY) -> Path:
    """Return the default policy: that of this folder, or the system's if only that one exists."""
    return systems if not os.path.lexists(DEFAULT_POLICY) and os.path.lexists(systems) else DEFAULT_POLICY


policy_option = click.option(
    "--policy",
    "policy_path",
    type=click.Path(path_type=Path),
    default=lambda: os.environ.get(POLICY_VARIABLE) or default_policy(),
    metavar="FILE",
    help=f"The policy; default: ${POLICY_VARIABLE}, then ./{DEFAULT_POLICY}, then {SYSTEM_POLICY}.",
)
"""`--policy FILE`, which a verb takes as `policy_path: Path`."""
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")


def checked(module: str, function: str) -> Callable[..., Any]:
    """Return a click callback by which `function` converts a value, or each of several values."""

    def read(_context: click.Context, _option: click.Parameter, value: Any) -> Any:
        if value is None or value == ():
            return value
        check, is_many = getattr(import_module(module), function), isinstance(value, tuple)
        try:
            if is_many and "" in value:
                # An unset shell variable gives "", which would match messages without such a value.
                raise ValueError("expected a value")
            return tuple(map(check, value)) if is_many else check(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return read


duration = checked("relay.policy.units", "duration_ns")
"""The callback for a time such as `30m`; it returns nanoseconds."""


def named_upstream(policy: "Policy", name: str) -> "Upstream":
    """Raise UsageError if the policy has no such upstream."""
    if name not in policy.upstreams:
        known = ", ".join(policy.upstreams)
        raise click.UsageError(f"there is no upstream {printable(name)}; the policy has {known}")
    return policy.upstreams[name]


class Failed(click.ClickException):
    def __init__(self, words: str, code: int) -> None:
        """`code` is one of sysexits(3)."""
        super().__init__(words)
        self.exit_code = code  # type: ignore[misc]  # click declares it for the class, and means it to be set


def say(text: object, *, err: bool = False) -> None:
    click.echo(printable(text), err=err)


def printable(text: object) -> str:
    """Return text as one line that no terminal interprets, with escapes for what is not printable."""
    plain = str(text)
    if plain.isprintable():
        return plain
    # Lone surrogates, which UTF-8 cannot encode, are not printable either.
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in plain)


MOST_BYTES = 1 << 20
"""How much of a policy is read to find its spool."""
_SPOOL = re.compile(r"^spool:.*(?:\n[ \t].*)*", re.MULTILINE)
"""The key `spool` and all lines indented below it; the rest of the file may be invalid YAML."""
_NO_UTF_8 = re.compile("[\ud800-\udfff]")
FROM_STDIN = "-"


class Target(NamedTuple):
    policy_path: Path
    spool: Path | None
    """The value of --spool; None: the spool that the policy names."""


def target_options(verb: CliVerb) -> CliVerb:
    """Give a verb `--policy FILE` and `--spool DIR`, which it takes as `target: Target`.

    The verb's texts go to a relay as JSON.  Raises UsageError for a text that is not UTF-8.
    """

    @functools.wraps(verb)
    def with_target(*arguments: Any, policy_path: Path, spool: Path | None, **others: Any) -> Any:
        for value in others.values():
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str) and not text.isascii() and _NO_UTF_8.search(text):
                    raise click.UsageError(f"{printable(text)} is not UTF-8")
        return verb(*arguments, target=Target(policy_path, spool), **others)

    return policy_option(
        click.option(
            "--spool",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="Ask the relay that runs on this spool, whatever the policy says.",
        )(with_target)
    )


@contextlib.contextmanager
def open_session(target: Target) -> "Iterator[Session]":
    """Yield a session with the running relay; if none runs, with the spool, read as a start reads it."""
    client, policy = find_relay(target)
    if policy is None:
        yield client
        return
    from relay.control.offline import offline  # noqa: PLC0415 - with a running relay no sender is loaded

    with offline(policy) as session:
        yield session


def find_relay(target: Target) -> "tuple[ControlClient, Policy | None]":
    """Return a client of the relay on the spool, and the policy if no relay runs there.

    If no relay runs, raises PolicyError for a bad policy, and Failed if it has another spool than --spool.
    """
    from relay.control.client import ControlClient  # noqa: PLC0415 - see the beginning

    spool = target.spool or _spool_in(target.policy_path)
    if spool is not None and (client := ControlClient(spool)).is_up():
        return client, None
    from relay.policy.source import PolicyError  # noqa: PLC0415 - see the beginning

    try:
        policy = _policy_in(target.policy_path)
    except PolicyError:
        if target.spool is None:
            click.echo("this policy leads to no running relay; --spool DIR asks the relay on DIR", err=True)
        raise
    if target.spool is not None and policy.spool.resolve() != target.spool.resolve():
        about = f"{target.policy_path} names another spool, {policy.spool}"
        raise Failed(f"no relay runs on {spool}, and {about}", os.EX_UNAVAILABLE)
    client = ControlClient(policy.spool)
    return client, None if client.is_up() else policy


def running_relay(target: Target) -> "ControlClient":
    """Raise Failed if no relay runs."""
    client, policy = find_relay(target)
    if policy is not None:
        raise Failed(f"no relay runs on {client.spool}: start it first", os.EX_UNAVAILABLE)
    return client


def found_policy(target: Target) -> "Policy":
    """Return the policy of the file; if it is bad or --spool was given, that of the relay if it runs."""
    from relay.policy.source import PolicyError, parse_policy  # noqa: PLC0415 - see the beginning

    if target.spool is None:
        with contextlib.suppress(PolicyError):
            return _policy_in(target.policy_path)
    client, policy = find_relay(target)
    if policy is not None:
        return policy
    return parse_policy(client.policy().encode(), target.policy_path)


def _policy_in(path: Path) -> "Policy":
    from relay.policy.source import read_policy  # noqa: PLC0415 - see the beginning

    # The operator's user may have no right to read the secrets.
    return read_policy(path, looks_at_files=False)


def _spool_in(policy_path: Path) -> Path | None:
    """Return the spool that a policy names, even if other keys are bad; None if no spool can be read."""
    import yaml  # noqa: PLC0415 - some verbs need no policy

    try:
        content, _ = read_regular(policy_path, MOST_BYTES)
        key = _SPOOL.search(content.decode("utf-8", "replace"))
        said = yaml.safe_load(key[0])["spool"] if key else None
    except (OSError, yaml.YAMLError, RecursionError):
        return None
    path = said.get("path") if isinstance(said, dict) else said
    return policy_path.absolute().parent / path if isinstance(path, str) else None


def checked_ids(words: Sequence[str]) -> list[QueueId]:
    """Return the ids, each once; `-` stands for the ids on stdin.  Raises UsageError."""
    names = [name for word in words for name in (sys.stdin.read().split() if word == FROM_STDIN else [word])]
    if wrong := next((name for name in names if not QUEUE_ID_PATTERN.match(name)), None):
        raise click.UsageError(f"{printable(wrong)} is not a queue id")
    return list(map(QueueId, dict.fromkeys(names)))


ids_argument = click.argument(
    "ids",
    metavar="ID...",
    nargs=-1,
    required=True,
    callback=lambda _context, _argument, ids: checked_ids(ids),
)
"""At least one `ID`, which a verb takes as `ids: list[QueueId]`."""

_sender = checked("relay.policy.lane", "sender_pattern")
_text = checked("builtins", "str")
_FILTERS: tuple[tuple[str, str, str, Any, str], ...] = (
    ("--sender", "senders", "WHO", _sender, "By reverse-path: address, @domain, pattern, <>."),
    ("--recipient", "recipients", "WHO", _sender, "By remaining recipient."),
    (
        *("--domain", "domains", "DOMAIN", checked("relay.policy.lane", "domain_pattern")),
        "By a remaining recipient's domain; *.x.example: subdomains.",
    ),
    ("--user", "users", "NAME", _text, "By login of the client, or a pattern."),
    (
        *("--client", "clients", "HOST", checked("relay.cli.options", "client_pattern")),
        "By the client's address, network or name.",
    ),
    ("--lane", "lanes", "NAME", _text, "By lane."),
    ("--upstream", "upstreams", "NAME", _text, "By upstream of any recipient."),
    ("--state", "states", "", None, "By state."),
    ("--older", "older_ns", "AGE", duration, "Minimum age: 2h."),
    ("--size", "size_bytes", "SIZE", checked("relay.policy.units", "size_bytes"), "Minimum size: 1M."),
)
"""Option, field of `Filters`, metavar, callback, help."""


def filter_options(verb: CliVerb) -> CliVerb:
    """Give a verb the options of _FILTERS, which it takes as `filters: Filters`."""
    from relay.status.filters import Filters  # noqa: PLC0415 - see the beginning
    from relay.status.snapshot import QueueState  # noqa: PLC0415 - see the beginning

    states = [state.value for state in QueueState if state is not QueueState.INCOMING]

    @functools.wraps(verb)
    def filtered(*arguments: Any, **options: Any) -> Any:
        named = {name: value for _, name, *_ in _FILTERS if (value := options.pop(name))}
        named["states"] = tuple(map(QueueState, named.get("states", ())))
        return verb(*arguments, filters=Filters(**named), **options)

    for option, name, metavar, read, words in reversed(_FILTERS):
        choice = click.Choice(states) if name == "states" else None
        is_many = name not in ("older_ns", "size_bytes")
        filtered = click.option(
            option, name, type=choice, metavar=metavar or None, multiple=is_many, callback=read, help=words
        )(filtered)
    return filtered


def client_pattern(value: str) -> str:
    """Raise ValueError for a text with a slash that is not a network."""
    if "/" in value:
        import_module("relay.policy.units").any_network(value)
    return value
