"""Every state of a segment and of a stream against everything that may happen to it."""

import pytest

from relay.mail.envelope import QueueId
from relay.spool.log import facts as said
from relay.spool.log.index import LogIndex
from relay.spool.log.layout import SENDER, LogLayout, SegmentName
from relay.spool.log.segments import (
    SEGMENT_AFTER,
    Segment,
    SegmentEvent,
    Segments,
    SegmentState,
    place_of,
)
from relay.spool.log.streams import STREAM_AFTER, Stream, StreamEvent, StreamState
from tests.fakes.disk import ModelDisk

D, K, P = SegmentState.DONE, SegmentState.KEPT, SegmentState.PINNED
# By event: what becomes of OPEN, DONE, KEPT, PINNED.
OF_A_SEGMENT = {
    SegmentEvent.END: (D, D, K, P),
    SegmentEvent.KEEP: (K, K, K, P),
    SegmentEvent.PIN: (P, P, P, P),
}
# By event: what becomes of LIVING, DEAD, OVER.
OF_A_STREAM = {
    StreamEvent.DIE: (StreamState.DEAD, StreamState.DEAD, StreamState.OVER),
    StreamEvent.READ_OUT: (StreamState.LIVING, StreamState.OVER, StreamState.OVER),
}


@pytest.mark.parametrize("state", list(SegmentState))
@pytest.mark.parametrize("event", list(SegmentEvent))
def test_each_event_does_to_each_segment_what_the_table_says(
    event: SegmentEvent, state: SegmentState
) -> None:
    segment = Segment(SegmentName("stream", 1))
    segment.state = state

    segment.change(event)

    after = OF_A_SEGMENT[event][list(SegmentState).index(state)]
    assert segment.state is after
    assert (segment.may_go, segment.is_dead, segment.is_pinned) == (after is D, after is D, after is P)
    segment.live_bytes = 1
    assert (segment.may_go, segment.is_dead) == (after is D, False)


@pytest.mark.parametrize("state", list(StreamState))
@pytest.mark.parametrize("event", list(StreamEvent))
def test_each_event_does_to_each_stream_what_the_table_says(event: StreamEvent, state: StreamState) -> None:
    stream = Stream("stream")
    stream.state = state

    stream.change(event)

    assert stream.state is OF_A_STREAM[event][list(StreamState).index(state)]


def test_both_tables_have_a_line_for_each_event() -> None:
    assert (set(SEGMENT_AFTER), set(STREAM_AFTER)) == (set(SegmentEvent), set(StreamEvent))


@pytest.mark.parametrize("are_all", [False, True])
@pytest.mark.parametrize("is_said_in_the_stream", [False, True])
def test_only_a_start_that_missed_mail_keeps_what_is_unknown(
    *, is_said_in_the_stream: bool, are_all: bool
) -> None:
    segments = Segments(ModelDisk(), LogLayout("/spool"))
    handle = segments.add(SegmentName(SENDER, 1))
    index = LogIndex(segments)
    ended, held = QueueId("ended"), QueueId("held")

    index.listeners_are_read(are_all=are_all)
    if not is_said_in_the_stream:
        index.sender_is_read()
    for at, (kind, queue_id, payload) in enumerate(
        [(said.GONE, ended, b""), (said.HELD, held, b"")], start=1
    ):
        index.change(kind, queue_id, payload, 1)
        index.placed(kind, queue_id, place_of(handle, at * 100, 10))
    index.sender_is_read()

    # Their streams can be read now.
    came = segments.add(SegmentName("listener", 1))
    come = [index.come(each, 1, place_of(came, 100, 10)) for each in (ended, held)]
    is_kept = is_said_in_the_stream and not are_all
    assert (come, index.is_held(held)) == ([not is_kept, True], is_kept)
