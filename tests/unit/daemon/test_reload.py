"""A policy that is edited under a whole relay: the upstream never sees more than the new limits allow."""

import asyncio
import threading
from pathlib import Path

from tests.fakes.smarthost import Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of

FIVE_AN_HOUR = ", limits: [{messages: 5, per: 1h}]"
NO_ROOM = "no room in 5 messages per 3600s"


async def test_a_first_limit_counts_what_went_before_it(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        await _relay(relay, 3)

        await relay.sender.apply(policy_of(tmp_path, host.port, FIVE_AN_HOUR))
        await _relay_until_full(relay, host, 8, most=5)

        assert len(host.relayed) == 5


async def test_a_first_limit_has_no_room_where_more_went_before(
    tmp_path: Path,
) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        await _relay(relay, 7)

        await relay.sender.apply(policy_of(tmp_path, host.port, FIVE_AN_HOUR))
        await _relay_until_full(relay, host, 2, most=7)

        assert len(host.relayed) == 7


async def test_a_limit_that_comes_back_counts_what_went_meanwhile(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port, FIVE_AN_HOUR)) as relay:
        await _relay(relay, 1)
        await relay.sender.apply(policy_of(tmp_path, host.port))
        await _relay(relay, 2)

        await relay.sender.apply(policy_of(tmp_path, host.port, FIVE_AN_HOUR))
        await _relay_until_full(relay, host, 8, most=5)

        assert len(host.relayed) == 5


async def test_a_first_limit_at_a_start_counts_what_went_before(tmp_path: Path) -> None:
    async with Smarthost() as host:
        async with Relay(policy_of(tmp_path, host.port)) as relay:
            await _relay(relay, 3)
        async with Relay(policy_of(tmp_path, host.port, FIVE_AN_HOUR)) as relay:
            await _relay_until_full(relay, host, 8, most=5)

            assert len(host.relayed) == 5


async def test_a_stop_waits_for_the_edit_that_is_taken_over(tmp_path: Path) -> None:
    both = f"  other: {{host: 127.0.0.1, port: 9, tls: none, history: ./other{FIVE_AN_HOUR}}}\n"
    before, after = (policy_of(tmp_path, 9, limit, rest=both) for limit in ("", FIVE_AN_HOUR))
    async with Relay(before) as relay:
        upstreams = relay.sender.upstreams.in_use
        goes_on = threading.Event()
        # As where another relay of the account has its history.
        waiting = upstreams[next(iter(upstreams))].throttle._thread.call(goes_on.wait)
        editing = asyncio.create_task(relay.sender.apply(after))
        stopping = asyncio.create_task(relay.sender.finish())
        await asyncio.wait([editing, stopping], timeout=0.2)
        goes_on.set()
        await asyncio.gather(waiting, editing, stopping)
        # By then it is no failure, and changes nothing.
        await relay.sender.apply(before)


async def _relay(relay: Relay, messages: int) -> None:
    for number in range(messages):
        relay.accept(f"r{number}@x.example")
    await relay.until_empty()


async def _relay_until_full(relay: Relay, host: Smarthost, messages: int, most: int) -> None:
    """Hand over messages, and wait until one has to wait, or more went than may."""
    for number in range(messages):
        relay.accept(f"r{number}@x.example")

    def is_full() -> bool:
        reasons = {message.reason for message in relay.watch.listing().messages()}
        return NO_ROOM in reasons and not relay.account.in_flight

    await relay.until(lambda: is_full() or len(host.relayed) > most)
