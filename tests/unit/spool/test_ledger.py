"""The ledger: an account that balances over restarts, whatever a crash does to its last lines."""

import errno
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relay.mail.envelope import QueueId
from relay.spool.interface import Status, Totals
from relay.spool.maildir.layout import Layout
from relay.spool.maildir.ledger_file import LedgerFile
from tests.fakes.disk import Fault, ModelDisk

LAYOUT = Layout("/spool")
PATH = LAYOUT.file("ledger")
RELAYED, BOUNCED, EXPIRED, DELETED = Status.RELAYED, Status.BOUNCED, Status.EXPIRED, Status.DELETED


def queue_id(number: int) -> QueueId:
    return QueueId(f"{number:016d}")


def opened_on(disk: ModelDisk) -> LedgerFile:
    ledger = LedgerFile(LAYOUT, disk)
    ledger.read()
    return ledger


def test_the_ledger_adds_up_or_says_by_how_much_it_does_not() -> None:
    assert Totals(accepted=10, relayed=4, bounced=2, expired=1, deleted=1, queued=2).imbalance == 0
    assert Totals(accepted=10, relayed=4, queued=2).imbalance == 4


def started() -> tuple[ModelDisk, LedgerFile]:
    disk = ModelDisk()
    disk.make_directory("/spool")
    ledger = opened_on(disk)
    ledger.rewrite()
    return disk, ledger


def test_a_message_counts_once_though_it_enters_and_leaves_often() -> None:
    disk, ledger = started()
    for _ in range(3):
        ledger.enter([(queue_id(1), 4), (queue_id(2), 1)])
    for _ in range(3):
        ledger.leave({queue_id(1): [RELAYED, BOUNCED, EXPIRED, DELETED]})
        ledger.enter([(queue_id(1), 4)])
    assert ledger.totals == Totals(accepted=5, relayed=1, bounced=1, expired=1, deleted=1)
    assert ledger.open == {queue_id(2): 1}
    assert ledger.closed == {queue_id(1)}

    again = opened_on(disk)
    assert (again.totals, again.open, again.closed) == (ledger.totals, ledger.open, ledger.closed)


def test_reading_twice_is_reading_once() -> None:
    _, ledger = started()
    ledger.enter([(queue_id(1), 4), (queue_id(2), 1)])
    ledger.leave({queue_id(2): [RELAYED]})
    before = ledger.totals, dict(ledger.open), set(ledger.closed)
    ledger.read()
    ledger.read()

    assert (ledger.totals, ledger.open, ledger.closed) == before


def test_a_rewrite_keeps_the_meaning_and_forgets_what_is_gone() -> None:
    disk, ledger = started()
    for _ in range(3):
        ledger.enter([(queue_id(1), 4), (queue_id(2), 1), (queue_id(3), 1)])
        ledger.leave({queue_id(2): [RELAYED], queue_id(3): [BOUNCED]})
        ledger.rewrite(still_there=[queue_id(3)])
        assert ledger.totals == Totals(accepted=6, relayed=1, bounced=1)
        assert ledger.closed == {queue_id(3)}
        ledger = opened_on(disk)
        assert ledger.totals == Totals(accepted=6, relayed=1, bounced=1)
        assert (ledger.open, ledger.closed) == ({queue_id(1): 4}, {queue_id(3)})
        ledger.closed.add(queue_id(2))
        ledger.rewrite(still_there=ledger.closed)


def test_what_left_is_durable_and_so_is_what_entered_before() -> None:
    disk, ledger = started()
    ledger.enter([(queue_id(number), 2) for number in range(30)])
    ledger.leave({queue_id(0): [RELAYED, RELAYED]})
    ledger.enter([(queue_id(30), 2)])

    for image in disk.subsets(random.Random(0), 64):
        found = opened_on(image)
        assert found.totals.relayed == 2
        assert found.totals.accepted in (60, 62)
        assert len(found.open) in (29, 30)


def test_an_out_whose_in_was_torn_counts_for_both() -> None:
    disk, ledger = started()
    before = disk.peek(PATH)
    ledger.enter([(queue_id(1), 3)])
    entered = disk.peek(PATH)[len(before) :]
    ledger.leave({queue_id(1): [RELAYED, RELAYED, BOUNCED]})
    disk.poke(PATH, disk.peek(PATH).replace(entered, bytes(len(entered) - 1) + b"\n"))

    again = opened_on(disk)
    assert again.totals == Totals(accepted=3, relayed=2, bounced=1)
    assert again.damaged_lines == 1


def test_what_changes_nothing_writes_nothing() -> None:
    disk, ledger = started()
    ledger.enter([(queue_id(1), 1)])
    disk.steps.clear()

    ledger.enter([])
    ledger.enter([(queue_id(1), 1)])
    ledger.leave({})
    ledger.leave({queue_id(2): [RELAYED]})
    ledger.put_aside(queue_id(2))
    assert disk.steps == []


def test_a_long_ledger_that_goes_on_is_durable_under_its_name() -> None:
    """Killed between the rename and the sync of the folder; the next start has no room for a new file."""
    disk, ledger = started()
    ledger.enter([(queue_id(1), 2)])
    disk.fail(Fault(1, errno.EIO, kinds=frozenset({"sync_directory"})))
    with pytest.raises(OSError, match="Input/output"):
        ledger.rewrite()
    after = disk.after_kill()

    opened_on(after).go_on()

    for image in after.prefixes():
        assert opened_on(image).open == {queue_id(1): 2}


