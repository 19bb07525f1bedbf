"""Lines of the ledger that no relay wrote so: they cost their own figures, and never the start."""

import zlib

import pytest

from relay.mail.envelope import QueueId
from relay.spool.interface import Status, Totals
from relay.spool.maildir.layout import Layout
from relay.spool.maildir.ledger_file import LedgerFile
from tests.fakes.disk import ModelDisk

LAYOUT = Layout("/spool")
PATH = LAYOUT.file("ledger")
ONE = QueueId("0000000000000001")


def line(text: str) -> bytes:
    """Return a line with its right checksum."""
    return b"%s %08x\n" % (text.encode(), zlib.crc32(text.encode()))


def read(content: bytes) -> LedgerFile:
    disk = ModelDisk()
    disk.make_directory(LAYOUT.root)
    disk.plant(PATH, content)
    ledger = LedgerFile(LAYOUT, disk)
    ledger.read()
    return ledger


def test_a_line_that_is_there_twice_counts_once() -> None:
    entered, left = line(f"in {ONE} 2"), line(f"out {ONE} 1 1 0 0")

    ledger = read(line("total 5 5 0 0 0") + entered * 2 + left * 2)

    assert ledger.totals == Totals(accepted=7, relayed=6, bounced=1)
    assert (ledger.open, ledger.closed, ledger.damaged_lines) == ({}, {ONE}, 0)


@pytest.mark.parametrize(
    "text",
    [
        "total 1 2 3 4 5",
        "total 1 2 3 4 x",
        "total 1 2 3 4 ",
        "total 1 2 3 4 -5",
        f"total 1 2 3 4 {'9' * 5000}",
        f"in {ONE} many",
        f"in {ONE} -1",
        f"in {ONE} 1_0",
        f"in {ONE} \N{ARABIC-INDIC DIGIT THREE}",
        "in ../../etc/passwd 1",
        f"out {ONE} 1 0 0 zero",
        f"out {ONE} 1 0 0 -1",
    ],
)
def test_a_right_checksum_without_a_meaning_is_a_damaged_line(text: str) -> None:
    ledger = read(line(f"in {ONE} 1") + line(text))

    assert ledger.damaged_lines == 1
    assert ledger.totals == Totals(accepted=1)


def test_the_first_line_brings_the_account_into_being() -> None:
    disk = ModelDisk()
    disk.make_directory(LAYOUT.root)
    ledger = LedgerFile(LAYOUT, disk)
    ledger.read()
    ledger.leave({ONE: [Status.RELAYED]})  # nothing that it knows of: no line, and no complaint
    assert disk.length(PATH) is None

    ledger.enter([(ONE, 1)])
    ledger.leave({ONE: [Status.RELAYED]})
    again = LedgerFile(LAYOUT, disk)
    again.read()
    assert again.totals == ledger.totals == Totals(accepted=1, relayed=1)


def test_an_empty_ledger_goes_on_where_there_is_no_room() -> None:
    disk = ModelDisk()
    disk.make_directory(LAYOUT.root)
    disk.close(disk.open_append(PATH))
    ledger = LedgerFile(LAYOUT, disk)
    ledger.read()
    ledger.go_on()
    ledger.enter([(ONE, 2)])
    assert ledger.open == {ONE: 2}
