"""Hooks as a policy states them: who is told of bounces and pauses, and how.  Pure."""

import enum
import hashlib
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from relay.policy.surroundings import PolicyPath, absolute_path, broken, inspector_of
from relay.policy.units import WEB_URL, AnyOrder, Duration, Section, Text, Unfit, choose, each, https_url

SECOND_NS = 1_000_000_000
MOST_HOOKS = 8


class HookEvent(enum.StrEnum):
    """What a hook is told of."""

    BOUNCED = "bounced"
    EXPIRED = "expired"
    PAUSED = "paused"
    STOPPED = "stopped"
    RESUMED = "resumed"
    SENDER_PAUSED = "sender_paused"
    ROUTE_DIVERTED = "route_diverted"
    ROUTE_DOWN = "route_down"
    ROUTE_RESTORED = "route_restored"


def _event(value: object) -> HookEvent:
    return HookEvent(choose(value, tuple(HookEvent)))


def _url(value: object) -> str:
    return https_url(value, "https://example.net/relay", "addresses")


class HookSettings(Section):
    """One receiver: `url` or `command`."""

    url: Annotated[str, BeforeValidator(_url)] | None = None
    """Gets a POST for each notice; https, or http on loopback."""
    secret_file: PolicyPath | None = None
    """Its content signs each POST (HMAC-SHA256); only its owner can read it."""
    command: Annotated[tuple[Text, ...] | None, AnyOrder, Field(validate_default=True)] = None
    """A program and its arguments, no shell; gets each notice on stdin.  Beside the policy where relative."""
    events: Annotated[tuple[HookEvent, ...], each(_event)] = tuple(HookEvent)
    timeout_ns: Duration = Field(default=10 * SECOND_NS, alias="timeout")
    """Of one attempt."""

    @field_validator("secret_file")
    @classmethod
    def _secret_signs(cls, secret_file: Path | None, info: ValidationInfo) -> Path | None:
        if secret_file is not None and (inspector := inspector_of(info)):
            inspector.signing_key(secret_file)
        return secret_file

    @field_validator("command")
    @classmethod
    def _is_one_receiver(
        cls, command: tuple[str, ...] | None, info: ValidationInfo
    ) -> tuple[str, ...] | None:
        url = info.data.get("url")
        if url is not None and command is not None:
            raise broken("expected a url or a command, got both; write two hooks", "..", "command")
        if "url" in info.data and url is None and command is None:
            raise broken("expected a url or a command", "..")
        if command is None:
            return None
        if info.data.get("secret_file") is not None:
            raise broken("a command gets no signature: secret_file belongs to a url", "..", "secret_file")
        if not command:
            raise ValueError("expected a program and its arguments, got none")
        if any("\0" in argument for argument in command):
            raise ValueError("expected text without NUL")
        try:
            program = absolute_path(command[0], info)
            if inspector := inspector_of(info):
                inspector.program(program)
        except Unfit as error:
            raise broken(error.plain, 0, shown=error.shown) from None
        except ValueError as error:
            raise broken(str(error), 0) from None
        return (str(program), *command[1:])

    @property
    def key(self) -> str:
        """Return what is the same as long as the receiver is: twelve hexadecimal digits."""
        receiver = self.url if self.command is None else "\0".join(self.command)
        return hashlib.sha256((receiver or "").encode()).hexdigest()[:12]

    @property
    def shown_url(self) -> str | None:
        """Return the URL as any output may show it.

        `…` stands for path and query, which may be secret, and makes it a URL that no policy takes.
        """
        rest = "" if self.url is None else self.url.removeprefix(self.shown)
        return self.url if rest in ("", "/") else f"{self.shown}/…"

    @property
    def shown(self) -> str:
        """Return the receiver as any output may name it: of a URL without its path, which may be secret."""
        if self.command is not None:
            return self.command[0]
        found = WEB_URL.match(self.url or "")
        return "" if found is None else f"{found['scheme']}://{found['host']}{found['port'] or ''}"


def _no_two_alike(hooks: tuple[HookSettings, ...]) -> tuple[HookSettings, ...]:
    if len(hooks) > MOST_HOOKS:
        raise broken(f"expected at most {MOST_HOOKS} hooks", MOST_HOOKS)
    first: dict[str, int] = {}
    for index, hook in enumerate(hooks):
        other = first.setdefault(hook.key, index)
        if other != index:
            raise broken(f"the same receiver as notify[{other}]: name all of its events there", index)
    return hooks


NotifySettings = Annotated[tuple[HookSettings, ...], AnyOrder, AfterValidator(_no_two_alike)]
