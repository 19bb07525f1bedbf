"""The rules between the keys of a policy that need more than one line to break."""

import pytest

from tests.unit.policy.examples import SMALL, with_upstream
from tests.unit.policy.reading import only_fault, parse, places


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_auth_without_tls_is_allowed_on_loopback(host: str) -> None:
    text = with_upstream(f"host: '{host}'", "tls: none", "auth: {user: a, password_env: A}")
    assert parse(text).upstreams["isp"].auth is not None


@pytest.mark.parametrize("host", ["smtp.example.net", "localhost.example.net", "192.0.2.1", "0.0.0.0"])
def test_auth_without_tls_is_refused_elsewhere(host: str) -> None:
    text = with_upstream(f"host: '{host}'", "auth: {user: a, password_env: A}", "tls: none")
    assert places(text) == ["9:10 upstreams.isp.tls"]
    assert "in the clear" in only_fault(text).message


def test_retry_times_are_in_order_against_the_defaults_too() -> None:
    assert places(f"{SMALL}retry: {{min: 5h, warn_after: 9d}}\n") == [
        "10:14 retry.min",
        "10:30 retry.warn_after",
    ]


def test_no_two_doors_share_an_address() -> None:
    text = SMALL.replace("upstreams:", "  - address: 127.0.0.1:2525\n  - address: 127.0.0.1:2526\nupstreams:")
    assert places(text) == ["5:14 listen[1].address"]
    assert places(f"{SMALL}http: 127.0.0.1:2525\n") == ["10:7 http"]
    practice = "practice: {address: '127.0.0.1:2525', password_file: p, limit: {messages: 1, per: 1s}}\n"
    assert places(SMALL + practice) == ["10:21 practice.address"]


@pytest.mark.parametrize("name", ["ISP", "a.b", "a/b", "..", "''", "ü", "a b", "x" * 65])
def test_the_name_of_an_upstream_is_fit_for_a_path_and_a_label(name: str) -> None:
    fault = only_fault(SMALL.replace("isp:", f"{name}:"))
    assert (fault.line, fault.column) == (6, 3)
    assert "a-z, 0-9, _ and -" in fault.message
