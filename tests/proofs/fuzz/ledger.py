"""A ledger of any bytes: an account that balances, and that reads the same when it is written again."""

import zlib

from relay.mail.envelope import QueueId
from relay.spool.interface import Status
from relay.spool.maildir.layout import Layout
from relay.spool.maildir.ledger_file import LedgerFile
from tests.fakes.disk import ModelDisk
from tests.proofs.fuzz.choices import Choices
from tests.proofs.fuzz.work import bounded

LAYOUT = Layout("/spool")
PATH = LAYOUT.file("ledger")
IDS = [f"000000000000000{number}" for number in range(4)]
NEW_ID = QueueId("000000000000000n")
WORDS = ["total", "in", "out", *IDS, "0", "1", "2", "7", "-1", "x", "", "1_0", "9" * 20, "\u0663", "1.5"]
TOKENS = [b"\n", b" ", b"total", b"in ", b"out ", b"\0" * 512, b"0 0 0 0"]


def line(text: str) -> bytes:
    return b"%s %08x\n" % (text.encode(), zlib.crc32(text.encode()))


def nearly_valid(choices: Choices) -> bytes:
    """Return lines with right checksums, most of which mean something."""
    lines = []
    for _ in range(choices.number(12)):
        queue_id, counts = choices.pick(IDS), [str(choices.number(3)) for _ in range(5)]
        match choices.number(4):
            case 0:
                lines.append(line(" ".join(["total", *counts])))
            case 1:
                lines.append(line(f"in {queue_id} {counts[0]}"))
            case 2:
                lines.append(line(" ".join(["out", queue_id, *counts[:4]])))
            case _:
                lines.append(line(" ".join(choices.pick(WORDS) for _ in range(choices.number(8)))))
    return choices.spoiled(b"".join(lines), TOKENS)


def opened(disk: ModelDisk) -> LedgerFile:
    ledger = LedgerFile(LAYOUT, disk)
    ledger.read()
    return ledger


def target(raw: bytes) -> None:
    choices = Choices(raw)
    content = nearly_valid(choices) if choices.yes() else choices.rest()
    disk = ModelDisk()
    disk.make_directory(LAYOUT.root)
    disk.plant(PATH, content)
    with bounded(500 + 50 * content.count(b"\n")):
        ledger = opened(disk)
    assert ledger.damaged_lines <= content.count(b"\n") + 1
    assert min(ledger.totals.accepted, *ledger.open.values(), 0) == 0
    assert not ledger.closed & ledger.open.keys()

    still_there = {each for each in ledger.closed if choices.yes()}
    ledger.rewrite(still_there)
    again = opened(disk)
    assert (again.totals, again.open, again.damaged_lines) == (ledger.totals, ledger.open, 0)
    assert again.closed == ledger.closed == still_there
    # Whatever it was, it goes on: one message in, and out.
    ledger.enter([(NEW_ID, 2)])
    ledger.leave({NEW_ID: [Status.RELAYED, Status.BOUNCED]})
    after = opened(disk)
    assert after.totals == ledger.totals
    assert after.totals.relayed == again.totals.relayed + 1
    assert after.totals.bounced == again.totals.bounced + 1


SEEDS = [
    b"\0" + line("total 5 3 1 1 0") + line(f"in {IDS[0]} 2") + line(f"out {IDS[0]} 1 1 0 0"),
    b"\0" + line(f"out {IDS[1]} 1 0 0 0"),
    b"\1\5" + bytes(range(60)),
]
