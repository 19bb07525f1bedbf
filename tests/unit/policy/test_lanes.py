"""Lanes, routes and limits as an owner writes them: what they come to."""

from ipaddress import ip_network

import pytest

from relay.mail.envelope import Envelope
from relay.policy.lane import LimitSettings, lanes_of, sorter_of, with_ceilings
from relay.policy.model import Policy
from relay.queue.lanes import Lane
from relay.throttle.limit import plain_words
from tests.unit.policy.examples import SMALL
from tests.unit.policy.reading import parse

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


def test_every_key_of_a_lane() -> None:
    policy = parse(SMALL + EVERY_KEY)

    (rule,) = sorter_of(policy.lanes, ()).rules
    assert (rule.lane, rule.senders, rule.recipients_above) == ("urgent", ("noreply@here.example", "<>"), 3)
    assert (rule.clients, rule.recipient_domains) == ((ip_network("10.0.0.0/7"),), ("*.example",))
    assert rule.headers == (("X-Kind", ("reset", "code")), ("Subject", ("*",)))
    urgent = Lane("urgent", 40, 3600 * 10**9, has_ceiling=True)
    assert lanes_of(policy.lanes) == (urgent, Lane("default", 60, None))


@pytest.mark.parametrize(
    ("lanes", "shares"),
    [
        ("a: {sender: '@x', share: 40}", {"a": 40, "default": 60}),
        ("a: {sender: '@x', share: 33}, b: {sender: '@y'}", {"a": 33, "b": 33.5, "default": 33.5}),
        # Of nothing that is left over there is no need.
        ("a: {sender: '@x', share: 20}, default: {share: 20}", {"a": 50, "default": 50}),
    ],
)
def test_who_writes_no_share_has_an_equal_part_of_what_is_left(lanes: str, shares: dict[str, float]) -> None:
    found = lanes_of(parse(f"{SMALL}lanes: {{{lanes}}}\n").lanes)

    whole = sum(lane.weight for lane in found)
    assert {lane.name: 100 * lane.weight / whole for lane in found} == shares


def test_a_ceiling_is_a_part_of_each_limit_and_never_nothing() -> None:
    limits = "limits: [{messages: 100, per: 1h}, {recipients: 3, per: 1d}, {connections: 9, per: 1h}, "
    limits += "{messages: 5, per: 1h, for_each: sender}]"
    text = SMALL.replace("limits:\n      - {messages: 8, per: 1m}", limits)
    policy = parse(text + "lanes: {a: {sender: '@x', ceiling: 33}, b: {sender: '@y'}}\n")
    its = policy.upstreams["isp"].limits

    found = with_ceilings(its, policy.lanes)

    assert found[:4] == its
    assert [(each.unit, each.count, each.only, each.label) for each in found[4:]] == [
        ("messages", 33, "a", "33 messages per 3600s for lane a"),
        ("recipients", 1, "a", "1 recipients per 86400s for lane a"),
    ]


@pytest.mark.parametrize(
    ("keys", "label", "words"),
    [
        ({"bytes": "1GB", "per": "24h"}, "1073741824 bytes per 86400s", "1G per 24h"),
        (
            {"recipients": 2000, "per": "24h", "for_each": "sender_domain"},
            "2000 recipients per 86400s for each sender domain",
            "2000 recipients per 24h for each sender domain",
        ),
    ],
)
def test_a_limit_is_named_by_all_that_it_says(keys: dict[str, object], label: str, words: str) -> None:
    limit = LimitSettings.model_validate(keys)

    assert (limit.label, plain_words(limit)) == (label, words)


def test_a_limit_that_is_written_twice_is_one() -> None:
    text = SMALL.replace("messages: 8, per: 1m}", "messages: 8, per: 1m}\n      - {messages: 8, per: 60s}")

    assert parse(text) == parse(SMALL)


def with_routes(*routes: str) -> Policy:
    lines = "".join(f"  - {route}\n" for route in routes)
    return parse(f"{SMALL}  ses: {{host: ses.example, limits: []}}\nroutes:\n{lines}")


def test_each_recipient_takes_the_first_route_that_matches() -> None:
    asked = with_routes(
        "{recipient_domain: ['*.de', example.org], user: 'app-*', upstreams: [ses]}",
        "{recipients_above: 3, upstreams: [ses, isp]}",
        "{upstreams: [isp, ses], failover_after: 1m}",
    )
    sorter = sorter_of(asked.lanes, asked.routes)

    def routes(*recipients: str, user: str | None = None) -> list[tuple[tuple[str, ...], list[int] | None]]:
        envelope = Envelope("a@x", recipients, 0, "h[192.0.2.1]", "h", "ESMTPA", user)
        found = sorter.sort(envelope, lambda: pytest.fail("nothing asks for a header"))
        return [
            (part.route.upstreams, None if part.indices is None else sorted(part.indices))
            for part in found.parts
            if part.route is not None
        ]

    isp, ses = ("isp", "ses"), ("ses",)
    assert routes("a@x.de") == [(isp, None)]
    assert routes("a@x.de", "b@EXAMPLE.org", user="APP-1") == [(ses, None)]
    assert routes("a@x.de", "b@x.com", "c@y.DE", user="app-1") == [(ses, [0, 2]), (isp, [1])]
    assert routes("a@a", "b@b", "c@c", "d@d") == [(("ses", "isp"), None)]


def test_reports_leave_by_upstreams_of_their_own() -> None:
    good = parse(SMALL + "  ses: {host: ses.example, limits: []}\nreports: {upstreams: ses}\n")

    assert [route.upstreams for route in good.routes] == [("ses",), ("isp",)]
    assert good.upstreams_of_reports == ("ses",)
