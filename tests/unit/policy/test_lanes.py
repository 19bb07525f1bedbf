"""What an owner writes and what it means: lanes, routes, limits, presets; and how an edit is described."""

import re
from datetime import date
from ipaddress import ip_network

import pytest

from relay.clock import SECOND_NS
from relay.policy.lane import lanes_of, sorter_of
from relay.policy.model import OAuth2, Upstream
from relay.policy.shipped import provider_of, providers
from relay.policy.source import differences, policy_text
from relay.queue.lanes import Lane
from relay.throttle.limit import limit_of, with_ceilings
from tests.unit.policy.examples import INTERFACE, SMALL, faults, parse, with_upstream

EVERY_KEY = """\
lanes:
  urgent:
    sender: ["noreply@here.example", "<>"]
    client: 10.0.0.0/7
    recipient_domain: '*.example'
    header: {X-Kind: [reset, code], Subject: '*'}
    recipients_above: 3
    share: 40
    ceiling: 90
    patience: 1h
  default: {patience: null}
"""


def test_every_key_of_a_lane_is_read() -> None:
    policy = parse(SMALL + EVERY_KEY)

    ((lane, its),) = sorter_of(policy.lanes, ()).lanes
    assert (lane, its.sender, its.recipients_above) == ("urgent", ("noreply@here.example", "<>"), 3)
    assert (its.client, its.recipient_domain) == ((ip_network("10.0.0.0/7"),), ("*.example",))
    assert its.header == {"X-Kind": ("reset", "code"), "Subject": ("*",)}
    urgent = Lane("urgent", 40, 3600 * 10**9)
    assert lanes_of(policy.lanes) == (urgent, Lane("default", 60, None))


@pytest.mark.parametrize(
    ("lanes", "shares"),
    [
        ("a: {sender: '@x', share: 40}", {"a": 40, "default": 60}),
        ("a: {sender: '@x', share: 33}, b: {sender: '@y'}", {"a": 33, "b": 33.5, "default": 33.5}),
        # Shares need not add up to 100.
        ("a: {sender: '@x', share: 20}, default: {share: 20}", {"a": 50, "default": 50}),
    ],
)
def test_lanes_without_a_share_divide_the_rest_equally(lanes: str, shares: dict[str, float]) -> None:
    found = lanes_of(parse(f"{SMALL}lanes: {{{lanes}}}\n").lanes)

    whole = sum(lane.weight for lane in found)
    assert {lane.name: 100 * lane.weight / whole for lane in found} == shares


def test_a_ceiling_is_a_percentage_of_message_and_recipient_limits_and_at_least_1() -> None:
    limits = "limits: [{messages: 100, per: 1h}, {recipients: 3, per: 1d}, {connections: 9, per: 1h}, "
    limits += "{messages: 5, per: 1h, for_each: sender}]"
    text = SMALL.replace("limits:\n      - {messages: 8, per: 1m}", limits)
    policy = parse(text + "lanes: {a: {sender: '@x', ceiling: 33}, b: {sender: '@y'}}\n")
    its = policy.upstreams["isp"]

    found = with_ceilings(its, policy.lanes)

    assert found[:4] == tuple(map(limit_of, its.limits))
    assert [(each.unit, each.count, each.only, each.label) for each in found[4:]] == [
        ("messages", 33, "a", "33 messages per 1h for lane a"),
        ("recipients", 1, "a", "1 recipients per 24h for lane a"),
    ]
    assert {each.guard_ns for each in found} == {SECOND_NS}
    assert {each.guard_ns for each in with_ceilings(its.model_copy(update={"guard_ns": 7}), {})} == {7}


def test_a_limit_that_is_written_twice_counts_once() -> None:
    text = SMALL.replace("messages: 8, per: 1m}", "messages: 8, per: 1m}\n      - {messages: 8, per: 60s}")

    assert parse(text) == parse(SMALL)


def test_upstreams_of_reports_make_a_route_of_their_own() -> None:
    good = parse(SMALL + "  ses: {host: ses.example, limits: []}\nreports: {upstreams: ses}\n")

    assert [route.upstreams for route in good.routes] == [("ses",), ("isp",)]


REFRESH = "grant: refresh_token, client_id: c, refresh_token_file: r"


@pytest.mark.parametrize("name", providers())
def test_a_preset_is_a_whole_upstream_with_its_source(name: str) -> None:
    provider = providers()[name]
    own = [] if "limits" in provider.preset else ["limits: []"]
    upstream = parse(with_upstream(f"provider: {name}", *own)).upstreams["isp"]

    assert upstream.host == provider.preset["host"]
    assert upstream.tls != "none"
    assert set(provider.preset) <= set(Upstream.model_fields)
    assert provider.source
    assert date.fromisoformat(provider.checked) >= date(2026, 1, 1)
    assert upstream.limits or re.search(r"write (?:the )?limits of", provider.note)
    if provider.hosts:
        assert provider_of(None, upstream.host) == name


