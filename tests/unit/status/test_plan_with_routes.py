"""What a plan foretells of mail by routes, against what a relay then does, in virtual time."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.policy.source import parse_policy
from relay.policy.written_out import policy_text
from relay.status.estimate.plan import Plan
from relay.verdicts.operator_pause import PauseAsked
from tests.fakes.clock import FakeClock
from tests.fakes.virtual_time import pass_time
from tests.unit.sender import test_routes
from tests.unit.sender.in_process_relay import Relay
from tests.unit.sender.test_routes_in_virtual_time import LIMITS, NAMES, Upstream, played

ROUTES = """
  - {recipient_domain: two.example, upstreams: [two]}
  - {sender: "@lists.example", upstreams: [three, one]}
  - {upstreams: [one, two]}
"""
TOLERANCE_NS = SECOND_NS // 1000
SENDERS = ("a@lists.example", "b@here.example")
MAILS = st.lists(
    st.tuples(
        st.sampled_from(SENDERS),
        st.lists(st.sampled_from(["x.example", "two.example"]), min_size=1, max_size=2),
    ),
    min_size=1,
    max_size=14,
)


def with_limit(text: str, name: str, count: int) -> str:
    """Return a policy's text with another N at an upstream."""
    before = LIMITS[name]
    old, new = (f'{{messages: {n}, per: "{before[1]}s"' for n in (before[0], count))
    assert old in text, text
    return text.replace(old, new)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example([(SENDERS[1], ["x.example", "two.example"])] * 9, {"one": 1, "two": 1}, 1)
@given(
    MAILS,
    st.dictionaries(st.sampled_from(NAMES), st.integers(1, 5), max_size=3),
    st.integers(1, 25),
)
def test_with_routes_mail_goes_when_the_plan_says(
    mails: list[tuple[str, list[str]]], counts: dict[str, int], after_s: int
) -> None:
    plans: list[Plan] = []

    async def deed(relay: Relay, _: dict[str, Upstream], folder: Path) -> None:
        for number, (sender, domains) in enumerate(mails):
            relay.accept(*(f"r{number}.{n}@{domain}" for n, domain in enumerate(domains)), sender=sender)
        await pass_time(after_s)
        text = policy_text(relay.policy, {})
        for name, count in counts.items():
            text = with_limit(text, name, count)
        planned = await relay.operator.plan(text.encode(), folder / "edited.yaml")
        assert isinstance(planned, Plan), planned
        plans.append(planned)
        waiting.append(len(relay.sender.queue))
        await relay.sender.apply(parse_policy(text.encode(), folder / "edited.yaml"))
        to_wall_ns.append(relay.clock.wall_ns() - relay.clock.boottime_ns())

    waiting: list[int] = []
    to_wall_ns: list[int] = []
    upstreams = played(deed, ROUTES)

    (plan,) = plans
    last_ns = {
        name: max((at_ns + to_wall_ns[0] for at_ns, _ in each.taken), default=0)
        for name, each in upstreams.items()
    }
    assert [each.name for each in plan.new.upstreams] == list(NAMES)
    for each in plan.new.upstreams:
        if each.messages:
            assert each.drained_at_ns is not None
            assert abs(each.drained_at_ns - last_ns[each.name]) <= TOLERANCE_NS, each
    assert plan.new.messages == waiting[0]
    assert plan.new.drained_at_ns is not None
    if waiting[0]:
        assert abs(plan.new.drained_at_ns - max(last_ns.values())) <= TOLERANCE_NS
    assert sum(plan.new.minutes) <= waiting[0]
    assert plan.new.upstream == plan.new.held_by == ""
    assert [each.upstream for each in plan.past] == list(NAMES)


async def told_of(relay: Relay, text: str, folder: Path) -> Plan | str:
    return await relay.operator.plan(text.encode(), folder / "edited.yaml")


async def test_an_edit_of_routes_is_not_foretold_and_says_why(tmp_path: Path) -> None:
    policy = test_routes.policy_of(tmp_path, {"one": 9, "two": 10}, test_routes.BOTH)
    text = policy_text(policy, {})
    async with Relay(policy, clock=FakeClock()) as relay:
        told = await told_of(relay, text.replace('["one", "two"]', '["two", "one"]'), tmp_path)

    assert told == "it changes the routes, and a plan does not know what mail then goes another way"


@pytest.mark.parametrize("mends", [False, True])
async def test_an_edit_that_may_mend_an_upstream_is_not_foretold(tmp_path: Path, *, mends: bool) -> None:
    policy = test_routes.policy_of(tmp_path, {"one": 9, "two": 10}, test_routes.BOTH)
    text = policy_text(policy, {})
    edit = ("port: 9", "port: 11") if mends else ("connections: 2", "connections: 1")
    assert edit[0] in text
    async with Relay(policy, clock=FakeClock()) as relay:
        await relay.operator.pause("one", PauseAsked("anna"))
        told = await told_of(relay, text.replace(*edit), tmp_path)

    if mends:
        assert told == "one is down, and it may mend that"
    else:
        assert isinstance(told, Plan)
        assert [each.held_by.partition(":")[0] for each in told.new.upstreams] == ["operator", ""]
