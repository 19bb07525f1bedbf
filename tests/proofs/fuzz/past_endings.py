"""A piece of the recent past of any bytes: read to its end, and what was written stays to be found."""

import zlib

from relay.cli.render import ending_lines
from relay.clock import SECOND_NS
from relay.mail.sought import sought
from relay.spool.disk.durable import Disk
from relay.telemetry.endings import PastEnding, encode
from relay.telemetry.past_files import PastFiles, PastReader
from tests.fakes.disk import ModelDisk
from tests.proofs.fuzz.choices import Choices
from tests.proofs.fuzz.work import bounded, must_be_shown

FOLDER = "/spool.recent"
PATH = f"{FOLDER}/0000000001"
NOW_NS = 1_766_000_000 * SECOND_NS
HEAD = b"relay-recent 1 %d\n" % NOW_NS
ENDING = PastEnding(
    NOW_NS, "0000000000000001", "<1@here>", "a@here", "b@there", "relayed", "isp", reply="250 ok"
)
TOKENS = [b"\n", b"\0" * 512, b'"at_ns": 1', b'"at_ns": 1e999', b"\\ud800", b"null", HEAD, encode(ENDING)]
VALUES = ["", "x", "<1@here>", "a@b", "\ud800", "\x1b[2J", "\u202e", "é" * 40]


class _Bounds:
    keep_ns = 7 * 86_400 * SECOND_NS
    most_bytes = 1024 * 1024


def framed(told: bytes) -> bytes:
    return b"%s %08x\n" % (told, zlib.crc32(told))


def nearly_valid(choices: Choices) -> bytes:
    """Return lines with right checksums, most of which are endings."""
    lines = [HEAD]
    for _ in range(choices.number(10)):
        if choices.yes():
            texts = [choices.pick(VALUES) for _ in range(4)]
            lines.append(
                encode(PastEnding(choices.number(2**60), texts[0], texts[1], texts[2], texts[3], "bounced"))
            )
        else:
            lines.append(framed(choices.spoiled(encode(ENDING)[:-10], TOKENS).replace(b"\n", b" ")))
    return choices.spoiled(b"".join(lines), TOKENS)


def endings(disk: Disk) -> list[PastEnding]:
    return list(PastReader(FOLDER, disk).endings(lambda _: True))


def target(raw: bytes) -> None:
    choices = Choices(raw)
    text = choices.text() or "a"
    content = nearly_valid(choices) if choices.yes() else choices.rest()
    disk = ModelDisk()
    disk.now_ns = NOW_NS
    disk.make_directory(FOLDER)
    disk.plant(PATH, content)
    with bounded(1000 + 100 * content.count(b"\n")):
        found = endings(disk)
    for ending in found:
        for width in (None, 80):
            assert all(line.isprintable() for line in ending_lines(ending, width))
    try:
        wanted = sought(text)
    except ValueError as error:
        must_be_shown(error)
    else:
        reader = PastReader(FOLDER, disk)
        some = list(reader.endings(wanted.may_be_in))
        assert set(some) <= set(found)
        assert {each for each in found if wanted.is_in(each.message_id)} <= set(some)
        assert {each for each in found if wanted.is_in_address([each.recipient])} <= set(some)
    # Whatever it was, it goes on.
    PastFiles(FOLDER, disk).append([encode(ENDING)], _Bounds(), NOW_NS)
    after = endings(disk)
    assert after[0] == ENDING
    if content.startswith(HEAD):
        # The last line of it counts now as well, if it lacked nothing but its end.
        assert after[len(after) - len(found) :] == found


SEEDS = [
    b"\1b\1" + bytes(range(60)),
    b"\1@\0" + HEAD + encode(ENDING) + encode(ENDING)[:40],
    b"\1a\0" + HEAD + bytes(600) + b"\n" + encode(ENDING),
    b"\1a\0relay-recent 2 1\n" + encode(ENDING),
]
