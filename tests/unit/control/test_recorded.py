"""What is seen of the upstreams of a relay that is down: their limits, pauses and stops."""

from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.control.recorded import recorded_upstreams
from relay.policy.model import Policy
from relay.sender.state_file import pause_path, render
from relay.sender.upstreams import UpstreamView
from relay.spool.disk.durable import RealDisk
from relay.verdicts.account import AccountState, Health, PauseRecord
from tests.fakes.clock import FakeClock
from tests.unit.sender.in_process_relay import policy_of


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    limits = ", limits: [{recipients: 10, per: 1h}]"
    policy = policy_of(tmp_path, 25, limits)
    policy.history_path("isp").parent.mkdir()
    return policy


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def seen(policy: Policy, clock: FakeClock) -> UpstreamView:
    return recorded_upstreams(policy, RealDisk(), clock)["isp"]


def keep(policy: Policy, clock: FakeClock, because: str, left_s: int) -> None:
    now_ns = clock.boottime_ns()
    state = AccountState(Health.PAUSED, because, now_ns + left_s * SECOND_NS)
    record = PauseRecord(clock.boot_id(), now_ns, clock.wall_ns(), state)
    pause_path(policy, "isp").write_bytes(render(record))


@pytest.mark.parametrize(
    ("passed_s", "is_rebooted", "health"),
    [(0, False, Health.PAUSED), (30, True, Health.PAUSED), (60, False, Health.PROVING)],
)
def test_a_pause_is_seen_until_its_time_is_over(
    policy: Policy, clock: FakeClock, passed_s: int, is_rebooted: bool, health: Health
) -> None:
    keep(policy, clock, "421 no", 60)
    if is_rebooted:
        clock.reboot((passed_s - 5) * SECOND_NS)
    else:
        clock.advance(passed_s * SECOND_NS)
    found = seen(policy, clock)

    assert found.health is health
    assert found.because == ("421 no" if health is Health.PAUSED else "")
    assert found.paused_until_ns == clock.boottime_ns() + (60 - passed_s) * SECOND_NS


def test_a_record_that_is_none_counts_as_nothing(policy: Policy, clock: FakeClock) -> None:
    pause_path(policy, "isp").write_text("{")
    assert seen(policy, clock).health is Health.USED


def test_a_history_that_cannot_be_trusted_is_a_stop(policy: Policy, clock: FakeClock) -> None:
    policy.history_path("isp").write_text("mine")
    found = seen(policy, clock)

    assert (found.health, found.limits) == (Health.STOPPED, None)
    assert "nothing is sent" in found.because
    keep(policy, clock, "421 no", 60)
    assert (seen(policy, clock).health, seen(policy, clock).because) == (Health.PAUSED, "421 no")