@pytest.mark.parametrize(
    ("host", "name"),
    [
        *(("smtp.gmail.com", "gmail"), ("SMTP.Gmail.Com.", "gmail")),
        ("email-smtp.eu-west-1.amazonaws.com", "ses"),
        *(("contoso-com.mail.protection.outlook.com", "microsoft365"), ("smtp.ionos.co.uk", "gmx")),
        *(("smtp.gmail.com.evil.example", None), ("notgmail.com", None), ("evilsmtp.gmail.com", None)),
    ],
)
def test_a_provider_is_known_by_its_hosts(host: str, name: str | None) -> None:
    assert provider_of(None, host) == name


def oauth2_of(provider: str, oauth2: str) -> OAuth2:
    text = with_upstream(f"provider: {provider}", "limits: []", f"auth: {{user: u, oauth2: {{{oauth2}}}}}")
    auth = parse(text).upstreams["isp"].auth
    assert auth is not None
    assert auth.oauth2 is not None
    return auth.oauth2


def test_a_provider_presets_oauth2_except_for_client_and_tenant() -> None:
    for grant in REFRESH, "grant: service_account, key_file: k":
        google = oauth2_of("workspace-relay", grant)
        assert google.token_url == "https://oauth2.googleapis.com/token"
        assert (google.device_url, google.scope) == (None, "https://mail.google.com/")
    microsoft = oauth2_of("microsoft365", f"{REFRESH}, tenant: contoso.example")

    assert microsoft.token_url == "https://login.microsoftonline.com/contoso.example/oauth2/v2.0/token"
    assert microsoft.mechanism == "xoauth2"
    app = "grant: client_credentials, client_id: c, client_secret_file: s, tenant: contoso.example"
    assert oauth2_of("microsoft365", app).scope != microsoft.scope
    without_tenant = with_upstream("provider: microsoft365", f"auth: {{user: u, oauth2: {{{REFRESH}}}}}")
    assert "microsoft365 only with tenant" in faults(without_tenant)[0].message


VERDICTS = """\
    verdicts:
      - {phase: mail, code: 550, text: "quota", verdict: pause, wait: 90s}
      - {text: ["a \\"b\\"", "c: #d"], but_not: e, enhanced: x.4.5, verdict: stop, probe: false}
"""


@pytest.mark.parametrize(
    "text",
    [
        SMALL + VERDICTS,
        with_upstream("provider: ses", "limits: [{recipients: 14, per: 1s}]"),
        INTERFACE,
        SMALL + "retry: {min: 1500ms, max: 1.5h, warn_after: null}\nhostname: a.example\n",
    ],
)
def test_a_policy_written_out_parses_to_the_same_policy(text: str) -> None:
    policy = parse(text)

    assert parse(policy_text(policy)) == policy


HOST = "host: smtp.example.net"


def told(old: str, new: str) -> list[str]:
    restart = " (restart)"
    found = differences(parse(old), parse(new))
    return [f"{each}{restart * each.needs_restart}" for each in found]


def limits(*each: str) -> str:
    return with_upstream(HOST, f"limits: [{', '.join(each)}]")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (SMALL, SMALL + "# a comment\nretry: {min: 300s}\n", []),
        (
            limits("{messages: 8, per: 1m}", "{recipients: 9, per: 1h}"),
            limits("{messages: 8, per: 1m}", "{recipients: 9, per: 24h, for_each: sender}"),
            [
                "- upstreams.isp.limits: {recipients: 9, per: 1h}",
                "+ upstreams.isp.limits: {recipients: 9, per: 24h, for_each: sender}",
            ],
        ),
        (
            SMALL,
            SMALL + "retry: {min: 1m, warn_after: null}\nreports: {per_hour: 5}\nhostname: a.example\n",
            [
                "retry.min: 5m → 1m",
                "retry.warn_after: 4h → null",
                "reports.per_hour: 60 → 5",
                "+ hostname: a.example (restart)",
            ],
        ),
        (
            SMALL,
            SMALL.replace("spool: spool", "spool: other/place"),
            ["spool.path: /etc/relay/spool → /etc/relay/other/place (restart)"],
        ),
    ],
)
def test_an_edit_is_described_key_by_key(old: str, new: str, words: list[str]) -> None:
    assert told(old, new) == words


def test_an_edited_hostname_is_another_place_only_in_a_database() -> None:
    shared = SMALL + "    history: postgresql://relay@db.example/relay\n"
    for text, is_same in (SMALL, True), (shared, False):
        before, after = parse(text), parse(f"hostname: b.example\n{text}")
        assert (before.history_of("isp") == after.history_of("isp")) is is_same


def test_an_edit_tells_the_first_upstream_and_what_needs_a_restart() -> None:
    edited = SMALL.replace("upstreams:\n", "upstreams:\n  ses: {host: s.e, limits: []}\n")

    first, second = told(SMALL, edited)

    assert first == "first of upstreams: isp → ses"
    assert second.startswith("+ upstreams.ses: {host: s.e")
    assert "(restart)" not in second
    of_clients = told(SMALL, SMALL.replace("127.0.0.0/8", "127.0.0.1"))
    assert [each.partition(":")[0] for each in of_clients] == ["- listen", "+ listen"]
    assert all(each.endswith("(restart)") for each in of_clients)
