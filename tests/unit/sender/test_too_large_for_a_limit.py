"""A message with more bytes than a limit lets go: it keeps back no other, and an edit can still help."""

from pathlib import Path

import pytest

from relay.policy.model import Policy
from tests.fakes.smarthost import Smarthost
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of
from tests.unit.sender.test_routes import policy_of as route_policy_of
from tests.unit.sender.test_routes import policy_with_limit, recipients

LARGE = CONTENT + b"x" * 5000 + b"\r\n"
LIMIT = ", limits: [{bytes: 4500, per: 1h}]"
BRIEF = "retry: {min: 1ms, max: 1ms, lifetime: 1d, warn_after: null}"
REASON = f"the message has {len(LARGE)} octets, and the limit 4500 bytes per 3600s lets no more than 4500 go"


def _deferrals(relay: Relay, queue_id: str) -> int:
    relay.events.flush()
    return sum("status=deferred" in line and queue_id in line for line in relay.log.getvalue().splitlines())


async def test_it_is_deferred_and_says_why_and_others_go(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port, LIMIT, connections=1)) as relay:
        large = relay.accept("large@x.example", content=LARGE)
        for number in range(3):
            relay.accept(f"r{number}@x.example")
        await relay.until(lambda: len(host.relayed) == 3)
        await relay.until(lambda: _deferrals(relay, large) > 1)

        (waiting,) = relay.watch.listing().messages()
        assert REASON in waiting.reason
        assert {message.recipients[0] for message in host.relayed} == {f"r{n}@x.example" for n in range(3)}
        # It had no slot, no byte was sent of it, and neither the upstream nor its sender is held for it.
        assert relay.account.throttle.view.usage()[0].used == 3 * len(CONTENT)
        assert not relay.account.pausing.state.why
        assert not [command for command in host.commands if "large@" in command]


@pytest.mark.parametrize("each", ["", ", for_each: sender", ", for_each: recipient_domain"])
async def test_it_is_returned_at_the_end_of_its_life(tmp_path: Path, each: str) -> None:
    limit = LIMIT.replace("1h", "1h" + each)
    retry = BRIEF.replace("1d", "2ms")
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port, limit, retry)) as relay:
        relay.accept("large@x.example", content=LARGE)
        await relay.until_empty()

        (report,) = host.relayed
        assert report.recipients == ["a@here.example"]
        assert b"Action: failed" in report.content
        assert REASON.split(" per ", maxsplit=1)[0].encode() in b" ".join(report.content.split())


def _two_upstreams(folder: Path, ports: dict[str, int], *limits: int) -> Policy:
    policy = route_policy_of(folder, ports, "  - {upstreams: [one, two], spill_after: 1d}")
    for name, count in zip(ports, limits, strict=True):
        policy = policy_with_limit(policy, name, f"{{bytes: {count}, per: 1h}}")
    return policy


async def test_it_goes_at_once_through_the_next_upstream_that_can_take_it(tmp_path: Path) -> None:
    async with Smarthost() as one, Smarthost() as two:
        ports = {"one": one.port, "two": two.port}
        async with Relay(_two_upstreams(tmp_path, ports, 4500, 9000)) as relay:
            large = relay.accept("large@x.example", content=LARGE)
            relay.accept("small@x.example")
            await relay.until_empty()
            assert _deferrals(relay, large) == 0
        assert (recipients(one), recipients(two)) == (["small@x.example"], ["large@x.example"])
