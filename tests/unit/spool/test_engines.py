"""The engine of a policy's spool is one, whoever opens it."""

from pathlib import Path

from relay.policy.source import parse_policy
from relay.spool.durable import RealDisk
from relay.spool.engines import inspected, open_intake, open_spool
from tests.fakes.clock import FakeClock
from tests.unit.policy.examples import SMALL
from tests.unit.spool.engine import accept, taken
from tests.unit.spool.recovering import recover


def test_sender_listener_and_fsck_open_the_same_spool(tmp_path: Path) -> None:
    policy = parse_policy(SMALL.encode(), tmp_path / "policy.yaml")
    disk, clock = RealDisk(), FakeClock()
    spool = open_spool(policy, disk, clock, lambda _name, _why: None)
    recover(spool)

    queue_id = accept(open_intake(policy, disk, clock))

    assert taken(spool) == [queue_id]
    spool.close()
    seen = inspected(policy, disk)
    assert (seen.messages, seen.holder) == (1, None)
    assert seen.root == str(policy.spool)
