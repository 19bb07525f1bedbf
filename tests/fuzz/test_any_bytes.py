"""Every target keeps its law, on its seeds and on drawn bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_their_prefixes_keep_the_law(name: str) -> None:
    for seed in TARGETS[name].SEEDS:
        for size in {*range(0, len(seed), 1 + len(seed) // 5), len(seed)}:
            TARGETS[name].target(seed[:size])


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_keep_the_law(name: str) -> None:
    tokens = st.sampled_from(sorted(set(TARGETS[name].TOKENS)))
    octets = st.lists(tokens | st.binary(max_size=8), max_size=16).map(b"".join)
    # In most targets an even first octet means octets as they are, an odd one a list of choices.
    inputs = st.builds(bytes.__add__, st.sampled_from([b"\0", b"\0\0", b"\1\0"]), octets) | st.binary(
        min_size=20, max_size=300
    ).map(lambda raw: b"\1" + raw)

    @given(inputs)
    def keeps_the_law(raw: bytes) -> None:
        TARGETS[name].target(raw)

    keeps_the_law()
