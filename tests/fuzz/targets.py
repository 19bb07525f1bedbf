"""All targets by name: the only list of them."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Protocol, cast

from tests.fuzz import (
    addresses,
    checkpoint,
    content,
    history,
    listener_session,
    log_segment,
    marks,
    message_file,
    notes,
    policy,
    proxy_header,
    replies,
    rewriting,
    token_answers,
    upstream_session,
)


class Target(Protocol):
    """One layer's reader, and what to begin with."""

    SEEDS: Sequence[bytes]
    TOKENS: Sequence[bytes]
    target: Callable[[bytes], None]


_MODULES: tuple[ModuleType, ...] = (
    addresses,
    checkpoint,
    content,
    history,
    listener_session,
    log_segment,
    marks,
    message_file,
    notes,
    policy,
    proxy_header,
    replies,
    rewriting,
    token_answers,
    upstream_session,
)
TARGETS = {module.__name__.rpartition(".")[2]: cast("Target", module) for module in _MODULES}
