"""The bytes of a history: what was written is read, and nothing else is."""

import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.throttle.history_format import (
    LONGEST_KEY,
    MARK_BYTES,
    UNKNOWN,
    At,
    Begun,
    Charged,
    ClockReading,
    Ended,
    Highest,
    HistoryError,
    Record,
    Reserved,
    Share,
    comparable_key,
    group,
    header,
    key_of,
    mark_line,
    read_groups,
    read_header,
    read_mark,
    shifted,
)

BOOT = "6e2fd1a4-0000-4000-8000-000000000001"
INSTANTS = st.integers(-(10**17), 10**17)
COUNTS = st.integers(1, 10**6)
SIZES = st.none() | st.integers(0, 10**15)
KEYS = st.text().map(key_of)
SHARES = st.lists(
    st.one_of(
        st.builds(
            Share,
            st.just("sender"),
            KEYS.map(lambda key: comparable_key("sender", key)),
            COUNTS,
            COUNTS,
            SIZES,
        ),
        st.builds(Share, st.just("client"), KEYS, COUNTS, COUNTS, SIZES),
    ),
    max_size=3,
).map(tuple)
RECORDS: st.SearchStrategy[Record] = st.one_of(
    st.builds(Reserved, INSTANTS, INSTANTS, COUNTS, COUNTS, COUNTS, SHARES, SIZES),
    st.builds(Ended, INSTANTS, INSTANTS),
    st.builds(
        Charged,
        *[INSTANTS, COUNTS, COUNTS, COUNTS, st.none() | INSTANTS, SHARES],
        is_merged=st.booleans(),
        bytes=SIZES,
    ),
    st.builds(
        Highest,
        *[INSTANTS, INSTANTS, COUNTS, COUNTS, COUNTS, st.none() | INSTANTS, st.none() | KEYS],
        st.sampled_from(["messages", "recipients", "connections", "bytes"]),
        COUNTS,
        st.just("lane"),
        st.none() | KEYS,
        st.none(),
    ),
    st.builds(ClockReading, INSTANTS, INSTANTS, INSTANTS, st.none() | INSTANTS),
    st.builds(Begun, INSTANTS),
)
ATS = st.builds(At, INSTANTS, INSTANTS, INSTANTS)
GROUPS = st.lists(st.tuples(ATS, st.lists(RECORDS, max_size=4)), min_size=1, max_size=4)


@given(GROUPS)
def test_what_was_written_is_read(groups: list[tuple[At, list[Record]]]) -> None:
    content = header(BOOT) + b"".join(group(at, records) for at, records in groups)

    boot_id, start = read_header(content)
    contents = read_groups(content, start)

    assert boot_id == BOOT
    assert contents.records == [record for _, records in groups for record in records]
    assert (contents.at, contents.end) == (groups[-1][0], len(content))


@given(GROUPS)
def test_a_last_group_torn_at_any_byte_leaves_those_before_it(groups: list[tuple[At, list[Record]]]) -> None:
    parts = [group(at, records) for at, records in groups]
    before = b"".join(parts[:-1])

    for size in range(len(parts[-1])):
        for tail in (parts[-1][:size], parts[-1][:size] + bytes(len(parts[-1]) - size)):
            contents = read_groups(before + tail, 0)
            assert contents.end == len(before)
            assert contents.records == [record for _, records in groups[:-1] for record in records]


@pytest.mark.parametrize(
    "torn",
    [
        # One digit of its length is damaged: its end would lie behind the file's.
        lambda last: last.replace(b"group ", b"group 9"),
        # A page of another time came to stand there.
        lambda last: last[:-1] + b"0\ngroup 10 00000000\nat 1 2 3\nended 1 2\n",
        lambda last: last[:-1] + b"0\ngroup 100000000 00000000\nat 1 2 3\nended 1 2\n",
    ],
)
def test_a_torn_end_with_other_bytes_in_it_is_torn(torn: Callable[[bytes], bytes]) -> None:
    whole, last = group(At(1, 2, 3), [Charged(4, 5, 6)]), group(At(3, 4, 4), [Ended(5, 6)])

    assert read_groups(whole + torn(last), 0)[:3] == ([Charged(4, 5, 6)], At(1, 2, 3), len(whole))


