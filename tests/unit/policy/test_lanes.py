"""Lanes as an owner writes them: what they come to, and what is wrong with them where."""

from fractions import Fraction

import pytest

from relay.policy.lane import (
    lanes_of,
    rules_of_lanes,
    with_ceilings,
)
from relay.policy.model import Policy
from relay.queue.lanes import Lane
from relay.queue.sorting import SortingRule
from tests.unit.policy.examples import SMALL
from tests.unit.policy.reading import parse

FIRST_LINE = SMALL.count("\n") + 1


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

    assert rules_of_lanes(policy.lanes) == (
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
        (["default: {share: 30}", "a: {sender: '@x', share: 70}"], {"default": 30, "a": 70}),
        # Of nothing that is left over there is no need.
        (["a: {sender: '@x', share: 20}", "default: {share: 20}"], {"a": 50, "default": 50}),
        (["default: {}"], {"default": 100}),
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
