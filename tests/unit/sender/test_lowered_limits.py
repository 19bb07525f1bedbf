"""What a refusal for having sent too much teaches a relay that runs, and what of it is in force."""

import re
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.control.offline import OfflineOperations
from relay.control.operations import OK
from relay.policy.model import Policy
from relay.sender.state_file import lessons_path
from relay.status.page import render
from relay.status.snapshot import public, to_json
from tests.fakes.clock import LeapingClock
from tests.fakes.smarthost import Script, Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of

OVER = "450 4.7.1 you have exceeded the number of recipients per hour"
HOUR_NS = 3600 * SECOND_NS
FOUND = r"cut off after 19 recipients in \d+ s; policy says 20 per 1h; suggested 18"


class Counting:
    """An upstream that takes so many recipients and refuses from then on."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    def rcpt(self, _: str) -> str:
        if self.taken >= self.most:
            return OVER
        self.taken += 1
        return "250 ok"


def limits(count: int = 20, adapt: str = "") -> str:
    return f", limits: [{{recipients: {count}, per: 1h}}, {{messages: 1000, per: 1m}}]{adapt}"


def names(count: int) -> list[str]:
    return [f"r{number}@there.example" for number in range(count)]


async def cut_off(relay: Relay, after: int = 19) -> None:
    """Send so much, then one more, which is refused."""
    relay.accept(*names(after))
    await relay.until_empty()
    relay.accept("one-more@there.example")
    await relay.until(lambda: relay.dispatcher.pausing.because and relay.dispatcher.in_flight == 0)


def told(relay: Relay) -> str:
    relay.events.flush()
    return relay.log.getvalue()


def effective(relay: Relay) -> int:
    return relay.dispatcher.throttle.usage()[0].count


async def test_a_refusal_is_told_beside_what_the_history_says(tmp_path: Path) -> None:
    async with (
        Smarthost(Script(rcpt=Counting(19).rcpt)) as host,
        Relay(policy_of(tmp_path, host.port, limits())) as relay,
    ):
        await cut_off(relay)

        assert re.search(f"upstream isp: {FOUND}", told(relay))
        snapshot = relay.watch.snapshot()
        (finding,) = to_json(public(snapshot))["upstreams"][0]["findings"]
        assert re.fullmatch(FOUND, finding["text"])
        assert (finding["sent"], finding["suggested"]) == (19, 18)
        assert finding["text"] in render(public(snapshot))
        assert effective(relay) == 20, "nothing is lowered unless the policy says so"


async def test_refusals_of_the_same_block_are_compared_once(tmp_path: Path) -> None:
    async with (
        Smarthost(Script(rcpt=Counting(19).rcpt)) as host,
        Relay(policy_of(tmp_path, host.port, limits(100))) as relay,
    ):
        await cut_off(relay)
        for _ in range(2):
            relay.dispatcher.pausing.end()
            relay.dispatcher.wake()
            await relay.until(lambda: relay.dispatcher.pausing.because and relay.dispatcher.in_flight == 0)

        assert told(relay).count("cut off after") == 1


async def test_a_block_that_is_met_again_after_a_resume_teaches_nothing_new(tmp_path: Path) -> None:
    clock = LeapingClock()
    async with Smarthost(Script(rcpt=Counting(19).rcpt)) as host:
        policy = policy_of(tmp_path, host.port, limits(100, ", adapt: tighten"))
        async with Relay(policy, clock=clock) as relay:
            await cut_off(relay)
            (learned,) = relay.dispatcher.known.lowered_limits.findings
        for _ in range(3):
            await _resume_while_down(policy)
            # Of the window's 19 nothing is left after an hour, and nothing was relayed since.
            clock.ahead_ns += HOUR_NS // 2
            async with Relay(policy, clock=clock) as relay:
                await relay.until(
                    lambda: relay.dispatcher.pausing.because and relay.dispatcher.in_flight == 0
                )

                assert relay.dispatcher.known.lowered_limits.findings == (learned,)
                assert "cut off after" not in told(relay)
                assert effective(relay) == 50


async def test_what_was_refused_before_is_not_counted_as_taken(tmp_path: Path) -> None:
    upstream = Counting(5)
    async with Smarthost(Script(rcpt=upstream.rcpt)) as host:
        policy = policy_of(tmp_path, host.port, limits(100))
        async with Relay(policy) as relay:
            await cut_off(relay, 5)
            relay.dispatcher.pausing.end()
            relay.dispatcher.wake()
            await relay.until(lambda: relay.dispatcher.pausing.because and relay.dispatcher.in_flight == 0)
        await _resume_while_down(policy)
        upstream.most = 19
        async with Relay(policy) as relay:
            await relay.until_empty()
            relay.accept(*names(13))
            await relay.until_empty()
            relay.accept("one-more@there.example")
            await relay.until(lambda: relay.dispatcher.pausing.because and relay.dispatcher.in_flight == 0)

            (finding,) = relay.dispatcher.known.lowered_limits.findings
            assert (upstream.taken, finding.sent, finding.suggested) == (19, 19, 18)


async def _resume_while_down(policy: Policy) -> None:
    """As `relay resume isp` does where no relay runs."""
    offline = OfflineOperations(policy)
    assert await offline.resume("isp") == OK
    await offline.close()


async def test_adapt_lowers_the_limit_that_is_in_force_and_says_so(tmp_path: Path) -> None:
    upstream = Counting(19)
    async with (
        Smarthost(Script(rcpt=upstream.rcpt)) as host,
        Relay(policy_of(tmp_path, host.port, limits(adapt=", adapt: tighten"))) as relay,
    ):
        await cut_off(relay)
        upstream.most = 1000

        assert "effective 18 of 20 recipients per 3600.000s" in told(relay)
        await relay.until(lambda: effective(relay) == 18)
        snapshot = relay.watch.snapshot()
        assert "effective 18 of 20" in render(snapshot)
        assert to_json(snapshot)["upstreams"][0]["limits"][0]["policy_count"] == 20
        assert snapshot.upstreams[0].limits[0].label == "20 recipients per 3600s"

        # 19 and the refused one are in the window: nothing more goes, though the policy's N had room.
        relay.dispatcher.pausing.end()
        relay.dispatcher.wake()
        await relay.until(lambda: "no room in 20 recipients" in relay.watch.listing().messages()[0].reason)
        assert upstream.taken == 19


async def test_a_lowered_limit_holds_at_once_after_a_restart(tmp_path: Path) -> None:
    clock = LeapingClock()
    upstream = Counting(19)
    async with Smarthost(Script(rcpt=upstream.rcpt)) as host:
        policy = policy_of(tmp_path, host.port, limits(adapt=", adapt: tighten"))
        async with Relay(policy, clock=clock) as relay:
            await cut_off(relay)
        upstream.most = 1000
        # The window is empty by then, and the pause is over.
        clock.ahead_ns += 2 * HOUR_NS
        async with Relay(policy, clock=clock) as relay:
            relay.accept(*names(30))
            await relay.until(lambda: upstream.taken >= 19 + 18 and relay.dispatcher.in_flight == 0)

            assert effective(relay) == 18
            assert upstream.taken == 19 + 18
            assert relay.watch.snapshot().upstreams[0].findings


@pytest.mark.parametrize(
    ("edited", "in_force", "finds"),
    [
        (limits(30, ", adapt: tighten"), 30, True),
        (limits(18, ", adapt: tighten"), 18, False),
        (limits(20), 20, True),
    ],
    ids=["raised", "lowered", "no adapt"],
)
async def test_the_owners_edit_ends_what_was_lowered_at_once_and_for_good(
    tmp_path: Path, edited: str, in_force: int, finds: bool
) -> None:
    async with Smarthost(Script(rcpt=Counting(19).rcpt)) as host:
        policy = policy_of(tmp_path, host.port, limits(adapt=", adapt: tighten"))
        after = policy_of(tmp_path, host.port, edited)
        async with Relay(policy) as relay:
            await cut_off(relay)
            await relay.sender.apply(after)
            relay.watch.policy = after

            assert effective(relay) == in_force
            assert bool(relay.watch.snapshot().upstreams[0].findings) is finds
            assert relay.watch.snapshot().upstreams[0].limits[0].policy_count is None
            # Also if it says again what it said before.
            await relay.sender.apply(policy)
            assert effective(relay) == 20
        async with Relay(policy) as relay:
            assert effective(relay) == 20


async def test_an_account_without_limits_is_compared_too(tmp_path: Path) -> None:
    async with (
        Smarthost(Script(rcpt=Counting(19).rcpt)) as host,
        Relay(policy_of(tmp_path, host.port, ", adapt: tighten")) as relay,
    ):
        await cut_off(relay)

        assert re.search(
            r"cut off after 19 recipients in \d+ s; policy has no limit per 1h; suggested 18", told(relay)
        )


async def test_a_refusal_in_the_greeting_is_compared_too(tmp_path: Path) -> None:
    async with (
        Smarthost(Script()) as host,
        Relay(policy_of(tmp_path, host.port, limits() + ", idle: 20ms")) as relay,
    ):
        relay.accept(*names(19))
        await relay.until_empty()
        host.script.connect = "554 DED : You've reached your daily relay quota"
        await relay.until(lambda: relay.dispatcher.pool.open == 0)
        relay.accept("one-more@there.example")
        await relay.until(lambda: relay.dispatcher.pausing.because)

        assert re.search(r"cut off after 19 recipients in \d+ s; policy has no limit per 24h", told(relay))


async def test_lessons_that_are_none_are_told_of_and_replaced(tmp_path: Path) -> None:
    async with Smarthost(Script(rcpt=Counting(19).rcpt)) as host:
        policy = policy_of(tmp_path, host.port, limits(adapt=", adapt: tighten"))
        path = lessons_path(policy, "isp")
        path.parent.mkdir(parents=True)
        path.write_text('{"lowered": [{"count": 100000}]}')
        async with Relay(policy) as relay:
            await cut_off(relay)

            assert "taught is not kept on disk" in told(relay)
        async with Relay(policy) as relay:
            await relay.until(lambda: effective(relay) == 18)
