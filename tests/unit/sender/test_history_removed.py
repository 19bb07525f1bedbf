"""A history that is removed under two relays that share it: the upstream sees no more than the limit."""

import functools
from pathlib import Path

from relay.status.snapshot import UpstreamState
from tests.fakes.smarthost import Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of


async def test_a_history_removed_with_its_lock_stops_both_relays_that_use_it(tmp_path: Path) -> None:
    history = tmp_path / "history"
    limited = f", history: {history}, limits: [{{messages: 4, per: 1h}}]"
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    async with Smarthost() as host:
        policies = [policy_of(folder, host.port, limited) for folder in folders]
        async with Relay(policies[0]) as one, Relay(policies[1]) as two:
            # The first has seen nothing of the second's, nor the second all of the first's.
            for relay in (one, two, one):
                relay.accept()
                await relay.until_empty()
            for name in (history, f"{history}.lock"):
                one.disk.unlink(str(name))
            for relay in (one, two):
                for _ in range(3):
                    relay.accept()
                await relay.until(functools.partial(_is_stopped_or_over, relay, host))

            assert len(host.relayed) == 3
            for relay in (one, two):
                upstream = relay.watch.snapshot().upstreams[0]
                assert upstream.state is UpstreamState.STOPPED
                relay.events.flush()
                assert "history.lock: removed or replaced while in use" in relay.log.getvalue()
        # Nor does a restart begin anew.
        async with Relay(policies[0]) as relay:
            await relay.until(lambda: _is_stopped(relay))
            assert len(host.relayed) == 3


def _is_stopped_or_over(relay: Relay, host: Smarthost) -> bool:
    return _is_stopped(relay) or len(host.relayed) > 4


def _is_stopped(relay: Relay) -> bool:
    return relay.watch.snapshot().upstreams[0].state is UpstreamState.STOPPED
