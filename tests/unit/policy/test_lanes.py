"""Lanes, routes and limits as an owner writes them: what they come to."""

from fractions import Fraction

import pytest

from relay.mail.envelope import Envelope
from relay.policy.lane import LimitSettings, lanes_of, sorter_of, with_ceilings
from relay.policy.model import Policy
from relay.queue.lanes import Lane
from relay.queue.sorting import SortingRule
from relay.throttle.limit import plain_words
from tests.unit.policy.examples import SMALL
from tests.unit.policy.reading import parse


def _with(*lines: str) -> str:
    return SMALL + "lanes:\n" + "".join(f"  {line}\n" for line in lines)


def _shares(policy: Policy) -> dict[str, Fraction]:
    lanes = lanes_of(policy.lanes)
    return {lane.name: Fraction(lane.weight, sum(each.weight for each in lanes)) for lane in lanes}


def test_every_key_of_a_lane() -> None:
    policy = parse(
        _with(
            "urgent:",
            '  sender: ["noreply@here.example", "<>"]',
            "  client: 10.0.0.0/7",
            "  recipient_domain: '*.example'",
            "  header: {X-Kind: [reset, code], Subject: '*'}",
            "  recipients_above: 3",
            "  share: 40",
            "  ceiling: 90",
            "  patience: 1h",
            "default: {patience: null}",
        )
    )

    assert sorter_of(policy.lanes, ()).rules == (
        SortingRule(
            "urgent",
            senders=("noreply@here.example", "<>"),
            clients=policy.lanes["urgent"].client or (),
            recipient_domains=("*.example",),
            headers=(("X-Kind", ("reset", "code")), ("Subject", ("*",))),
            recipients_above=3,
        ),
    )
    assert lanes_of(policy.lanes) == (
        Lane("urgent", 40, 3600 * 10**9, has_ceiling=True),
        Lane("default", 60, None),
    )


@pytest.mark.parametrize(
    ("lines", "shares"),
    [
        (["a: {sender: '@x', share: 40}"], {"a": 40, "default": 60}),
        (["a: {sender: '@x'}", "b: {sender: '@y'}"], {"a": (100, 3), "b": (100, 3), "default": (100, 3)}),
        (["a: {sender: '@x', share: 33}", "b: {sender: '@y'}"], {"a": 33, "b": (67, 2), "default": (67, 2)}),
        # Of nothing that is left over there is no need.
        (["a: {sender: '@x', share: 20}", "default: {share: 20}"], {"a": 50, "default": 50}),
    ],
)
def test_who_writes_no_share_has_an_equal_part_of_what_is_left(
    lines: list[str], shares: dict[str, int | tuple[int, int]]
) -> None:
    wanted = {n: Fraction(*s) if isinstance(s, tuple) else Fraction(s) for n, s in shares.items()}

    assert {name: share * 100 for name, share in _shares(parse(_with(*lines))).items()} == wanted


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