@given(GROUPS, st.data())
def test_damage_before_a_whole_group_is_an_error_that_names_the_byte(
    groups: list[tuple[At, list[Record]]], data: st.DataObject
) -> None:
    first = b"".join(group(at, records) for at, records in groups)
    last = group(At(1, 2, 3), [])
    index = data.draw(st.integers(0, len(first) - 1))
    flipped = first[index] ^ data.draw(st.integers(1, 255))
    content = first[:index] + bytes([flipped]) + first[index + 1 :] + last

    with pytest.raises(HistoryError, match=r"byte \d+: a damaged group"):
        read_groups(content, 0)


def test_a_first_line_with_any_byte_wrong_and_another_file_are_refused() -> None:
    line = header(BOOT)
    others = [line[:n] + bytes([line[n] ^ 1]) + line[n + 1 :] for n in range(len(line))]
    for content in (b"", b"relay-history 4 x 00000000\n", b"-----BEGIN PRIVATE KEY-----\n", *others):
        with pytest.raises(HistoryError, match=r"not a history|another version"):
            read_header(content)


@pytest.mark.parametrize(
    "lines",
    [
        b"",
        b"at 1 2\n",
        b"at 1 +2 3\n",
        b"at 1 2_0 3\n",
        b"at 1 2 3\nlent 4 5\n",
        b"at 1 2 3\nended 4\n",
        b"at 1 2 3\nended 4 x\n",
        b"ended 1 2\n",
        # A negative weight would make room for as many more.
        b"at 1 2 3\ncharged 4 -1 1\n",
        b"at 1 2 3\nreserved 4 5 0 0\n",
        b"at 1 2 3\nreserved 1 2 3\n",
        b"at 1 2 3\nreserved 1 2 3 4 5 sender=a:1\n",
        b"at 1 2 3\nmerged 1 2 3\n",
        b"at 1 2 3\ncharged 1 2 3 4 x\n",
        b"at 1 2 3\nreading 1 2 -\n",
        b"at 1 2 3\nbegun -\n",
        b"at 1 2 3\nhighest 1 2 3 0 3 1 - octets 60 -\n",
    ],
)
def test_a_whole_group_of_unknown_meaning_is_refused(lines: bytes) -> None:
    content = f"group {len(lines)} {zlib.crc32(lines):08x}\n".encode() + lines

    with pytest.raises(HistoryError, match="cannot read"):
        read_groups(content, 0)


@given(RECORDS, INSTANTS)
def test_a_shift_moves_every_instant_and_nothing_else(record: Record, by_ns: int) -> None:
    moved = shifted(record, by_ns)
    assert shifted(moved, -by_ns) == record
    match record:
        case Reserved():
            assert moved == (record.id + by_ns, record.deadline_ns + by_ns, *record[2:])
        case Ended():
            assert moved == (record.id + by_ns, record.ended_at_ns + by_ns)
        case Charged():
            started_at_ns = None if record.started_at_ns is None else record.started_at_ns + by_ns
            assert moved == (record.ended_at_ns + by_ns, *record[1:4], started_at_ns, *record[5:])


@given(st.text(max_size=300), st.text(max_size=8), st.text(max_size=8))
def test_a_key_is_one_short_word_and_differs_where_texts_do(text: str, one: str, other: str) -> None:
    key = key_of(text)

    assert len(key) <= LONGEST_KEY
    assert key.isascii()
    assert not set(key) & set(" \n\r\0")
    assert key != UNKNOWN
    # Each character is at most twelve as written; what is cut makes keys fewer, never more.
    assert (key_of(one) == key_of(other)) == (one == other)


@given(st.integers(-(10**24) + 1, 10**24 - 1))
def test_a_line_of_any_mark_is_as_long_and_says_it(mark_ns: int) -> None:
    assert len(mark_line(mark_ns)) == MARK_BYTES
    assert read_mark(mark_line(mark_ns)) == mark_ns


def test_a_damaged_line_names_no_mark() -> None:
    line = mark_line(1_760_000_000_123_456_789)
    for n in range(MARK_BYTES):
        try:
            assert read_mark(line[:n] + bytes([line[n] ^ 1]) + line[n + 1 :]) is None
        except HistoryError:
            assert n < len("relay-history-end ")
