"""Hooks as a policy states them: who is told of bounces and pauses, and how.  Pure."""

import enum
import hashlib
from collections.abc import Iterator
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationInfo

from relay.clock import SECOND_NS
from relay.policy.document import Fault
from relay.policy.units import (
    WEB_URL,
    Duration,
    NotEmpty,
    OneOrMore,
    PolicyPath,
    Section,
    Text,
    absolute_path,
    https_url,
)

MOST_HOOKS = 8


class HookEvent(enum.StrEnum):
    BOUNCED = "bounced"
    EXPIRED = "expired"
    PAUSED = "paused"
    STOPPED = "stopped"
    RESUMED = "resumed"
    SENDER_PAUSED = "sender_paused"
    ROUTE_DIVERTED = "route_diverted"
    ROUTE_DOWN = "route_down"
    ROUTE_RESTORED = "route_restored"


def _server(url: str) -> str:
    found = WEB_URL.match(url)
    return "" if found is None else f"{found['scheme']}://{found['host']}{found['port'] or ''}"


def _without_path(url: str) -> str:
    """Return a URL as any output may show it: its path may be secret.

    `…` stands for path and query, and makes it a URL that no policy takes.
    """
    return url if url.removeprefix(_server(url)) in ("", "/") else f"{_server(url)}/…"


def _beside_the_policy(value: object, info: ValidationInfo) -> object:
    match value:
        case [str() as program, *arguments]:
            return (str(absolute_path(program, info)), *arguments)
        case _:
            return value


HookUrl = Annotated[
    str,
    BeforeValidator(lambda value: https_url(value, "https://example.net/relay", "addresses")),
    PlainSerializer(_without_path),
]


class HookSettings(Section):
    url: HookUrl | None = None
    secret_file: PolicyPath | None = None
    command: Annotated[tuple[Text, ...], NotEmpty, BeforeValidator(_beside_the_policy)] | None = None
    events: Annotated[tuple[HookEvent, ...], OneOrMore, NotEmpty] = tuple(HookEvent)
    timeout_ns: Duration = Field(default=10 * SECOND_NS, alias="timeout")

    def faults(self) -> Iterator[Fault]:
        if self.url is not None and self.command is not None:
            yield Fault("expected a url or a command, got both; write two hooks", ("command",))
        if self.url is None and self.command is None:
            yield Fault("expected a url or a command")
        if self.command is not None and self.secret_file is not None:
            yield Fault("a command gets no signature: secret_file belongs to a url", ("secret_file",))

    @property
    def key(self) -> str:
        """Return what is the same as long as the receiver is: twelve hexadecimal digits."""
        receiver = self.url if self.command is None else "\0".join(self.command)
        return hashlib.sha256((receiver or "").encode()).hexdigest()[:12]

    @property
    def shown(self) -> str:
        """Return the receiver as any output may name it: of a URL without its path, which may be secret."""
        return _server(self.url or "") if self.command is None else self.command[0]


def faults_of_hooks(hooks: tuple[HookSettings, ...]) -> Iterator[Fault]:
    keys = [hook.key for hook in hooks]
    for index, key in enumerate(keys):
        if (first := keys.index(key)) != index:
            yield Fault(f"the same receiver as notify[{first}]: name all of its events there", (index,))
