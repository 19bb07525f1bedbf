"""What one connection does not offer bounces nobody; what an upstream truly lacks is found out in time."""

import asyncio
import functools
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.policy.model import Policy
from relay.sender.state_file import offers_path
from relay.verdicts.offers import APART_AGAIN_NS, APART_NS
from tests.fakes.clock import LeapingClock
from tests.fakes.smarthost import DEFAULT, Script, Smarthost, Turn, turns
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of
from tests.unit.sender.test_routes import policy_of as route_policy_of
from tests.unit.sender.test_routes import recipients

EIGHT_BIT = CONTENT + b"gr\xc3\xbc\xc3\x9fe\r\n" * 40
LACKS_EIGHT_BIT = b"250-fake.example\r\n250 SIZE 100000000\r\n"
SMALL = b"250-fake.example\r\n250-8BITMIME\r\n250 SIZE 300\r\n"
LACKS_UTF8 = b"250-fake.example\r\n250-8BITMIME\r\n250 SIZE 100000000\r\n"
NO_EHLO = "502 5.5.1 what?"
NO_MORE = "550 5.7.1 daily sending quota exceeded"
ODD: dict[str, Turn] = {
    "SIZE 300": SMALL,
    "no 8BITMIME": LACKS_EIGHT_BIT,
    "HELO": NO_EHLO,
    "a quota": NO_MORE,
    "a quota in 502": "502 5.7.1 you have exceeded your hourly limit of messages",
}


async def bounced(relay: Relay) -> int:
    return (await relay.sender.spool_thread.totals()).bounced


def deferred(relay: Relay) -> int:
    relay.events.flush()
    return relay.log.getvalue().count("by the word of this connection alone")


def _has_relayed(relay: Relay, host: Smarthost, count: int) -> bool:
    """Whether so much was relayed; a pause is over at once."""
    if relay.dispatcher.pausing.because:
        relay.dispatcher.pausing.end()
        relay.dispatcher.wake()
    return len(host.relayed) >= count


async def look_again(relay: Relay, clock: LeapingClock, after_ns: int = APART_NS) -> None:
    """Let time pass until another connection counts, and a message asks for one."""
    before = deferred(relay)
    clock.ahead_ns += after_ns + SECOND_NS
    relay.dispatcher.wake()
    # The first may have met the connection from before.
    await relay.until(lambda: deferred(relay) >= before + 3 or len(relay.sender.queue) == 0)


@pytest.mark.parametrize("odd", list(ODD.values()), ids=list(ODD))
async def test_one_odd_connection_bounces_nobody(tmp_path: Path, odd: Turn) -> None:
    clock = LeapingClock()
    async with (
        Smarthost(Script(ehlo=turns(odd))) as host,
        Relay(policy_of(tmp_path, host.port, connections=1), clock=clock) as relay,
    ):
        for number in range(20):
            relay.accept(f"r{number}@there.example", content=EIGHT_BIT)
        await relay.until(lambda: deferred(relay) or relay.dispatcher.pausing.because or host.relayed)
        # Its connection is old by then.
        clock.ahead_ns += relay.policy.upstreams["isp"].max_age_ns
        relay.dispatcher.pausing.end()
        relay.dispatcher.wake()
        await relay.until_empty()

        assert await bounced(relay) == 0
        assert len(host.relayed) == 20
        assert len(host.sessions) <= 3


@pytest.mark.parametrize("said", [ODD["a quota"], ODD["a quota in 502"], "501 5.5.4 bad name"])
async def test_an_ehlo_refused_because_of_us_is_no_reason_for_helo(tmp_path: Path, said: Turn) -> None:
    async with Smarthost(Script(ehlo=said)) as host, Relay(policy_of(tmp_path, host.port)) as relay:
        relay.accept()
        await relay.until(lambda: relay.dispatcher.pausing.because)

        assert str(said) in relay.dispatcher.pausing.because
        assert not [command for command in host.commands if command.startswith(("HELO", "MAIL"))]


async def test_what_an_upstream_truly_lacks_bounces_after_three_looks(tmp_path: Path) -> None:
    clock = LeapingClock()
    async with (
        Smarthost(extensions=["ENHANCEDSTATUSCODES"]) as host,
        Relay(policy_of(tmp_path, host.port, connections=1), clock=clock) as relay,
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


async def test_a_message_that_waits_for_a_look_asks_for_few_connections(tmp_path: Path) -> None:
    async with (
        Smarthost(extensions=["ENHANCEDSTATUSCODES"]) as host,
        Relay(policy_of(tmp_path, host.port)) as relay,
    ):
        for _ in range(5):
            relay.accept(content=EIGHT_BIT)
        await relay.until(lambda: deferred(relay) > 50)
        assert len(host.sessions) <= 4
        assert "MAIL" not in " ".join(host.commands)


async def test_no_look_takes_a_connection_where_they_are_limited(tmp_path: Path) -> None:
    limits = ", limits: [{connections: 2, per: 1h}]"
    async with (
        Smarthost(Script(ehlo=LACKS_EIGHT_BIT)) as host,
        Relay(policy_of(tmp_path, host.port, limits, connections=1)) as relay,
    ):
        relay.accept(content=EIGHT_BIT)
        await relay.until(lambda: deferred(relay) >= 3)
        relay.accept("other@there.example")
        await relay.until(lambda: host.relayed)
        assert len(host.sessions) == 1


async def test_what_was_offered_is_missed_for_a_day_over_a_restart(tmp_path: Path) -> None:
    clock = LeapingClock()
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port, connections=1)
        async with Relay(policy, clock=clock) as relay:
            relay.accept(content=EIGHT_BIT)
            await relay.until_empty()
        host.extensions = ("ENHANCEDSTATUSCODES",)
        async with Relay(policy, clock=clock) as relay:
            relay.accept(content=EIGHT_BIT)
            await relay.until(lambda: deferred(relay))
            for _ in range(4):
                await look_again(relay, clock)
            assert await bounced(relay) == 0
            for _ in range(2):
                await look_again(relay, clock, APART_AGAIN_NS)
            await relay.until_empty()
            assert await bounced(relay) == 1


