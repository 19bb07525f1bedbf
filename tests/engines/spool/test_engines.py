"""The engine of a policy's spool is one, whoever opens it."""

from pathlib import Path

import pytest

from relay.policy.source import parse_policy
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import open_spool, prepare_spool
from tests.fakes.clock import FakeClock
from tests.unit.policy.examples import SMALL


@pytest.mark.parametrize(("engine", "other"), [("maildir", "log"), ("log", "maildir")])
def test_the_spool_of_another_engine_is_refused_untouched(tmp_path: Path, engine: str, other: str) -> None:
    policy = parse_policy(SMALL.encode(), tmp_path / "policy.yaml")
    disk = RealDisk()
    prepare_spool(policy, disk, engine)
    before = sorted(policy.spool.rglob("*"))
    with pytest.raises(ValueError, match=f"convert --to {other}"):
        prepare_spool(policy, disk, other)
    with pytest.raises(ValueError, match=f"convert --to {other}"):
        open_spool(policy, disk, FakeClock(), lambda _name, _why: None, other)
    assert sorted(policy.spool.rglob("*")) == before


def test_an_engine_or_a_format_that_there_is_not_is_refused(tmp_path: Path) -> None:
    policy = parse_policy(SMALL.encode(), tmp_path / "policy.yaml")
    disk = RealDisk()
    with pytest.raises(ValueError, match="no engine mbox"):
        prepare_spool(policy, disk, "mbox")
    prepare_spool(policy, disk)
    (policy.spool / "format").write_bytes(b"relay spool 9 mbox\n")
    with pytest.raises(ValueError, match="relay spool 9 mbox"):
        prepare_spool(policy, disk)
