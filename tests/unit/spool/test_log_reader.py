"""What a segment's reader makes of any bytes: sound records, and nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from relay.mail.envelope import QueueId
from relay.spool.log import facts, record
from relay.spool.log.layout import SegmentName
from relay.spool.log.record import (
    HEADER_BYTES,
    New,
    Record,
    SegmentHeader,
    encode_group,
    encode_header,
    mark_of,
)
from relay.spool.log.stream_reader import Damage, groups, pieces
from relay.spool.log.stream_writer import Position, decode_position, encode_position
from relay.spool.message import message_file
from tests.engines.spool.engine import ENVELOPE
from tests.engines.spool.log_engine import window_on

NAME = SegmentName("0123456789abcdef", 7)
MARK = mark_of(NAME)
IDS = [QueueId(f"{number:016d}") for number in range(6)]


def message(number: int, content: bytes) -> New:
    tail = message_file.encode_envelope(IDS[number], ENVELOPE)
    shape = message_file.shape_of(ENVELOPE, len(content), eight_bit=False)
    header = message_file.encode_header(len(content), tail, 3, shape, message_file.checksum(content))
    return New(record.MESSAGE, IDS[number], header + content + tail, 3)


def segment(*sizes: int) -> tuple[bytes, list[New]]:
    """Return a segment of groups with so many records, and all of these."""
    raw, written = encode_header(NAME, SegmentHeader(6, 1234)), list[New]()
    for size in sizes:
        some = [
            message(number % 6, b"x" * 600) if number % 2 else New(facts.HELD, IDS[number % 6], b"", number)
            for number in range(size)
        ]
        made, _ = encode_group(MARK, some, len(raw))
        raw += b"".join(made)
        written += some
    return raw, written


def read(raw: bytes) -> list[New]:
    found = pieces(window_on(raw), MARK, HEADER_BYTES)
    return [
        New(each.kind, each.queue_id, each.payload, each.number)
        for each in found
        if isinstance(each, Record) and each.kind != record.GROUP
    ]


def test_what_was_written_is_read() -> None:
    raw, written = segment(3, 1, 4)
    found = list(groups(window_on(raw), MARK, HEADER_BYTES))

    assert read(raw) == written
    assert [(len(group.records), group.is_whole) for group in found] == [(3, True), (1, True), (4, True)]
    assert record.decode_header(NAME, raw[:HEADER_BYTES]) == SegmentHeader(6, 1234)
    assert record.decode_header(NAME._replace(number=8), raw[:HEADER_BYTES]) is None
    position = Position(3, 4711, 12)
    assert decode_position(encode_position(position)) == position
    assert decode_position(encode_position(position)[:-1]) is None


@given(st.integers(HEADER_BYTES, 4400), st.binary(min_size=1, max_size=700))
def test_damage_costs_the_records_it_meets_and_no_other(at: int, junk: bytes) -> None:
    raw, written = segment(3, 1, 4)
    damaged = raw[:at] + junk[: len(raw) - at] + raw[at + len(junk) :]
    met = [
        each
        for each in pieces(window_on(raw), MARK, HEADER_BYTES)
        if isinstance(each, Record)
        and damaged[each.at : each.at + each.record_bytes] != raw[each.at : each.at + each.record_bytes]
    ]
    lost = sum(each.kind != record.GROUP for each in met)

    found = read(damaged)
    assert all(each in written for each in found)
    assert len(found) == len(written) - lost
    told = [each for each in pieces(window_on(damaged), MARK, HEADER_BYTES) if isinstance(each, Damage)]
    assert bool(told) == bool(met)


@given(st.binary(max_size=3000))
def test_no_bytes_at_all_are_taken_for_records(junk: bytes) -> None:
    assert read(junk) == []
    assert read(bytes(HEADER_BYTES) + MARK + junk) == []
    assert record.decode_header(NAME, junk[:HEADER_BYTES]) is None
    assert decode_position(junk) is None


def test_a_record_in_a_content_is_no_record_of_the_segment() -> None:
    forged, _ = encode_group(MARK, [New(facts.HELD, IDS[5])], 0)
    content = b"x" * 300 + b"".join(forged) + b"y" * 300
    made, _ = encode_group(MARK, [message(0, content)], HEADER_BYTES)
    raw = bytes(HEADER_BYTES) + b"".join(made)
    assert [each.queue_id for each in read(raw)] == [IDS[0]]

    # One who knows the mark of this segment knows none of another.
    assert mark_of(NAME._replace(number=8)) != MARK
    other, _ = encode_group(mark_of(NAME._replace(number=8)), [New(facts.HELD, IDS[5])], 0)
    assert read(raw[:200] + b"".join(other)) == []
