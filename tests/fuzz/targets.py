"""All targets by name: the only list of them."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Protocol, cast


class Target(Protocol):
    """The module of one target."""

    SEEDS: Sequence[bytes]
    TOKENS: Sequence[bytes]
    target: Callable[[bytes], None]


_NAMES = (
    "addresses content listener_session log_segment message_file notes policy replies rewriting "
    "token_answers upstream_session"
)
TARGETS = {name: cast("Target", import_module(f"tests.fuzz.{name}")) for name in _NAMES.split()}
