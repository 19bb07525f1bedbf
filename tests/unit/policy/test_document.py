"""YAML with positions, and the scalars of a policy: what each means, and the words that refuse it."""

from collections.abc import Callable, Mapping
from ipaddress import ip_network
from typing import Any

import pytest
from pydantic import TypeAdapter

from relay.clock import LONGEST_DURATION_NS
from relay.policy.document import Document, Fault, Mark
from relay.policy.units import (
    HostPort,
    OwnName,
    duration_ns,
    endpoint,
    https_url,
    is_loopback_host,
    network,
    size_bytes,
    source_address,
    upstream_host,
)


def fault_in(content: str | bytes) -> Fault:
    (fault,) = Document(content if isinstance(content, bytes) else content.encode()).faults
    return fault


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("true", True), ("false", False), ("null", None), ("~", None), ("", None), ("0", 0), ("-3", -3)),
        *(("10000", 10000), ("no", "no"), ("Yes", "Yes"), ("on", "on"), ("TRUE", "TRUE")),
        *(("22:22", "22:22"), ("0777", "0777"), ("0o17", "0o17"), ("0x1f", "0x1f"), ("1_000", "1_000")),
        *(("1e3", "1e3"), ("1.5", "1.5"), ("2024-01-01", "2024-01-01"), ('"8"', "8"), ("'true'", "true")),
        ("''", ""),
    ],
)
def test_a_scalar_means_what_yaml_1_2_says_and_no_more(text: str, expected: object) -> None:
    document = Document(f"key: {text}\n".encode())
    assert document.faults == []
    found = document.value
    assert found == {"key": expected}
    assert isinstance(found, dict)
    assert type(found["key"]) is type(expected)


def test_marks_count_lines_and_columns_as_an_editor_does() -> None:
    document = Document("\ufeff# ü\r\nä: {ö: [x, yy]}\r\nb:\r\n  - c: d\r\n".encode())
    assert document.mark_of(["ä"]) == Mark(2, 4)
    assert document.mark_of(["ä", "ö", 1]) == Mark(2, 12)
    assert document.mark_of(["ä", "ö"], of_key=True) == Mark(2, 5)
    assert document.mark_of(["b", 0, "c"]) == Mark(4, 8)
    assert document.mark_of(["b", 0, "missing"]) == Mark(4, 5)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        *(("a: *x", "undefined alias"), ("a: &x [*x]", "nested deeper")),
        ("a: &x 1\nb: &x 2", "duplicate anchor"),
        *(("a: !!str 8", "tags"), ("a: !secret hunter2", "tags"), ("!!python/object:os.system [x]", "tags")),
        *(("[a]: 1", "a key must be plain text"), ("a: 1\n--- \nb: 2", "a single document"), (b"", "empty")),
        *(("a: |\n  two\n  lines\n", "control character"), ('a: "\\e[31m"', "control character")),
        *(('a: "\\u202e"', "control character"), ("a: \x07", "U+0007"), (b"a: \x00", "U+0000")),
        *(("a: \x85", "U+0085"), ("a: \u2028", "U+2028")),
        *((b"a: \xff", "not UTF-8"), ("a: b".encode("utf-16"), "not UTF-8")),
        *((text, "not YAML") for text in ("a: [1", "a: 'x", "a: b: c", "%YAML 9.9\n---\na")),
        *(("a: [x, ::1]", "an IPv6 address needs quotes"), ("[" * 50_000, "nested deeper")),
        *(("a:\n\tb: 1", "a tab"), ("a:\n  b: 1\n  \tc: 1", "a tab")),
    ],
)
def test_yaml_that_a_policy_may_not_hold_is_one_fault(content: str | bytes, word: str) -> None:
    message = fault_in(content).message
    assert word in message
    assert "hunter2" not in message


HOUR_NS = 3600 * 10**9
Read = Callable[[Any], object]


own_name = TypeAdapter(OwnName).validate_python


def web_url(value: object) -> str:
    return https_url(value, "https://example.net", "addresses")


