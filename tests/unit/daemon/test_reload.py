"""A policy that is edited under a whole relay: the upstream never sees more than the new limits allow."""

import asyncio
import os
import ssl
import threading
from pathlib import Path

import pytest

from relay.policy.model import Tls
from relay.verdicts.pause_record import LONGEST_NS as PAUSE_NS
from tests.fakes.certificates import make_certificates
from tests.fakes.clock import LeapingClock
from tests.fakes.odd_files import ODD_FILES, remove
from tests.fakes.smarthost import Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of

FIVE_AN_HOUR = ", limits: [{messages: 5, per: 1h}]"
THREADS = min(32, (os.cpu_count() or 1) + 4)
"""Of the default executor (concurrent.futures)."""
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
        return NO_ROOM in reasons and not relay.dispatcher.in_flight

    await relay.until(lambda: is_full() or len(host.relayed) > most)


@pytest.mark.parametrize("kind", ODD_FILES)
async def test_a_ca_file_that_is_none_is_told_and_holds_nothing_up(kind: str, tmp_path: Path) -> None:
    certificates, clock = make_certificates(tmp_path), LeapingClock()
    ca_file, kept = tmp_path / "trusted.pem", certificates.ca.read_bytes()
    ODD_FILES[kind](ca_file)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificates.cert, certificates.key)
    async with Smarthost(tls=server) as host:
        policy = policy_of(tmp_path, host.port)
        isp = policy.upstreams["isp"].model_copy(update={"tls": Tls.STARTTLS, "ca_file": ca_file})
        policy = policy.model_copy(update={"upstreams": {"isp": isp}})
        async with Relay(policy, clock=clock) as relay:
            # As many as there are threads for such calls, and more.
            for number in range(2 * THREADS):
                if number:
                    clock.ahead_ns += PAUSE_NS
                    relay.sender.upstreams.wake_all()
                else:
                    relay.accept("r@x.example")
                await relay.until(lambda: relay.dispatcher.pausing.in_a_row > number)  # noqa: B023 - awaited here
            relay.events.flush()
            assert "upstream isp paused until " in relay.log.getvalue()
            assert "ca_file: " in relay.log.getvalue()

            remove(ca_file)
            ca_file.write_bytes(kept)
            clock.ahead_ns += PAUSE_NS
            relay.sender.upstreams.wake_all()
            await relay.until_empty()
        assert len(host.relayed) == 1
