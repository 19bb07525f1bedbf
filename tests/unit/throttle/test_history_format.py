"""The bytes of a history: what was written is read, and nothing else is."""

import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.throttle.history_format import (
    LONGEST_KEY,
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
    is_current,
    key_of,
    read_groups,
    read_header,
    shifted,
)

BOOT = "6e2fd1a4-0000-4000-8000-000000000001"
INSTANTS = st.integers(-(10**17), 10**17)
COUNTS = st.integers(1, 10**6)
SIZES = st.none() | st.integers(0, 10**15)


def address_key_of_any(text: str) -> str:
    return comparable_key("sender", key_of(text))


SHARES = st.lists(
    st.one_of(
        st.builds(Share, st.just("sender"), st.text().map(address_key_of_any), COUNTS, COUNTS, SIZES),
        st.builds(Share, st.just("client"), st.text().map(key_of), COUNTS, COUNTS, SIZES),
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
)
HIGHEST = st.builds(
    Highest,
    INSTANTS,
    INSTANTS,
    COUNTS,
    COUNTS,
    COUNTS,
    st.none() | INSTANTS,
    st.none() | st.text().map(key_of),
    st.sampled_from(["messages", "recipients", "connections"]),
    COUNTS,
    st.just("lane"),
    st.none() | st.text().map(key_of),
    st.none(),
) | st.builds(
    Highest,
    *[INSTANTS, INSTANTS, COUNTS, COUNTS, COUNTS, st.none(), st.none()],
    st.just("bytes"),
    st.just(0),
    st.none(),
    st.none(),
    st.sampled_from(["day/UTC", "month/America/Argentina/Buenos_Aires", "hour/Etc/GMT+5"]),
)
TIMES = st.builds(ClockReading, INSTANTS, INSTANTS, INSTANTS, st.none() | INSTANTS) | st.builds(
    Begun, INSTANTS
)
RECORDS = RECORDS | HIGHEST | TIMES
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


def test_a_last_group_that_claims_too_much_is_not_whole() -> None:
    """One digit of its length is damaged: its end would lie behind the file's."""
    before, last = group(At(1, 2, 2), []), group(At(3, 4, 4), [Ended(5, 6)])
    word, length, rest = last.split(b" ", 2)
    content = before + b" ".join([word, b"9" + length[1:], rest])

    assert read_groups(content, 0)[:3] == ([], At(1, 2, 2), len(before))


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


@given(st.integers(0, 60), st.integers(1, 255))
def test_a_first_line_with_any_bit_wrong_is_refused(index: int, flip: int) -> None:
    line = bytearray(header(BOOT))
    line[index % len(line)] ^= flip

    with pytest.raises(HistoryError, match=r"not a history|another version"):
        read_header(bytes(line))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a history"),
        (b"relay-history 4 x 00000000\n", "another version"),
        (b"-----BEGIN PRIVATE KEY-----\n", "not a history"),
    ],
)
def test_another_file_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(HistoryError, match=message):
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
        b"as 1 2 3\n",
        b"at 1 2 3\ncharged 4 -1 1\n",
        b"at 1 2 3\nreserved 4 5 0 0\n",
        b"at 1 2 3\nreserved 1 2 3\n",
        b"at 1 2 3\nreserved 1 2 3 4 5 sender=a:1\n",
        b"at 1 2 3\nmerged 1 2 3\n",
        b"at 1 2 3\ncharged 1 2 3 4 x\n",
        b"at 1 2 3\nreading 1 2 -\n",
        b"at 1 2 3\nbegun -\n",
        b"at 1 2 3\nreserved 1 2 3 4 5 6 7\n",
        b"at 1 2 3\nhighest 1 2 3 0 3 1 - messages 60\n",
        b"at 1 2 3\nhighest 1 2 -3 0 3 1 - messages 60 -\n",
        b"at 1 2 3\nhighest 1 2 3 0 3 1 a messages 60 sender\n",
        b"at 1 2 3\nhighest 1 2 3 0 3 1 - octets 60 -\n",
        b"at 1 2 3\nhighest 1 2 3 0 3 1 - messages 60 subject\n",
        b"at 1 2 3\nhighest 1 2 3 0 3 x - messages 60 -\n",
    ],
)
def test_a_whole_group_of_unknown_meaning_is_refused(lines: bytes) -> None:
    content = f"group {len(lines)} {zlib.crc32(lines):08x}\n".encode() + lines

    with pytest.raises(HistoryError, match="cannot read"):
        read_groups(content, 0)


@given(RECORDS, INSTANTS)
def test_a_shift_moves_every_instant_and_nothing_else(record: Record, by_ns: int) -> None:
    assert shifted(shifted(record, by_ns), -by_ns) == record
    moved = shifted(record, by_ns)
    match record:
        case Reserved():
            assert moved == (record.id + by_ns, record.deadline_ns + by_ns, *record[2:])
        case Ended():
            assert moved == (record.id + by_ns, record.ended_at_ns + by_ns)
        case Highest():
            at_ns = None if record.most_at_ns is None else record.most_at_ns + by_ns
            assert moved == (
                record.since_ns + by_ns,
                record.until_ns + by_ns,
                *record[2:5],
                at_ns,
                *record[6:],
            )
        case Charged():
            started_at_ns = None if record.started_at_ns is None else record.started_at_ns + by_ns
            assert moved == (record.ended_at_ns + by_ns, *record[1:4], started_at_ns, *record[5:])


def _framed(*lines: str) -> bytes:
    content = "".join(f"{line}\n" for line in lines).encode()
    return f"group {len(content)} {zlib.crc32(content):08x}\n".encode() + content


def test_version_1_is_read_as_it_was_meant() -> None:
    line = f"relay-history 1 {BOOT}".encode()
    content = line + f" {zlib.crc32(line):08x}\n".encode()
    content += _framed("at 1 2 3", "reserved 10 20 1 3", "ended 9 12", "charged 5 7 8")

    boot_id, start = read_header(content)

    assert (boot_id, is_current(content), is_current(header(BOOT))) == (BOOT, False, True)
    assert read_groups(content, start).records == [Reserved(10, 20, 1, 3), Ended(9, 12), Charged(5, 7, 8)]


@given(st.text(max_size=300))
def test_a_key_is_one_short_word_whatever_it_is_made_of(text: str) -> None:
    key = key_of(text)

    assert len(key) <= LONGEST_KEY
    assert key.isascii()
    assert not set(key) & set(" \n\r\0")
    assert key != UNKNOWN


@given(st.text(max_size=30), st.text(max_size=30))
def test_short_texts_that_differ_have_keys_that_differ(one: str, other: str) -> None:
    # Each character is at most twelve as written, and what is cut makes keys fewer, never more.
    assert (key_of(one[:8]) == key_of(other[:8])) == (one[:8] == other[:8])


def test_of_what_was_read_nothing_stays_in_memory() -> None:
    def shares(number: int) -> tuple[Share, ...]:
        return tuple(Share("recipient_domain", f"{number}.{each}.example", 1, 1) for each in range(500))

    content = group(
        At(1, 2, 3), [Reserved(number, number + 9, 1, 500, 0, shares(number)) for number in range(100)]
    )
    tracemalloc.start()
    try:
        read_groups(content, 0)
        left_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert left_bytes < 100_000
