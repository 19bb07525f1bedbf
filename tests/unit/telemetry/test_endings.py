"""A line of the recent past: what was written is read, and nothing else is believed."""

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.telemetry.endings import (
    LONGEST_LINE,
    LONGEST_REPLY,
    PastEnding,
    decode,
    encode,
    ending_of,
    is_whole,
)

ANY = st.text(max_size=40)
ANY_ENDINGS = st.builds(
    PastEnding, st.integers(0, 2**63), ANY, st.none() | ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY
)


def framed(told: bytes) -> bytes:
    """Return a line with a right checksum."""
    return b"%s %08x" % (told, zlib.crc32(told))


@given(ANY_ENDINGS)
def test_what_is_written_is_one_line_and_read_as_it_was(ending: PastEnding) -> None:
    line = encode(ending)

    assert line.index(b"\n") == len(line) - 1
    assert is_whole(line[:-1])
    assert decode(line[:-1]) == ending


@given(ANY_ENDINGS, st.data())
def test_a_line_that_lost_or_changed_octets_is_not_whole(ending: PastEnding, data: st.DataObject) -> None:
    line = encode(ending)[:-1]
    at = data.draw(st.integers(0, len(line) - 1))
    changed = bytes([line[at] ^ (1 << data.draw(st.integers(0, 7)))])

    assert not is_whole(line[:at] + changed + line[at + 1 :])
    assert not is_whole(line[:at])
    assert not is_whole(bytes(len(line)))


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"{}",
        b"[]",
        b"7",
        b"[" * 20_000,
        b'{"at_ns": 1}',
        json.dumps(PastEnding(1, "q", None, "a", "b", "relayed")._asdict() | {"at_ns": True}).encode(),
        json.dumps(PastEnding(1, "q", None, "a", "b", "relayed")._asdict() | {"reply": None}).encode(),
    ],
)
def test_a_whole_line_that_we_do_not_write_is_refused(told: bytes) -> None:
    assert is_whole(framed(told))

    with pytest.raises(ValueError, match=r"."):
        decode(framed(told))


def test_a_key_of_a_later_version_is_passed_over() -> None:
    ending = PastEnding(1, "q", None, "a", "b", "relayed")

    assert decode(framed(json.dumps(ending._asdict() | {"later": [1]}).encode())) == ending


def test_a_reply_is_cut_and_the_longest_line_is_bounded() -> None:
    fields = dict.fromkeys(("message_id", "reverse_path", "recipient", "relay", "upstream"), "😀" * 998)

    ending = ending_of(fields | {"status": "bounced", "text": "\u20ac" * 2 * LONGEST_REPLY}, 1)

    assert ending.reply == "\u20ac" * LONGEST_REPLY
    assert len(encode(ending)) < LONGEST_LINE