MEANINGS: dict[Read, Mapping[Any, object]] = {
    duration_ns: {"1ms": 10**6, "30s": 30 * 10**9, "5 d": 120 * HOUR_NS, "1.5h": HOUR_NS * 3 // 2}
    | {"0.000000001s": 1, "52w": 364 * 24 * HOUR_NS, "366d": LONGEST_DURATION_NS},
    size_bytes: {1: 1, "1": 1, "50M": 50 << 20, "50 MiB": 50 << 20, "2g": 2 << 30},
    endpoint: {"127.0.0.1:2525": HostPort("127.0.0.1", 2525), "[::1]:25": HostPort("::1", 25)}
    | {"0.0.0.0:0": HostPort("0.0.0.0", 0), "[fe80::1%eth0]:25": HostPort("fe80::1%eth0", 25)},
    network: {"192.0.2.1": ip_network("192.0.2.1/32"), "2001:db8::1": ip_network("2001:db8::1/128")}
    | {"10.0.0.0/8": ip_network("10.0.0.0/8"), "fc00::/7": ip_network("fc00::/7")},
    upstream_host: {host: host for host in ("smtp.example.net", "localhost", "192.0.2.1", "::1", "a_b.c")}
    | {"smtp.example.net.": "smtp.example.net"},
    own_name: {name: name for name in ("mail.example.net", "[192.0.2.1]", "[IPv6:2001:db8::1]")},
}
REFUSED: list[tuple[Read, str, list[object]]] = [
    (duration_ns, "a duration", [60, True, None, "60", "-1s", "1", "s", "1m30s", "0s", "1e3s", "367d"]),
    (size_bytes, "expected a size", [0, -1, True, None, "", "M", "1.5M", "1e3", "99999999T"]),
    (endpoint, "expected ADDRESS:PORT", ["localhost:25", "127.0.0.1", "::1:25", "[127.0.0.1]:25"]),
    (endpoint, "expected ADDRESS:PORT", ["127.0.0.1:65536", "127.0.0.1:", ":25", 2525, "[::1]"]),
    (network, "open relay", ["0.0.0.0/0", "::/0", "0.0.0.0/1", "128.0.0.0/1", "2000::/3", "::/1"]),
    (network, "expected a network", ["localhost", "10.0.0.0/33", "010.0.0.1", "fe80::1%eth0", "", 10, None]),
    (network, "did you mean 192.168.1.0/24", ["192.168.1.5/24"]),
    (upstream_host, "expected a host name", ["", "a b", "a..b", "-a.b", "192.0.2.300", "http://x"]),
    (upstream_host, "expected a host name", ["x" * 254, "é.net"]),
    (upstream_host, "the port goes in the key port", ["smtp.example.net:587"]),
    (source_address, "an IP address of this host", ["0.0.0.0", "224.0.0.1", "localhost", "fe80::1%eth0", 5]),
    (web_url, "expected a URL", ["ftp://a.example", "https://a.example:99999/", "https://a.example/x#y", 5]),
    # These would break a command or a header.
    (own_name, "expected a domain name", ["", "a b", "a\r\nb", "[x]", "a>b"]),
]  # fmt: skip


@pytest.mark.parametrize("read", MEANINGS, ids=lambda read: read.__name__)
def test_scalars_are_read_into_their_values(read: Read) -> None:
    assert {written: read(written) for written in MEANINGS[read]} == MEANINGS[read]


@pytest.mark.parametrize(("read", "words", "wrong"), REFUSED)
def test_a_wrong_scalar_is_refused_with_its_expected_form(
    read: Read, words: str, wrong: list[object]
) -> None:
    for each in wrong:
        with pytest.raises(ValueError, match=words):
            read(each)


def test_only_localhost_and_loopback_addresses_are_loopback() -> None:
    assert all(map(is_loopback_host, ("localhost", "127.1.2.3", "::1")))
    # Any other name may resolve to any address.
    assert not any(map(is_loopback_host, ("localhost.example.net", "0.0.0.0", "192.0.2.1")))
