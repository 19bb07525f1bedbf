"""Whatever the bytes are: the law of every target, on seeds, on what once broke it, on what is drawn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.regressions import REGRESSIONS
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_their_every_prefix_keep_the_law(name: str) -> None:
    for seed in TARGETS[name].SEEDS:
        for size in {*range(0, len(seed), 1 + len(seed) // 20), len(seed)}:
            TARGETS[name].target(seed[:size])


@pytest.mark.parametrize(
    ("name", "what"), [(name, what) for name in REGRESSIONS for what in REGRESSIONS[name]]
)
def test_what_once_broke_a_law_keeps_it(name: str, what: str) -> None:
    TARGETS[name].target(REGRESSIONS[name][what])


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_keep_the_law(name: str) -> None:
    tokens = st.sampled_from(sorted(set(TARGETS[name].TOKENS)))
    octets = st.lists(tokens | st.binary(max_size=8), max_size=16).map(b"".join)
    # An even first octet of most targets means octets as they are, an odd one a list of choices.
    inputs = st.builds(bytes.__add__, st.sampled_from([b"\0", b"\0\0", b"\1\0"]), octets) | st.binary(
        min_size=20, max_size=300
    ).map(lambda raw: b"\1" + raw)

    @given(inputs)
    def keeps_the_law(raw: bytes) -> None:
        TARGETS[name].target(raw)

    keeps_the_law()
