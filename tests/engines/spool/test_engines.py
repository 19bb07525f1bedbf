"""The engine of a policy's spool is one, whoever opens it."""

from pathlib import Path

import pytest

from relay.policy.model import Policy
from relay.policy.source import parse_policy
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import open_spool, prepare_spool
from tests.fakes.clock import FakeClock
from tests.unit.policy.examples import SMALL


def policy_of(tmp_path: Path, engine: str) -> Policy:
    spool = f"spool: {{path: spool, engine: {engine}}}"
    return parse_policy(SMALL.replace("spool: spool", spool).encode(), tmp_path / "policy.yaml")


@pytest.mark.parametrize(("engine", "other"), [("maildir", "log"), ("log", "maildir")])
def test_the_spool_of_another_engine_is_refused_untouched(tmp_path: Path, engine: str, other: str) -> None:
    policy, disk = policy_of(tmp_path, other), RealDisk()
    prepare_spool(policy_of(tmp_path, engine), disk)
    before = sorted(policy.spool.rglob("*"))
    with pytest.raises(ValueError, match=f"convert --to {other}"):
        prepare_spool(policy, disk)
    with pytest.raises(ValueError, match=f"convert --to {other}"):
        open_spool(policy, disk, FakeClock(), lambda _name, _why: None)
    assert sorted(policy.spool.rglob("*")) == before


def test_a_format_that_there_is_not_is_refused(tmp_path: Path) -> None:
    policy, disk = policy_of(tmp_path, "maildir"), RealDisk()
    prepare_spool(policy, disk)
    (policy.spool / "format").write_bytes(b"relay spool 9 mbox\n")
    with pytest.raises(ValueError, match="relay spool 9 mbox"):
        prepare_spool(policy, disk)
