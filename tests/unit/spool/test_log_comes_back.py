"""Mail of a log that ended is not relayed again, and mail that was accepted is not removed by a start."""

from tests.unit.spool.engine import accept, again, recovered, taken
from tests.unit.spool.log_engine import log_on_the_model
from tests.unit.spool.recovering import recover
from tests.unit.spool.test_log_attacked import end
from tests.unit.spool.test_log_damage import drop_summaries
from tests.unit.spool.test_log_intake import listener


def test_what_ended_before_a_summary_is_not_back_without_it() -> None:
    engine = log_on_the_model()
    spool, (intake, view) = recovered(engine), listener(engine)
    ended, waiting = accept(intake), accept(intake)
    view.die()
    taken(spool)
    end(spool, ended)
    # The segment that tells of the end is left behind.
    for _ in range(4):
        spool = again(engine, spool)
        later = accept(engine.intake())
        assert taken(spool) == [later]
        end(spool, later)
    spool.close()
    drop_summaries(engine)
    assert [entry.queue_id for entry in recover(engine.start()).entries] == [waiting]
