"""Any bytes as a policy give a policy, or faults that each name a place, with bounded work."""

from pathlib import Path

from relay.policy.document import MAX_NODES
from relay.policy.source import PolicyError, parse_policy
from tests.fuzz.choices import Choices
from tests.fuzz.work import bounded
from tests.unit.policy.examples import INTERFACE, SMALL

LINES = sorted({line.encode() for line in INTERFACE.splitlines(keepends=True)})
TOKENS = [
    b"\n", b"  ", b"- ", b": ", b":", b"{", b"}", b"[", b"]", b"&a ", b"*a", b"<<: *a\n", b"!!str ",
    b"%YAML 1.2\n", b"---\n", b"...\n", b"|\n", b">\n", b'"', b"'", b"#", b"\t", b"\0", b"\xff",
    b"\xef\xbb\xbf", b"\xc2\x85", b"null", b"true", b"-1", b"9" * 40, b"[" * 30, b"{a: " * 30, b"? ",
    b"\\x41", b"1m", b"0s", b"::1", *LINES,
]  # fmt: skip
CALLS_A_NODE = 400
"""The calls that one value may cost in parser, tree and model, with some to spare."""
CALLS_OF_ALIASES = 20 * MAX_NODES
"""The calls for nodes that aliases repeat: they are read until there are too many."""


def judge(content: bytes) -> None:
    """Assert that the bytes give a policy, or faults that name a place in them, without a library's words."""
    try:
        assert parse_policy(content, Path("/etc/relay/policy.yaml")).upstreams
    except PolicyError as error:
        faults = error.errors
    else:
        return
    assert faults
    for fault in faults:
        assert 1 <= fault.line <= content.count(b"\n") + content.count(b"\r") + 2
        assert fault.column >= 1
        assert fault.key
        assert fault.message
        assert str(fault).isprintable()
        for word in ("pydantic", "relay.policy", "Input should", "Value error", "PosixPath"):
            assert word not in str(fault)


def target(raw: bytes) -> None:
    choices = Choices(raw)
    match choices.number(3):
        case 0:
            content = choices.rest()
        case 1:
            content = choices.spoiled(choices.pick((INTERFACE, SMALL)).encode(), TOKENS)
        case _:
            content = b"".join(choices.pick(TOKENS) for _ in range(choices.number(60)))
    with bounded(50_000 + CALLS_OF_ALIASES + CALLS_A_NODE * len(content)):
        judge(content)


BOMB = b"".join(b"k%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 9))
SEEDS = [
    b"\0" + INTERFACE.encode(),
    b"\0" + SMALL.encode(),
    b"\0k0: &a0 [x]\n" + BOMB,
    b"\1\0\2\6\1\0\3",
    b"\2\20" + bytes(range(60)),
]
