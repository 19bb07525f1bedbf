"""What verbs have in common: options, the relay or the spool that they ask, failures, text for a terminal.

A relay that runs is asked even though an edit broke its policy since: it goes on by its last good one.  So of
the file only the key `spool` is read first, and nothing is loaded that checks a policy (0.2 s) but where a
value or a verb needs it.
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


@contextlib.contextmanager
def own_spool(policy: "Policy") -> Iterator[None]:
    """Refuse a folder without a spool, or with one of another user, engine or version."""
    from relay.control.offline import refuse_strangers  # noqa: PLC0415 - few verbs need it
    from relay.spool.disk.durable import RealDisk  # noqa: PLC0415 - as above
    from relay.spool.engines import engine_of  # noqa: PLC0415 - as above

    try:
        if engine_of(str(policy.spool), RealDisk()) is None:
            raise Failed(f"{policy.spool}: no spool is here", os.EX_NOINPUT)
        refuse_strangers(policy.spool)
        yield
    except ValueError as error:
        raise Failed(str(error), os.EX_CONFIG) from error


def say(text: object, *, err: bool = False) -> None:
    click.echo(printable(text), err=err)


def printable(text: object) -> str:
    """Return text that any terminal and any encoding of stdout takes: one line, nothing that steers."""
    plain = str(text)
    if plain.isprintable():
        return plain
    # Surrogates are not printable either.
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in plain)


MOST_BYTES = 1 << 20
"""Of a policy that are read for its spool."""
_SPOOL = re.compile(r"^spool:.*(?:\n[ \t].*)*", re.MULTILINE)
"""The key, and all that is indented below it: the rest may be no YAML."""
_NO_UTF_8 = re.compile("[\ud800-\udfff]")
FROM_STDIN = "-"


class Where(NamedTuple):
    policy_path: Path
    spool: Path | None
    """As the operator named it; None: the policy says it."""


def where_options(verb: CliVerb) -> CliVerb:
    """Give a verb `--policy FILE` and `--spool DIR`, which it takes as `where: Where`.

    Its texts are asked of a relay, as JSON: what is no UTF-8 is refused.
    """

    @functools.wraps(verb)
    def located(*arguments: Any, policy_path: Path, spool: Path | None, **others: Any) -> Any:
        for value in others.values():
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str) and not text.isascii() and _NO_UTF_8.search(text):
                    raise click.UsageError(f"{printable(text)} is not UTF-8")
        return verb(*arguments, where=Where(policy_path, spool), **others)

    return policy_option(
        click.option(
            "--spool",
            type=click.Path(path_type=Path),
            callback=named,
            metavar="DIR",
            help="Ask the relay that runs on this spool, whatever the policy says.",
        )(located)
    )


@contextlib.contextmanager
def asked(where: Where) -> "Iterator[Session]":
    """Give the relay that runs, or the spool of one that is down, as a start would read it."""
    session: Session
    session, policy = located(where)
    with contextlib.ExitStack() as stack:
        if policy is not None:
            # Imported only here: with a running relay no sender is loaded.
            from relay.control.offline import offline  # noqa: PLC0415 - see above

            try:
                session = stack.enter_context(offline(policy))
            except ValueError as error:
                raise Failed(str(error), os.EX_CONFIG) from error
        yield session


def located(where: Where) -> "tuple[ControlClient, Policy | None]":
    """Return the relay on the spool; and the policy, if none runs.

    Raises PolicyError where there is neither, and Failed where a spool was named on which none runs.
    """
    from relay.control.client import ControlClient  # noqa: PLC0415 - see the beginning

    spool = where.spool or _spool_in(where.policy_path)
    if spool is not None and (client := ControlClient(spool)).is_up():
        return client, None
    from relay.policy.source import PolicyError  # noqa: PLC0415 - see the beginning

    try:
        policy = _policy_in(where.policy_path)
    except PolicyError:
        if where.spool is None:
            click.echo("no relay was found by this policy; --spool DIR asks the one on DIR", err=True)
        raise
    if where.spool is not None and policy.spool.resolve() != where.spool.resolve():
        about = f"{where.policy_path} is about another spool, {policy.spool}"
        raise Failed(f"no relay runs on {spool}, and {about}", os.EX_UNAVAILABLE)
    client = ControlClient(policy.spool)
    return client, None if client.is_up() else policy


def found_policy(where: Where) -> "Policy":
    """Return the policy; where that is broken or another spool was named, the one by which the relay runs."""
    from relay.policy.source import PolicyError, parse_policy  # noqa: PLC0415 - see the beginning

    if where.spool is None:
        with contextlib.suppress(PolicyError):
            return _policy_in(where.policy_path)
    client, policy = located(where)
    if policy is not None:
        return policy
    in_force = client.policy()
    return parse_policy(in_force.text.encode(), in_force.path)


def _policy_in(path: Path) -> "Policy":
    from relay.policy.source import read_policy  # noqa: PLC0415 - see the beginning

    # An operator need not be the user who may read its secrets.
    return read_policy(path, looks_at_files=False)


def _spool_in(policy_path: Path) -> Path | None:
    """Return where the spool is, by a policy that may be no good otherwise; None where that is not told."""
    import yaml  # noqa: PLC0415 - some verbs need no policy

    try:
        key = _SPOOL.search(read_regular(policy_path, MOST_BYTES).decode("utf-8", "replace"))
        said = yaml.safe_load(key[0])["spool"] if key else None
    except (OSError, yaml.YAMLError, RecursionError):
        return None
    path = said.get("path") if isinstance(said, dict) else said
    return policy_path.absolute().parent / path if isinstance(path, str) else None


def checked_ids(words: Sequence[str]) -> list[QueueId]:
    """Return ids, each once, those on stdin in the place of `-`.  Raises UsageError."""
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
    ("--recipient", "recipients", "WHO", _sender, "By a recipient left."),
    (
        *("--domain", "domains", "DOMAIN", checked("relay.policy.lane", "domain_pattern")),
        "By the domain of a recipient left; *.x.example: below it.",
    ),
    ("--user", "users", "NAME", _text, "By who had logged in, or a pattern."),
    (
        *("--client", "clients", "HOST", checked("relay.cli.options", "client_pattern")),
        "By the client's address, network or name.",
    ),
    ("--lane", "lanes", "NAME", _text, "By lane."),
    ("--upstream", "upstreams", "NAME", _text, "By upstream, also of a part of the message."),
    ("--state", "states", "", None, "By state."),
    ("--older", "older_ns", "AGE", duration, "At least so old: 2h."),
    ("--size", "size_bytes", "SIZE", checked("relay.policy.units", "size_bytes"), "At least so large: 1M."),
)
"""Option, field of `Filters`, what stands for its value, what reads it, help."""


def filter_options(verb: CliVerb) -> CliVerb:
    """Give a verb the options, which it takes as `filters: Filters`."""
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
    """Raise ValueError for what looks like a network and is none."""
    if "/" in value:
        import_module("relay.policy.units").any_network(value)
    return value
