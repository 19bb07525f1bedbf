"""What one connection does not offer bounces nobody; what an upstream truly lacks is found out in time."""

from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.sender.attempt import APART_NS
from tests.fakes.clock import FakeClock
from tests.fakes.smarthost import Script, Smarthost, Turn, turns
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of, virtual_clock
from tests.unit.sender.test_routes import policy_of as route_policy_of
from tests.unit.sender.test_routes import recipients

EIGHT_BIT = CONTENT + b"gr\xc3\xbc\xc3\x9fe\r\n" * 40
LACKS_EIGHT_BIT = b"250-fake.example\r\n250 SIZE 100000000\r\n"
SMALL = b"250-fake.example\r\n250-8BITMIME\r\n250 SIZE 300\r\n"
NO_MORE = "550 5.7.1 daily sending quota exceeded"
ODD: dict[str, Turn] = {
    "SIZE 300": SMALL,
    "no 8BITMIME": LACKS_EIGHT_BIT,
    "a quota": NO_MORE,
    "a quota in 502": "502 5.7.1 you have exceeded your hourly limit of messages",
}


async def bounced(relay: Relay) -> int:
    return relay.sender.totals.bounced


def deferred(relay: Relay) -> int:
    relay.events.flush()
    return relay.log.getvalue().count("by the word of this connection alone")


async def look_again(relay: Relay, clock: FakeClock, after_ns: int = APART_NS) -> None:
    """Let time pass until another connection counts, and a message asks for one."""
    before = deferred(relay)
    clock.advance(after_ns + SECOND_NS)
    relay.account.wake()
    # The first may have met the connection from before.
    await relay.until(lambda: deferred(relay) >= before + 3 or len(relay.sender.queue) == 0)


@pytest.mark.parametrize("odd", list(ODD.values()), ids=list(ODD))
async def test_one_odd_connection_bounces_nobody(tmp_path: Path, odd: Turn) -> None:
    clock = virtual_clock()
    async with (
        Smarthost(Script(ehlo=turns(odd))) as host,
        Relay(policy_of(tmp_path, host.port, connections=1)) as relay,
    ):
        for number in range(20):
            relay.accept(f"r{number}@there.example", content=EIGHT_BIT)
        await relay.until(lambda: deferred(relay) or relay.account.pausing.state.why or host.relayed)
        # Its connection is old by then.
        clock.advance(relay.policy.upstreams["isp"].max_age_ns)
        relay.account.pausing.end()
        relay.account.wake()
        await relay.until_empty()

        assert await bounced(relay) == 0
        assert len(host.relayed) == 20
        assert len(host.sessions) <= 3


async def test_what_an_upstream_truly_lacks_bounces_after_three_looks(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with (
        Smarthost(extensions=["ENHANCEDSTATUSCODES"]) as host,
        Relay(policy_of(tmp_path, host.port, connections=1)) as relay,
    ):
        relay.accept(content=EIGHT_BIT)
        await relay.until(lambda: deferred(relay))
        await look_again(relay, clock)
        assert (await bounced(relay), len(relay.sender.queue)) == (0, 1)
        await look_again(relay, clock)
        await relay.until_empty()

        (report,) = host.relayed
        assert b"Status: 5.6.3" in report.content
        assert report.recipients == ["a@here.example"]
        # And the next one at once.
        relay.accept(content=EIGHT_BIT)
        await relay.until_empty()
        assert await bounced(relay) == 2

        # So what we refuse ourselves, in however many messages, stops no other mail.
        for number in range(30):
            relay.accept(f"r{number}@there.example", sender="", content=EIGHT_BIT)
        relay.accept()
        await relay.until_empty()
        assert relay.account.pausing.state.why == ""
        assert host.relayed[-1].recipients == ["b@there.example"]


async def test_what_one_upstream_can_never_carry_goes_at_once_through_the_next(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost(extensions=["ENHANCEDSTATUSCODES"]) as one, Smarthost() as two:
        policy = route_policy_of(tmp_path, {"isp": one.port, "two": two.port}, "  - {upstreams: [isp, two]}")
        async with Relay(policy) as relay:
            relay.accept(content=EIGHT_BIT)
            await relay.until(lambda: deferred(relay))
            for _ in range(2):
                await look_again(relay, clock)
            relay.accept("plain@there.example")
            await relay.until_empty()
            assert await bounced(relay) == 0
        assert (recipients(one), recipients(two)) == (["plain@there.example"], ["b@there.example"])
