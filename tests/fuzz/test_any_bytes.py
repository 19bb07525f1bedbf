"""Every target keeps its law: on its seeds, on drawn bytes, and in the long searches of `make crash`."""

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given, seed
from hypothesis import strategies as st

SHARE = 1 / 8
"""The part of the budget of `make crash` for all targets."""
_NAMES = (
    "addresses content listener_session log_segment message_file notes policy replies rewriting "
    "token_answers upstream_session"
)
TARGETS: dict[str, Any] = {name: import_module(f"tests.fuzz.{name}") for name in _NAMES.split()}


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_their_prefixes_keep_the_law(name: str) -> None:
    for raw in TARGETS[name].SEEDS:
        for size in {*range(0, len(raw), 1 + len(raw) // 5), len(raw)}:
            TARGETS[name].target(raw[:size])


def search(name: str) -> Callable[[], None]:
    """Return a search for bytes that break the law of a target."""
    tokens = st.sampled_from(sorted(set(TARGETS[name].TOKENS)))
    octets = st.lists(tokens | st.binary(max_size=8), max_size=16).map(b"".join)
    # In most targets an even first octet means octets as they are, an odd one a list of choices.
    inputs = st.builds(bytes.__add__, st.sampled_from([b"\0", b"\0\0", b"\1\0"]), octets) | st.binary(
        min_size=20, max_size=300
    ).map(lambda raw: b"\1" + raw)

    @given(inputs)
    def keeps_the_law(raw: bytes) -> None:
        TARGETS[name].target(raw)

    return keeps_the_law


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_keep_the_law(name: str) -> None:
    search(name)()


@pytest.mark.crash
@pytest.mark.parametrize("name", TARGETS)
def test_long_searches_break_no_law(name: str, crash_seed: int, crash_budget_s: float) -> None:
    until = time.monotonic() + crash_budget_s * SHARE / len(TARGETS)
    while time.monotonic() < until:
        seed(crash_seed)(search(name))()
        crash_seed += 1