async def _believing(policy: Policy, clock: LeapingClock) -> None:
    async with Relay(policy, clock=clock) as relay:
        relay.accept(content=EIGHT_BIT)
        await relay.until(lambda: deferred(relay))
        for _ in range(2):
            await look_again(relay, clock)
        await relay.until_empty()


async def test_what_is_believed_stays_so_over_a_restart(tmp_path: Path) -> None:
    clock = LeapingClock()
    async with Smarthost(extensions=["ENHANCEDSTATUSCODES"]) as host:
        policy = policy_of(tmp_path, host.port, connections=1)
        await _believing(policy, clock)
        async with Relay(policy, clock=clock) as relay:
            relay.accept(content=EIGHT_BIT)
            await relay.until_empty()
            assert deferred(relay) == 0


@pytest.mark.parametrize("content", [b"", b"{", b"\0" * 512], ids=["empty", "torn", "zeros"])
async def test_a_damaged_file_believes_nothing(tmp_path: Path, content: bytes) -> None:
    clock = LeapingClock()
    async with Smarthost(extensions=["ENHANCEDSTATUSCODES"]) as host:
        policy = policy_of(tmp_path, host.port, connections=1)
        await _believing(policy, clock)
        offers_path(policy, "isp").write_bytes(content)
        async with Relay(policy, clock=clock) as relay:
            relay.accept(content=EIGHT_BIT)
            await relay.until(lambda: deferred(relay))
            assert "is not kept on disk" in relay.log.getvalue()


async def test_what_another_server_lacked_is_not_believed(tmp_path: Path) -> None:
    clock = LeapingClock()
    async with Smarthost(extensions=["ENHANCEDSTATUSCODES"]) as host, Smarthost(extensions=[]) as other:
        await _believing(policy_of(tmp_path, host.port, connections=1), clock)
        async with Relay(policy_of(tmp_path, other.port, connections=1), clock=clock) as relay:
            relay.accept(content=EIGHT_BIT)
            await relay.until(lambda: deferred(relay))


async def test_what_we_refuse_ourselves_stops_no_mail(tmp_path: Path) -> None:
    clock = LeapingClock()
    async with Smarthost(extensions=["ENHANCEDSTATUSCODES"]) as host:
        policy = policy_of(tmp_path, host.port, connections=1)
        await _believing(policy, clock)
        async with Relay(policy, clock=clock) as relay:
            for number in range(30):
                # Null senders get no report, which would be relayed in between.
                relay.accept(f"r{number}@there.example", sender="", content=EIGHT_BIT)
            await relay.until_empty()
            assert await bounced(relay) == 31
            assert relay.dispatcher.pausing.because == ""
            relay.accept()
            await relay.until_empty()
            assert host.relayed[-1].recipients == ["b@there.example"]


async def test_what_one_upstream_can_never_carry_goes_at_once_through_the_next(tmp_path: Path) -> None:
    clock = LeapingClock()
    async with Smarthost(extensions=["ENHANCEDSTATUSCODES"]) as one, Smarthost() as two:
        policy = route_policy_of(tmp_path, {"isp": one.port, "two": two.port}, "  - {upstreams: [isp, two]}")
        async with Relay(policy, clock=clock) as relay:
            relay.accept(content=EIGHT_BIT)
            await relay.until(lambda: deferred(relay))
            for _ in range(2):
                await look_again(relay, clock)
            relay.accept("plain@there.example")
            await relay.until_empty()
            assert await bounced(relay) == 0
        assert recipients(one) == ["plain@there.example"]
        assert recipients(two) == ["b@there.example"]


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.sampled_from([DEFAULT, SMALL, LACKS_EIGHT_BIT, LACKS_UTF8, NO_EHLO, NO_MORE]), max_size=8),
    st.lists(st.sampled_from([0, APART_NS, APART_AGAIN_NS // 2]), min_size=3, max_size=3),
)
def test_what_the_steady_upstream_can_carry_never_bounces(flaps: list[Turn], leaps_ns: list[int]) -> None:
    async def relays_all() -> None:
        clock = LeapingClock()
        with tempfile.TemporaryDirectory() as folder:
            async with (
                Smarthost(Script(ehlo=turns(DEFAULT, *flaps))) as host,
                Relay(policy_of(Path(folder), host.port, ", max_messages: 1"), clock=clock) as relay,
            ):
                relay.accept()
                await relay.until_empty()
                for number, leap_ns in enumerate(leaps_ns):
                    clock.ahead_ns += leap_ns
                    enough = len(host.relayed) + 1
                    relay.accept(f"r{number}@there.example", content=EIGHT_BIT)
                    relay.accept("\xfc@there.example", smtputf8=True)
                    relay.accept("s@there.example", content=b"Subject: small\r\n\r\n")
                    await host.until(functools.partial(_has_relayed, relay, host, enough))
                host.script = Script()
                relay.dispatcher.pausing.end()
                clock.ahead_ns += APART_NS
                relay.dispatcher.wake()
                await relay.until_empty()
                assert await bounced(relay) == 0

    asyncio.run(relays_all())
