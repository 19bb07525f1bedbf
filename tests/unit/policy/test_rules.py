"""The rules between the keys of a policy, each at its place."""

import pytest

from tests.unit.policy.examples import SMALL, with_listen, with_upstream
from tests.unit.policy.reading import only_fault, parse, places


@pytest.mark.parametrize(
    ("lines", "place", "words"),
    [
        (["address: 0.0.0.0:2525"], "3:14 listen[0].address", "open relay"),
        (["address: '[::]:2525'", "clients: []"], "3:14 listen[0].address", "open relay"),
        (["address: 0.0.0.0:2525", "clients: [0.0.0.0/0]"], "4:15 listen[0].clients[0]", "open relay"),
        (
            ["address: 127.0.0.1:2525", "clients: [10.0.0.0/8, '::/0']"],
            "4:27 listen[0].clients[1]",
            "open relay",
        ),
        (
            ["address: 192.0.2.1:25", "users_file: users"],
            "4:17 listen[0].users_file",
            "AUTH needs a certificate",
        ),
        (["address: 127.0.0.1:25", "key: key.pem"], "4:10 listen[0].key", "without a certificate"),
        (["address: 127.0.0.1:465", "tls: implicit"], "4:10 listen[0].tls", "needs a certificate"),
        (["address: 127.0.0.1:465", "tls: none"], "4:10 listen[0].tls", "expected starttls or implicit"),
    ],
)
def test_a_listener_that_is_unsafe_is_refused(lines: list[str], place: str, words: str) -> None:
    text = with_listen(*lines)
    assert places(text) == [place]
    assert words in only_fault(text).message


@pytest.mark.parametrize(
    ("users", "place", "words"),
    [
        ("{a: {senders: a}}", "5:26 listen[0].users.?.senders", "expected an address"),
        ("{a: {senders: []}}", "5:26 listen[0].users.?.senders", "expected at least one"),
        ("{a: {max_queued: 0}}", "5:29 listen[0].users.?.max_queued", "at least 1"),
        ("{a: {sender: a@b}}", "5:17 listen[0].users.?.sender", "senders"),
    ],
)
def test_what_a_user_may_is_checked_at_its_place(users: str, place: str, words: str) -> None:
    text = with_listen("address: 127.0.0.1:25", "users_file: users", f"users: {users}")

    assert places(text) == [place]
    assert words in only_fault(text).message


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_auth_without_tls_is_allowed_on_loopback(host: str) -> None:
    text = with_upstream(f"host: '{host}'", "tls: none", "auth: {user: a, password_env: A}")
    assert parse(text).upstreams["isp"].auth is not None


@pytest.mark.parametrize("host", ["smtp.example.net", "localhost.example.net", "192.0.2.1", "0.0.0.0"])
def test_auth_without_tls_is_refused_elsewhere(host: str) -> None:
    text = with_upstream(f"host: '{host}'", "auth: {user: a, password_env: A}", "tls: none")
    assert places(text) == ["9:10 upstreams.isp.tls"]
    assert "in the clear" in only_fault(text).message


@pytest.mark.parametrize(
    ("auth", "place"),
    [
        ("{user: a}", "8:11 upstreams.isp.auth"),
        ("{user: a, password_file: null}", "8:11 upstreams.isp.auth"),
        ("{user: a, password_file: f, password_env: E}", "8:53 upstreams.isp.auth.password_env"),
        ("{password_credential: c, user: a, password_env: E}", "8:33 upstreams.isp.auth.password_credential"),
        ("{user: a, password_env: a-b}", "8:35 upstreams.isp.auth.password_env"),
        ("{user: a, password_credential: ../x}", "8:42 upstreams.isp.auth.password_credential"),
        ("{user: a, password_credential: ..}", "8:42 upstreams.isp.auth.password_credential"),
    ],
)
def test_auth_has_exactly_one_password(auth: str, place: str) -> None:
    assert places(with_upstream("host: smtp.example.net", f"auth: {auth}")) == [place]


@pytest.mark.parametrize(
    ("limit", "place"),
    [
        ("{per: 1m}", "9:9 upstreams.isp.limits[0]"),
        ("{messages: null, per: 1m}", "9:9 upstreams.isp.limits[0]"),
        ("{recipients: 1, messages: 1, per: 1m}", "9:22 upstreams.isp.limits[0].recipients"),
        ("{messages: 0, per: 1m}", "9:20 upstreams.isp.limits[0].messages"),
        ("{recipients: -1, per: 1m}", "9:22 upstreams.isp.limits[0].recipients"),
        ("{connections: 3, messages: 1, per: 1m}", "9:23 upstreams.isp.limits[0].connections"),
        ("{recipients: 3, messages: 1, connections: 2, per: 1m}", "9:51 upstreams.isp.limits[0].connections"),
        ("{connections: 0, per: 1m}", "9:23 upstreams.isp.limits[0].connections"),
        ("{messages: 1, per: 1m, for_each: subject}", "9:42 upstreams.isp.limits[0].for_each"),
        ("{connections: 1, per: 1m, for_each: sender}", "9:45 upstreams.isp.limits[0].for_each"),
    ],
)
def test_a_limit_has_exactly_one_unit(limit: str, place: str) -> None:
    assert places(SMALL.replace("{messages: 8, per: 1m}", limit)) == [place]


@pytest.mark.parametrize(
    ("retry", "expected"),
    [
        ("{min: 2h, max: 1h}", ["10:14 retry.min"]),
        ("{max: 1m}", ["10:14 retry.max"]),
        ("{min: 5h}", ["10:14 retry.min"]),
        ("{lifetime: 4h, warn_after: 4h}", ["10:35 retry.warn_after"]),
        ("{warn_after: 5d}", ["10:21 retry.warn_after"]),
        ("{min: 5h, warn_after: 9d}", ["10:14 retry.min", "10:30 retry.warn_after"]),
    ],
)
def test_retry_times_are_in_order_against_the_defaults_too(retry: str, expected: list[str]) -> None:
    assert places(f"{SMALL}retry: {retry}\n") == expected


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
