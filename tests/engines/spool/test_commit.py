"""The suite of the engines commits what it expects to last, and would notice an engine that loses more."""

import pytest

from tests.engines.spool.committed_only import CommittedOnlyEngine
from tests.engines.spool.conformance import Conformance
from tests.engines.spool.engine import RELAYED, accept, recovered, taken


@pytest.mark.full
class TestCommittedOnly(Conformance):
    @pytest.fixture
    def engine(self) -> CommittedOnlyEngine:
        return CommittedOnlyEngine()


def test_what_was_not_committed_is_lost() -> None:
    engine = CommittedOnlyEngine()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.mark({queue_id: {0: RELAYED}})
    spool.commit()
    spool.mark({queue_id: {1: RELAYED}})
    assert spool.load(queue_id).left == (2,)
    spool.close()

    assert recovered(engine).load(queue_id).left == (1, 2)
