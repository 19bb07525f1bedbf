"""The running counts of a line, held against a count of every message."""

from relay.queue.counts import Sums, total
from relay.queue.queued import Queued, State
from relay.queue.upstream_queue import UpstreamQueue


def assert_counted(line: UpstreamQueue, messages: list[Queued]) -> None:
    """Check that the counts of a line are what a pass over its messages finds."""
    for state in State:
        lanes: dict[str, list[Queued]] = {}
        for queued in messages:
            if queued.state is state:
                lanes.setdefault(queued.lane, []).append(queued)
        assert line.counts.of(state) == {lane: _sums(its) for lane, its in lanes.items()}
        assert total(line.counts.of(state).values()) == _sums([q for its in lanes.values() for q in its])
    assert len(line) == len(messages)


def _sums(messages: list[Queued]) -> Sums:
    return Sums(
        len(messages),
        sum(queued.recipients_left for queued in messages),
        sum(queued.size_bytes for queued in messages),
    )
