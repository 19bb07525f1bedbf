"""Any bytes as a segment give the records that were written whole, and report the rest as damage."""

from itertools import pairwise

from relay.mail.dsn import Note
from relay.mail.envelope import QueueId
from relay.spool.interface import Status
from relay.spool.log import facts
from relay.spool.log.index import Index
from relay.spool.log.layout import SegmentName
from relay.spool.log.record import (
    MESSAGE,
    MOVED,
    Position,
    ReadGroup,
    Record,
    SegmentReader,
    decode_header,
    decode_position,
    encode_group,
    header_of,
    mark_of,
)
from tests.fuzz.choices import Choices
from tests.fuzz.work import bounded

NAME = SegmentName("0123456789abcdef", 7)
MARK = mark_of(NAME)
IDS = [QueueId(f"{number:016d}") for number in range(4)]
TOKENS = [MARK, MARK + b"E\x10\0\0\0\0\xff\xff\xff\xff", b"\0" * 512, b"\xff" * 4]
STATUSES = [status for status in Status if status is not Status.TODO]


def written(choices: Choices) -> bytes:
    raw, _ = encode_group(MARK, [header_of(Position(6, 1234))], 0, 0)
    for number in range(1, 1 + choices.number(5)):
        group = [_record(choices) for _ in range(1 + choices.number(4))]
        raw += encode_group(MARK, group, len(raw), number)[0]
    return raw


def _record(choices: Choices) -> Record:
    kind, queue_id = choices.pick((MESSAGE, MOVED, facts.FACTS, facts.ENDED, facts.ASIDE)), choices.pick(IDS)
    if kind != facts.FACTS:
        return Record(kind, queue_id, choices.octets() if kind in (MESSAGE, MOVED) else b"")
    index = choices.number(3)
    notes = [Note(index, "5.1.1", "bounced", choices.text(), None, 7)] if choices.yes() else []
    told = [index] if choices.yes() else []
    new = facts.as_json({index: choices.pick(STATUSES)}, notes, told=told, warned=choices.yes(), next=7)
    return facts.facts_record(queue_id, new | {"held": choices.yes()})


def read(content: bytes, at: int = 0) -> list[ReadGroup]:
    with bounded(1_000 + 200 * content.count(MARK)):
        return list(SegmentReader(MARK, lambda size, at: content[at : at + size], len(content)).groups(at))


def indexed(groups: list[ReadGroup]) -> Index:
    index = Index()
    segment = index.segment(NAME)
    for group in groups:
        for each in group.records:
            index.take_in(segment, each, is_whole=group.is_whole)
    return index


def target(raw: bytes) -> None:
    choices = Choices(raw)
    whole = written(choices) if choices.yes() else choices.rest()
    content = choices.spoiled(whole, TOKENS)
    groups, sound = read(content), read(whole)
    # No octet is left out, and none counts twice.
    assert [group.end for group in groups] == [*(group.at for group in groups[1:]), len(content)][
        : len(groups)
    ]
    for group in groups:
        stretches = sorted(
            [*group.damages, *((each.at, each.at + each.record_bytes) for each in group.records)]
        )
        assert (stretches[0][0], stretches[-1][1]) == (group.at, group.end)
        assert all(before[1] == after[0] for before, after in pairwise(stretches))
        assert group.is_whole == (not group.damages and group.records[0].group_size == len(group.records))
    known = {each._replace(at=0) for group in sound for each in group.records}
    assert {each._replace(at=0) for group in groups for each in group.records} <= known
    index = indexed(groups)
    assert index.segment(NAME).live_bytes == sum(place.length for place in index.places.values())
    assert index.facts.keys() <= index.places.keys()
    header = decode_header(NAME, content)
    assert header in (None, decode_header(NAME, whole))
    position = Position(choices.number(2**64), choices.number(2**64)).encoded()
    assert decode_position(choices.spoiled(position, TOKENS)) in (None, decode_position(position))


_CHOSEN = b"\1\4" + bytes([2, 0, 0, 9]) + b"Subject: " + bytes([2, 1, 0, 1, 1, 2, 65, 66, 0, 1, 1, 1, 3, 0])
SEEDS = [b"\0" + written(Choices(_CHOSEN[1:])), _CHOSEN + bytes(60), b"\1" + bytes(range(120))]
