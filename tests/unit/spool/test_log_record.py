"""The reader of a segment finds the sound records in any bytes, and nothing else."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from relay.smtp.dot_stuffing import has_only_crlf
from relay.spool.log.facts import ENDED
from relay.spool.log.layout import SENDER, SegmentName
from relay.spool.log.record import (
    MESSAGE,
    Position,
    ReadGroup,
    Record,
    encode_group,
    header_of,
    mark_of,
)
from tests.fuzz.log_segment import IDS, MARK, NAME, read

BEFORE = Position(6, 1234)


def segment(*sizes: int) -> tuple[bytes, list[list[Record]]]:
    """Return a segment with groups of these sizes, and its records.  The first record is the header."""
    raw, groups = b"", list[list[Record]]()
    for size in sizes:
        some = [header_of(BEFORE)] if not groups else []
        every = [Record(MESSAGE, IDS[n], b"x" * 600) if n % 2 else Record(ENDED, IDS[n]) for n in range(size)]
        some += every[len(some) :]
        number = len(groups)
        made, offsets = encode_group(MARK, some, len(raw), number)
        raw += made
        counts = [len(some), *[0] * (len(some) - 1)]
        places = zip(some, offsets, counts, strict=True)
        groups.append([new._replace(at=at, group=number, group_size=count) for new, at, count in places])
    return raw, groups


def records(groups: list[ReadGroup]) -> list[Record]:
    return [each for group in groups for each in group.records]


@given(st.integers(0, 10**9))
def test_content_can_never_hold_the_mark_of_a_segment(number: int) -> None:
    """A client that knows the names of the sender's segments still cannot send a record."""
    assert not has_only_crlf(mark_of(SegmentName(SENDER, number)))


@given(st.data(), st.binary(min_size=1, max_size=700))
def test_damage_costs_the_records_it_meets_and_no_other(data: st.DataObject, junk: bytes) -> None:
    raw, groups = segment(3, 1, 4)
    at = data.draw(st.integers(0, len(raw) - 1))
    damaged = (raw[:at] + junk + raw[at + len(junk) :])[: len(raw)]

    def is_sound(each: Record) -> bool:
        stretch = slice(each.at, each.at + each.record_bytes)
        return damaged[stretch] == raw[stretch]

    found = read(damaged)
    assert records(found) == list(filter(is_sound, chain(*groups)))
    assert [group.records for group in found if group.is_whole] == [
        each for each in groups if all(map(is_sound, each))
    ]
    assert any(group.damages for group in found) is (damaged != raw)


def test_a_record_inside_content_is_no_record_of_the_segment() -> None:
    forged, _ = encode_group(MARK, [Record(ENDED, IDS[3])], 0, 1)
    raw, _ = encode_group(MARK, [Record(MESSAGE, IDS[0], b"x" * 300 + forged + b"y" * 300)], 0, 0)
    assert [each.queue_id for each in records(read(raw))] == [IDS[0]]

    # The mark of this segment is not the mark of another.
    other, _ = encode_group(mark_of(NAME._replace(number=8)), [Record(ENDED, IDS[3])], 0, 1)
    assert records(read(raw[:200] + other)) == []
