"""A spool that is prepared while no sender runs."""

from pathlib import Path

from relay.clock import SystemClock
from relay.policy.source import parse_policy
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import open_intake, prepare_spool

POLICY = b"""
listen: [{address: "127.0.0.1:1", clients: [127.0.0.0/8]}]
upstreams: {isp: {host: 127.0.0.1, port: 9, tls: none, limits: []}}
spool: ./spool
"""


def test_an_intake_may_follow_without_a_sender(tmp_path: Path) -> None:
    policy = parse_policy(POLICY, tmp_path / "policy.yaml")
    prepare_spool(policy, RealDisk())

    assert open_intake(policy, RealDisk(), SystemClock()).free()[0] > 0
