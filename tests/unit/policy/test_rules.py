"""The rules between the keys of a policy, each at its place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import LONGEST_DURATION_NS
from relay.policy.limits import LimitSettings
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
    "lines",
    [
        ["address: 127.0.0.1:2525"],
        ["address: '[::1]:2525'", "users_file: users"],
        ["address: 0.0.0.0:2525", "clients: [10.0.0.0/8]"],
        ["address: 0.0.0.0:465", "users_file: users", "certificate: c.pem", "tls: implicit", "key: k.pem"],
    ],
)
def test_a_listener_that_is_safe_is_taken(lines: list[str]) -> None:
    assert len(parse(with_listen(*lines)).listen) == 1


@pytest.mark.parametrize(
    ("users", "place", "words"),
    [
        ("{a: {senders: a}}", "5:26 listen[0].users.a.senders", "expected an address"),
        ("{a: {senders: []}}", "5:26 listen[0].users.a.senders", "expected at least one"),
        ("{a: {max_queued: 0}}", "5:29 listen[0].users.a.max_queued", "above zero"),
        ("{a: {sender: a@b}}", "5:17 listen[0].users.a.sender", "senders"),
    ],
)
def test_what_a_user_may_is_checked_at_its_place(users: str, place: str, words: str) -> None:
    text = with_listen("address: 127.0.0.1:25", "users_file: users", f"users: {users}")

    assert places(text) == [place]
    assert words in only_fault(text).message


def test_nobody_logs_in_without_a_users_file() -> None:
    text = with_listen("address: 127.0.0.1:25", "users: {a: {senders: a@b.example}}")

    assert places(text) == ["4:12 listen[0].users"]
    assert "users_file" in only_fault(text).message


def test_an_open_relay_is_told_beside_an_unrelated_fault() -> None:
    text = with_listen("address: 0.0.0.0:2525", "max_errors: 0", "colour: red")
    assert places(text) == ["3:14 listen[0].address", "4:17 listen[0].max_errors", "5:5 listen[0].colour"]


def test_a_rule_is_silent_where_what_it_is_about_was_refused() -> None:
    assert places(with_listen("address: 0.0.0.0:25", "clients: [x]")) == ["4:15 listen[0].clients[0]"]
    assert places(with_listen("address: nowhere", "users_file: users")) == ["3:14 listen[0].address"]


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
    ("limit", "label"),
    [
        ("{messages: 8, per: 1m}", "8 messages per 60s"),
        ("{connections: 30, per: 5m}", "30 connections per 300s"),
        ("{messages: 8, per: 30d}", "8 messages per 2592000s"),
        ("{messages: 8, per: 1000001s}", "8 messages per 1000001s"),
        ("{messages: 8, per: 300.25ms}", "8 messages per 0.30025s"),
        ("{messages: 8, per: 2.000000001s}", "8 messages per 2.000000001s"),
        (
            "{recipients: 100, per: 1h, for_each: recipient_domain}",
            "100 recipients per 3600s for each recipient domain",
        ),
    ],
)
def test_a_limit_shows_itself_in_words(limit: str, label: str) -> None:
    text = SMALL.replace("{messages: 8, per: 1m}", limit)
    (stated,) = parse(text).upstreams["isp"].limits
    assert (stated.label, label.startswith(f"{stated.count} {stated.unit}")) == (label, True)


@given(st.integers(1, LONGEST_DURATION_NS), st.integers(1, LONGEST_DURATION_NS))
def test_two_periods_have_one_label_only_where_they_are_one(one_ns: int, other_ns: int) -> None:
    labels = {
        LimitSettings.model_construct(messages=8, per=per_ns).label
        for per_ns in (one_ns, one_ns + 1, other_ns)
    }
    assert len(labels) == len({one_ns, one_ns + 1, other_ns})


@pytest.mark.parametrize(
    "again",
    ["{messages: 8, per: 60s}", "{messages: 8, per: 1m}", "{per: 60000ms, messages: 8}"],
)
def test_a_limit_is_not_stated_twice(again: str) -> None:
    text = SMALL.replace("{messages: 8, per: 1m}", "{messages: 8, per: 1m}\n      - {recipients: 8, per: 1m}")
    text = text.replace("{recipients: 8, per: 1m}", f"{{recipients: 8, per: 1m}}\n      - {again}")
    fault = only_fault(text)
    assert places(text) == ["11:9 upstreams.isp.limits[2]"]
    assert "the same limit as limits[0], 8 messages per 60s" in fault.message


@pytest.mark.parametrize(
    "other",
    ["{messages: 9, per: 1m}", "{messages: 8, per: 61s}", "{messages: 8, per: 1m, for_each: sender}"],
)
def test_limits_that_differ_in_anything_stand_beside_each_other(other: str) -> None:
    text = SMALL.replace("{messages: 8, per: 1m}", f"{{messages: 8, per: 1m}}\n      - {other}")
    assert len({limit.label for limit in parse(text).upstreams["isp"].limits}) == 2


@pytest.mark.parametrize("limit", ["{connections: 1, per: 1s}", "{messages: 1, per: 1s, for_each: sender}"])
def test_the_practice_smarthost_counts_what_it_can(limit: str) -> None:
    practice = f"practice: {{address: '127.0.0.1:2526', password_file: p, limit: {limit}}}\n"
    (place,) = places(SMALL + practice)
    assert place.rpartition(".")[0].endswith("practice.limit")


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


def test_any_number_of_doors_may_ask_for_a_free_port() -> None:
    text = with_listen("address: 127.0.0.1:0").replace("upstreams:", "  - address: 127.0.0.1:0\nupstreams:")
    assert len(parse(text + "http: 127.0.0.1:0\n").listen) == 2


@pytest.mark.parametrize("name", ["ISP", "a.b", "a/b", "..", "''", "ü", "a b", "x" * 65])
def test_the_name_of_an_upstream_is_fit_for_a_path_and_a_label(name: str) -> None:
    fault = only_fault(SMALL.replace("isp:", f"{name}:"))
    assert (fault.line, fault.column) == (6, 3)
    assert "a-z, 0-9, _ and -" in fault.message