def test_what_was_never_counted_in_is_counted_out_for_nothing() -> None:
    _, ledger = started()
    ledger.enter([(queue_id(1), 2)])

    assert ledger.forget({queue_id(1), queue_id(2)}) == 2
    assert ledger.totals == Totals(accepted=2, deleted=2)


def test_a_damaged_line_costs_its_own_figures_only() -> None:
    disk, ledger = started()
    ledger.enter([(queue_id(number), 1) for number in range(4)])
    ledger.leave({queue_id(0): [RELAYED]})
    whole = disk.peek(PATH)
    for place in range(len(whole)):
        disk.poke(PATH, whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        again = opened_on(disk)
        assert again.damaged_lines in (1, 2)
        assert 2 <= again.totals.accepted <= 4


@pytest.mark.parametrize("line", ["in", "in x", "out x 1 2 3", "total 1 2", "total 1 2 3 4 5 6", "hello", ""])
def test_a_whole_line_that_means_nothing_is_counted_as_damaged(line: str) -> None:
    import zlib

    disk, ledger = started()
    ledger.enter([(queue_id(1), 1)])
    disk.poke(PATH, disk.peek(PATH) + b"%s %08x\n" % (line.encode(), zlib.crc32(line.encode())))

    again = opened_on(disk)
    assert again.damaged_lines == 1
    assert again.totals == Totals(accepted=1)


def test_a_rewrite_that_is_cut_leaves_the_old_ledger_or_the_new() -> None:
    disk, ledger = started()
    ledger.enter([(queue_id(1), 2), (queue_id(2), 1)])
    ledger.leave({queue_id(2): [RELAYED]})
    images: list[ModelDisk] = []
    rng = random.Random(0)
    disk.after = lambda: images.extend(disk.subsets(rng, 32))
    ledger.rewrite()

    assert len(images) > 10
    assert all(opened_on(image).totals == Totals(accepted=3, relayed=1) for image in images)


@pytest.mark.parametrize("nth", range(1, 6))
def test_a_rewrite_that_fails_leaves_a_ledger_that_goes_on(nth: int) -> None:
    disk, ledger = started()
    ledger.enter([(queue_id(1), 2)])
    disk.fail(Fault(nth, errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        ledger.rewrite()
    ledger.enter([(queue_id(2), 1)])
    ledger.leave({queue_id(2): [RELAYED]})

    again = opened_on(disk)
    assert again.totals == Totals(accepted=3, relayed=1)
    assert again.open == {queue_id(1): 2}


class AnyAccount(RuleBasedStateMachine):
    """Any order of calls, full disks, failed syncs, restarts and power cuts, against a plain count."""

    def __init__(self) -> None:
        super().__init__()
        self.disk, self.ledger = started()
        self.there: dict[QueueId, int] = {}
        self.next = 0
        self.relayed = 0
        self.accepted = 0

    @rule(count=st.integers(1, 3))
    def enter(self, count: int) -> None:
        self.next += 1
        self.there[queue_id(self.next)] = count
        self.accepted += count
        self.ledger.enter([(queue_id(self.next), count)])

    @precondition(lambda self: self.there)
    @rule(drawn=st.data(), kinds=st.sampled_from([None, "write", "sync_content"]), is_short=st.booleans())
    def leave(self, drawn: st.DataObject, *, kinds: str | None, is_short: bool) -> None:
        gone = drawn.draw(st.sampled_from(sorted(self.there)))
        count = self.there.pop(gone)
        if kinds is not None:
            self.disk.fail(Fault(1, errno.ENOSPC, kinds=frozenset({kinds}), is_short=is_short))
        # As `finish` does, and again when there is room.
        for _ in range(2):
            try:
                self.ledger.enter([(gone, count)])
                self.ledger.leave({gone: [RELAYED] * count})
            except OSError:
                continue
        self.disk.heal()
        self.relayed += count

    @rule()
    def restart(self) -> None:
        self.disk = self.disk.after_kill()
        self._start()

    @rule(seed=st.integers(0, 1000))
    def cut(self, seed: int) -> None:
        *_, self.disk = self.disk.subsets(random.Random(seed), 7)
        self._start()

    def _start(self) -> None:
        self.ledger = opened_on(self.disk)
        self.ledger.rewrite(still_there=self.ledger.closed)
        # What is on disk and lost its line is counted in, as recovery does.
        self.ledger.enter(sorted(self.there.items()))

    @invariant()
    def is_right(self) -> None:
        assert self.ledger.totals == Totals(accepted=self.accepted, relayed=self.relayed)
        assert self.ledger.open == self.there


AnyAccount.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAccount = AnyAccount.TestCase


def test_lines_go_on_in_the_file_that_a_failed_rewrite_left() -> None:
    for kind in ("sync", "rename", "sync_directory"):
        disk, ledger = started()
        ledger.enter([(queue_id(1), 1)])
        disk.fail(Fault(1, errno.ENOSPC, kinds=frozenset({kind})))
        with pytest.raises(OSError, match="space"):
            ledger.rewrite()
        disk.heal()

        ledger.leave({queue_id(1): [RELAYED]})

        for image in (disk, *disk.cuts(random.Random(1), 16)):
            assert opened_on(image).totals == Totals(accepted=1, relayed=1)
