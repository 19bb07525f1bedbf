"""Whatever a policy says, it is a policy or faults to act on; `tests.fuzz.policy` has any bytes."""

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from relay.policy.faults import PolicyError
from relay.policy.source import parse_policy

HERE = Path("/etc/relay/policy.yaml")


def is_told_well(content: bytes) -> bool:
    """Whether the bytes became a policy, or faults that each name a place in them."""
    try:
        policy = parse_policy(content, HERE)
    except PolicyError as error:
        found = error.errors
    else:
        return bool(policy.upstreams)
    lines = content.count(b"\n") + content.count(b"\r") + 2
    assert found
    for fault in found:
        assert fault.path == HERE
        assert 1 <= fault.line <= lines
        assert fault.column >= 1
        assert fault.key
        assert fault.message
        assert str(fault).isprintable()
        for word in ("pydantic", "relay.policy", "Input should", "Value error", "PosixPath"):
            assert word not in str(fault)
    return False


SCALARS = st.integers().map(str) | st.sampled_from(
    re.findall(r"\S+", "null true -1 0 1 1m 0s 127.0.0.1:0 0.0.0.0:25 x none '..' [] {}")
)
KEYS = st.sampled_from(
    re.findall(
        r"\w+",
        "spool listen address clients tls key upstreams host auth user limits per messages recipients retry "
        "min max practice limit timeouts http nonsense isp lanes sender header client share ceiling default",
    )
)
FLOW = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda values: f"[{', '.join(values)}]"),
        st.dictionaries(KEYS, inner, max_size=5).map(
            lambda entries: "{" + ", ".join(f"{key}: {value}" for key, value in entries.items()) + "}"
        ),
    ),
    max_leaves=20,
)


@given(st.dictionaries(KEYS, FLOW, max_size=8))
def test_known_keys_in_any_place_are_a_policy_or_a_policy_error(entries: dict[str, str]) -> None:
    is_told_well("".join(f"{key}: {value}\n" for key, value in entries.items()).encode())
