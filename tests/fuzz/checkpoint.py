"""A checkpoint of any bytes: what was queued when it was written, or ValueError."""

from typing import Any

from relay.spool.log import checkpoint
from relay.spool.log.checkpoint import Checkpoint
from relay.spool.log.record import Position, unsealed
from tests.fuzz import log_segment
from tests.fuzz.choices import Choices
from tests.fuzz.work import bounded, must_be_shown

TOKENS = [b"\n", b"[", b"]", b'"', b"\0" * 512, b"{}", b"null", b"00000000\n"]


def target(raw: bytes) -> None:
    choices = Choices(raw)
    index = log_segment.indexed(log_segment.read(log_segment.written(choices)))
    index.segment(log_segment.NAME).is_damaged = choices.yes()
    positions = {"0" * 16: Position(choices.number(2**32), choices.number(2**32), 7)}
    content = checkpoint.encode(index, positions)
    found = checkpoint.decode(content)
    assert _said(found) == _said((index, positions))
    assert checkpoint.encode(*found) == content
    other = choices.spoiled(content, TOKENS) if choices.yes() else choices.rest()
    if other != content and unsealed(other) is not None:
        return  # no damage makes a checksum right; a guided search does
    try:
        with bounded(500 + 20 * len(other)):
            checkpoint.decode(other)
    except ValueError as fault:
        must_be_shown(fault)
    else:
        assert other == content


def _said(of: Checkpoint) -> list[Any]:
    index, positions = of
    places = {
        queue_id: (place.segment.name, place.offset, place.length) for queue_id, place in index.places.items()
    }
    damaged = [name for name, segment in index.segments.items() if segment.is_damaged]
    said = {queue_id: known.as_json() for queue_id, known in index.facts.items()}
    return [places, said, damaged, positions]


SEEDS = [*log_segment.SEEDS, bytes(40), b"\2" + bytes(range(90))]
