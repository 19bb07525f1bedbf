"""Mail of a log that ended is not relayed again, and mail that was accepted is not removed by a start."""

from relay.spool.log.layout import SegmentName
from relay.spool.log.segments import Segments, place_of
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


def test_an_end_outlives_each_copy_while_the_first_place_is_there() -> None:
    engine = log_on_the_model()
    recovered(engine).close()
    there = Segments(engine.disk, engine.layout)
    kept, *of_sender = (there.add(SegmentName("sender", number)) for number in range(1, 5))
    first, second, third = of_sender
    # Copied forward out of a segment that stays, since damage is in it; then it ended.
    there.keep(place_of(kept, 100, 50))
    there.keep(place_of(first, 100, 50))
    there.end(place_of(kept, 100, 50), place_of(first, 100, 50))
    there.end(place_of(first, 100, 50), place_of(second, 100, 10))
    # Of the copy nothing had to be written anew.
    there.hand_over_needs(first, {third})
    there.remove([first])
    assert there[second].live_bytes > 0
    there.remove([kept])
    assert there[second].live_bytes == there[third].live_bytes == 0
