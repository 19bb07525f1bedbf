"""The scalars of a policy."""

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import LONGEST_DURATION_NS
from relay.policy.units import (
    LARGEST_SIZE_BYTES,
    HostPort,
    Unfit,
    duration_ns,
    endpoint,
    is_loopback_host,
    network,
    own_name,
    size_bytes,
    upstream_host,
)

UNITS_NS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("1ms", 1_000_000),
        ("30s", 30 * 10**9),
        ("1.5h", 5400 * 10**9),
        ("0.000000001s", 1),
        ("5 d", 432_000 * 10**9),
        ("52w", 52 * 7 * 86_400 * 10**9),
        ("366d", LONGEST_DURATION_NS),
    ],
)
def test_duration_is_exact_in_nanoseconds(text: str, expected_ns: int) -> None:
    assert duration_ns(text) == expected_ns


@given(st.integers(min_value=1, max_value=10**6), st.sampled_from(sorted(UNITS_NS)))
def test_duration_of_a_whole_number_is_that_many_units(count: int, unit: str) -> None:
    expected_ns = count * UNITS_NS[unit]
    if expected_ns > LONGEST_DURATION_NS:
        with pytest.raises(ValueError, match="at most 366d"):
            duration_ns(f"{count}{unit}")
    else:
        assert duration_ns(f"{count}{unit}") == expected_ns


@given(st.one_of(st.text(), st.from_regex(r"[0-9]{0,6000}\.?[0-9]{0,12} ?[a-z]{0,2}")))
def test_any_text_is_a_duration_in_bounds_or_an_error(text: str) -> None:
    try:
        found_ns = duration_ns(text)
    except ValueError as error:
        words = str(error)
    else:
        assert 0 < found_ns <= LONGEST_DURATION_NS
        return
    assert "a duration" in words
    assert len(words) < 200


@pytest.mark.parametrize(
    "wrong",
    [60, True, None, "60", "-1s", "1", "s", "1 minute", "1m30s", "0s", "1e3s", "\N{ARABIC-INDIC DIGIT ONE}s"],
)
def test_duration_without_a_unit_or_above_zero_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="a duration"):
        duration_ns(wrong)


@pytest.mark.parametrize(
    ("value", "expected_bytes"), [(1, 1), ("1", 1), ("50M", 50 << 20), ("50 MiB", 50 << 20), ("2g", 2 << 30)]
)
def test_size_counts_in_units_of_1024(value: object, expected_bytes: int) -> None:
    assert size_bytes(value) == expected_bytes


@given(st.one_of(st.integers(), st.text(), st.booleans(), st.none()))
def test_size_of_anything_is_in_bounds_or_an_error_for_people(value: object) -> None:
    try:
        assert 0 < size_bytes(value) <= LARGEST_SIZE_BYTES
    except ValueError as error:
        assert "expected a size" in str(error)  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize("text", ["127.0.0.1:2525", "[::1]:25", "0.0.0.0:0", "[fe80::1%eth0]:25"])
def test_endpoint_is_written_as_it_was_read(text: str) -> None:
    assert str(endpoint(text)) == text


@pytest.mark.parametrize(
    "wrong",
    [
        "localhost:25",
        "127.0.0.1",
        "::1:25",
        "[127.0.0.1]:25",
        "127.0.0.1:65536",
        "127.0.0.1:",
        ":25",
        2525,
        "[::1]",
    ],
)
def test_endpoint_needs_an_ip_address_and_a_port(wrong: object) -> None:
    with pytest.raises(ValueError, match="expected ADDRESS:PORT"):
        endpoint(wrong)


def test_endpoint_knows_loopback() -> None:
    assert HostPort("127.9.9.9", 25).is_loopback
    assert HostPort("::1", 25).is_loopback
    assert not HostPort("0.0.0.0", 25).is_loopback


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("192.0.2.1", "192.0.2.1/32"),
        ("2001:db8::1", "2001:db8::1/128"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("fc00::/7", "fc00::/7"),
    ],
)
def test_a_bare_address_is_a_network_of_one(text: str, expected: str) -> None:
    assert network(text) == ip_network(expected)


def test_bits_behind_the_prefix_name_the_right_network() -> None:
    for written, right in (("192.168.1.5/24", "192.168.1.0/24"), ("2001:db8::1/32", "2001:db8::/32")):
        with pytest.raises(Unfit, match="it has bits set behind its prefix") as caught:
            network(written)
        assert caught.value.shown == f"'{written}' has bits set behind its prefix; did you mean {right}?"


@pytest.mark.parametrize("wide", ["0.0.0.0/0", "::/0", "0.0.0.0/1", "128.0.0.0/1", "2000::/3", "::/1"])
def test_a_network_of_strangers_is_refused(wide: str) -> None:
    with pytest.raises(ValueError, match="open relay"):
        network(wide)


@pytest.mark.parametrize("wrong", ["localhost", "10.0.0.0/33", "010.0.0.1", "fe80::1%eth0", "", 10, None])
def test_what_is_no_network_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="expected a network"):
        network(wrong)


@pytest.mark.parametrize("host", ["smtp.example.net", "localhost", "192.0.2.1", "::1", "a_b.c"])
def test_host_is_a_name_or_an_address(host: str) -> None:
    assert upstream_host(host) == host


def test_the_final_dot_of_a_host_goes() -> None:
    assert upstream_host("smtp.example.net.") == "smtp.example.net"


@pytest.mark.parametrize(
    "wrong", ["", "a b", "a..b", "-a.b", "192.0.2.300", "http://x", "x" * 254, "é.net", 5]
)
def test_what_is_no_host_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="expected a host name"):
        upstream_host(wrong)


def test_host_with_a_port_tells_where_the_port_goes() -> None:
    with pytest.raises(ValueError, match="write the port as a key of its own"):
        upstream_host("smtp.example.net:587")


def test_only_the_very_spelling_of_loopback_is_loopback() -> None:
    assert is_loopback_host("localhost")
    assert is_loopback_host("127.1.2.3")
    assert is_loopback_host("::1")
    # A name may resolve to anything, whatever it looks like.
    assert not is_loopback_host("localhost.example.net")


@pytest.mark.parametrize("name", ["mail.example.net", "[192.0.2.1]", "[IPv6:2001:db8::1]"])
def test_own_name_is_a_domain_or_an_address_literal(name: str) -> None:
    assert own_name(name) == name


@pytest.mark.parametrize("wrong", ["", "a b", "a\r\nb", "[x]", "a>b", None])
def test_own_name_cannot_break_a_command_or_a_header(wrong: object) -> None:
    with pytest.raises(ValueError, match="expected a domain name"):
        own_name(wrong)
