"""The proof agrees with an oracle that never saw the file, and says what it cannot know."""

import random
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.spool.disk.durable import RealDisk
from relay.throttle import compaction, history, slots
from relay.throttle.admission import Wait
from relay.throttle.history_check import audit_file
from relay.throttle.history_format import (
    At,
    Charged,
    Ended,
    Highest,
    HistoryError,
    Record,
    Reserved,
    Share,
    group,
    header,
)
from relay.throttle.history_states import LARGEST_BYTES
from relay.throttle.limit import ForEach
from relay.throttle.peaks import MOST_KEPT, audit, raised
from relay.throttle.throttle import Request, Reservation, Throttle
from tests.fakes.clock import START_WALL_NS, FakeClock
from tests.fakes.denying import BROKEN, DENIED, Denying
from tests.unit.throttle.limits import (
    PerPeriod,
    granted,
    messages,
    recipients,
    settle,
    throttle,
)
from tests.unit.throttle.memory_disk import MemoryDisk
from tests.unit.throttle.oracle import Seen, worst_window

PATH = Path("/history/isp")


def _content(*records: Record) -> bytes:
    return header("boot") + group(At(10_000, 20_000, 20_000), records)


def test_a_slot_counts_from_reservation_to_t_after_its_end() -> None:
    found = audit(
        _content(
            Reserved(100, 5_000, 1, 2),
            Ended(100, 150),
            Reserved(1_149, 6_000, 1, 3),
            Reserved(1_150, 6_050, 1, 4),
        ),
        [PerPeriod(2, 1_000), PerPeriod(9, 1_000, "recipients"), PerPeriod(1, 1_000)],
    )

    by_messages, by_recipients, by_one = found.findings
    # The first is free at 1,150, at which the last begins.
    assert (by_messages.most, by_messages.most_at_ns, by_messages.is_proven) == (2, 10_000 + 1_149, True)
    assert (by_recipients.most, by_recipients.most_at_ns) == (7, 10_000 + 1_150)
    assert (by_one.is_exceeded, by_one.is_proven) == (True, False)
    assert (found.transactions, found.in_flight, found.since_ns, found.until_ns) == (3, 2, 10_100, 20_000)


def test_merged_ends_count_for_at_most_only() -> None:
    merged = Charged(400, 3, 3, started_at_ns=100, is_merged=True)
    found = audit(_content(merged, Reserved(450, 5_000, 1, 1), Ended(450, 460)), [PerPeriod(3, 1_000)])

    (finding,) = found.findings
    assert (finding.most, finding.at_most) == (1, 4)
    assert (finding.is_exceeded, finding.is_proven, found.merged) == (False, False, 3)


@pytest.mark.parametrize("for_each", [None, "sender"])
def test_where_nothing_is_known_exactly_nothing_was_held_for_sure(for_each: ForEach | None) -> None:
    merged = Charged(400, 3, 3, started_at_ns=100, is_merged=True)
    for records, at_most in (((), 0), ((merged,), 3)):
        (finding,) = audit(_content(*records), [PerPeriod(3, 1_000, for_each=for_each)]).findings
        assert (finding.most, finding.most_at_ns, finding.key) == (0, None, None)
        assert (finding.at_most, finding.is_exceeded, finding.is_proven) == (at_most, False, True)


def test_a_transaction_charged_twice_is_counted_once() -> None:
    known = Reserved(100, 200, 1, 1, 0, (Share("sender", "a", 1, 1),))
    late = Charged(900, 1, 1, started_at_ns=100)
    compacted = Charged(200, 1, 1, started_at_ns=100, shares=known.shares)

    for records in ((known, late), (compacted, late)):
        for limit in (PerPeriod(1, 1_000), PerPeriod(1, 1_000, for_each="sender")):
            found = audit(_content(*records, Reserved(1_900, 3_000, 1, 1)), [limit])
            assert (found.findings[0].most, found.findings[0].at_most) == (
                1,
                1 + (limit.for_each is not None),
            )


def test_a_key_counts_for_itself_and_no_key_for_all() -> None:
    def of(sender: str, at_ns: int) -> Reserved:
        return Reserved(at_ns, at_ns + 10, 1, 1, 0, (Share("sender", sender, 1, 1),))

    found = audit(
        _content(of("a", 100), of("b", 101), of("a", 102), Reserved(103, 113, 1, 1)),
        [PerPeriod(2, 1_000, for_each="sender")],
    )

    (finding,) = found.findings
    assert (finding.most, finding.key, finding.at_most) == (2, "a", 3)


def test_an_edit_that_lowered_the_limit_shows_and_when(memory: MemoryDisk, clock: FakeClock) -> None:
    account = throttle(PATH, memory, clock, [messages(3, seconds=60)])
    settle(account, clock, *granted(account, 1, 1, 1))
    account.flush()

    (finding,) = audit_file(PATH, [messages(2, seconds=60)], memory).findings

    assert (finding.most, finding.is_exceeded) == (3, True)
    assert finding.most_at_ns is not None
    assert abs(finding.most_at_ns - START_WALL_NS) <= 3


@pytest.mark.parametrize("seed", range(24))
def test_it_agrees_with_an_oracle_that_never_saw_the_file(
    seed: int, memory: MemoryDisk, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # From some seeds on histories are rewritten often, and from others merged too.
    if seed % 3:
        monkeypatch.setattr(history, "COMPACT_ABOVE_BYTES", 400)
        monkeypatch.setattr(history, "LONGEST_RECORD_BYTES", 10)
    if seed % 3 == 2:
        monkeypatch.setattr(slots, "EXACT_ENDS", 5)
    draw = random.Random(seed)
    limits = [
        messages(draw.randint(2, 6), 60),
        recipients(draw.randint(3, 9), 90),
        recipients(draw.randint(1, 6), 60, "sender"),
    ]
    account = throttle(PATH, memory, clock, limits)
    seen: list[Seen] = []
    of_sender: dict[str, list[Seen]] = {"a": [], "b": [], "c": []}
    flying: list[tuple[Reservation, Seen]] = []
    edits = 0.05 if seed >= 12 else 0
    for _ in range(150):
        if draw.random() < edits:
            account.replan(draw.sample(limits, draw.randint(1, 3)), 0)
        senders = draw.choices("abc", k=3)
        answers = account.reserve([Request(draw.randint(1, 4), sender=sender) for sender in senders])
        for sender, reservation in zip(senders, answers, strict=True):
            if isinstance(reservation, Reservation):
                flight = Seen(clock.boottime_ns(), reservation.deadline_ns, 1, reservation.recipients)
                seen.append(flight)
                of_sender[sender].append(flight)
                flying.append((reservation, flight))
        clock.advance(draw.randint(0, 20) * SECOND_NS)
        while flying and draw.random() < 0.6:
            reservation, flight = flying.pop(draw.randrange(len(flying)))
            if clock.boottime_ns() < reservation.deadline_ns:
                settle(account, clock, reservation)
                flight.ended_at_ns = clock.boottime_ns()
    account.flush()

    found = audit_file(PATH, limits, memory)

    assert (found.merged > 0) == (seed % 3 == 2)
    for limit, finding in zip(limits, found.findings, strict=True):
        flights = of_sender.values() if limit.for_each else [seen]
        worst = max(worst_window(each, limit.unit, limit.per_ns) for each in flights)
        assert finding.most <= worst <= finding.at_most
        # An edit leaves out limits, and whose it was.
        assert edits or worst <= limit.count
        assert edits or found.merged or finding.most == finding.at_most


@pytest.fixture
def merged_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all but the newest twenty merged, and coarsely, with every tenth message or so."""
    monkeypatch.setattr(slots, "EXACT_ENDS", 20)
    monkeypatch.setattr(slots, "EXACT_SLOTS", 10)
    monkeypatch.setattr(compaction, "BUCKETS", 16)
    monkeypatch.setattr(history, "COMPACT_ABOVE_BYTES", 400)
    monkeypatch.setattr(history, "LONGEST_RECORD_BYTES", 10)


def _pace(account: Throttle, clock: FakeClock, messages: int) -> None:
    """Send so much, each as soon as it may go, and a second long."""
    while messages:
        (answer,) = account.reserve([Request(1)])
        if isinstance(answer, Reservation):
            clock.advance(SECOND_NS)
            settle(account, clock, answer)
            messages -= 1
        else:
            assert isinstance(answer, Wait)
            clock.advance(answer.until_ns - clock.boottime_ns())
    account.flush()


@pytest.mark.usefixtures("merged_early")
def test_a_proof_from_before_a_merge_stays(memory: MemoryDisk, clock: FakeClock) -> None:
    limits, others = [messages(8, 60), recipients(9, 90)], [messages(8, 60), recipients(5, 90)]
    account = throttle(PATH, memory, clock, limits)
    for round_ in range(6):
        _pace(account, clock, 40)
        found = audit_file(PATH, limits, memory)
        by_messages, by_recipients = found.findings
        assert (by_messages.most, by_messages.at_most, by_messages.is_proven) == (8, 8, True)
        assert (by_recipients.most, by_recipients.at_most, by_recipients.is_proven) == (9, 9, True)
        if round_ == 2:
            clock.reboot(down_ns=100 * SECOND_NS)
            account = throttle(PATH, memory, clock, limits)
        if round_ == 3:
            # From now on another process is the one that merges.
            account = throttle(PATH, memory, clock, limits)

    found = audit_file(PATH, limits, memory)
    assert found.merged > 200
    for finding in found.findings:
        assert finding.proven_since_ns is None
        assert finding.counted_until_ns is not None
        assert clock.wall_ns() - 900 * SECOND_NS < finding.counted_until_ns <= clock.wall_ns()
        # The first full window, though all of it was merged long ago.
        assert finding.most_at_ns is not None
        assert finding.most_at_ns < START_WALL_NS + 70 * SECOND_NS
    # An edit that lowers N finds that it was more before.
    (_, exceeded) = audit_file(PATH, others, memory).findings
    assert (exceeded.is_exceeded, exceeded.most) == (True, 9)


@pytest.mark.usefixtures("merged_early")
def test_of_a_limit_that_is_new_it_says_since_when_it_is_proven(memory: MemoryDisk, clock: FakeClock) -> None:
    before, after = [messages(8, 60)], [messages(8, 60), messages(10, 61)]
    account = throttle(PATH, memory, clock, before)
    _pace(account, clock, 100)
    edited_ns = clock.wall_ns()

    for _ in range(3):
        old, new = audit_file(PATH, after, memory).findings
        assert (old.is_proven, old.proven_since_ns, old.at_most) == (True, None, 8)
        assert (new.is_proven, new.is_exceeded) == (False, False)
        assert new.at_most > 10
        assert new.proven_since_ns is not None
        # What is merged counts no more, for one that is new, by a window after its end.
        assert abs(new.proven_since_ns - edited_ns) < 200 * SECOND_NS
        account.replan(after, 0)
        _pace(account, clock, 100)
    # A higher N is proven for all of the time.
    assert audit_file(PATH, [messages(1000, 61)], memory).findings[0].is_proven


@pytest.mark.usefixtures("merged_early")
def test_a_limit_away_at_a_merge_is_proven_from_then_on(memory: MemoryDisk, clock: FakeClock) -> None:
    limits = [messages(8, 60)]
    account = throttle(PATH, memory, clock, limits)
    _pace(account, clock, 60)
    account.replan([messages(10, 90)], 0)
    _pace(account, clock, 60)
    assert account.audit().findings[0].key is None
    account.replan(limits, 0)
    _pace(account, clock, 60)

    (finding,) = audit_file(PATH, limits, memory).findings
    # By the other limit no window of 60 s held more than 10.
    assert finding.most <= 10 <= finding.at_most


def test_counts_of_other_policies_are_kept_within_bounds() -> None:
    counted: list[Highest] = []
    for number in range(2 * MOST_KEPT):
        counted = raised(counted, [PerPeriod(1, 60), PerPeriod(1, 100 + number)], [], number)

    last = 2 * MOST_KEPT - 1
    assert len(counted) == MOST_KEPT
    assert counted[-2:] == [
        Highest(0, last, 0, 0, 0, None, None, "messages", 60, None, None),
        Highest(last, last, 0, 0, 0, None, None, "messages", 100 + last, None, None),
    ]


def test_it_reads_what_it_may_only_read_and_leaves_a_torn_end_alone(memory: MemoryDisk) -> None:
    whole = _content(Reserved(100, 200, 1, 1))
    torn = whole + group(At(1, 2, 3), [Reserved(300, 400, 1, 1)])[:-1]
    memory.put(str(PATH), torn)
    before = list(memory.operations)

    assert audit_file(PATH, [PerPeriod(1, 100)], memory).transactions == 1
    assert (memory.read(str(PATH)), memory.operations) == (torn, before)


@pytest.mark.parametrize("content", [b"", b"user: password\n", header("boot"), header("boot") + b"group 9"])
def test_what_is_no_history_is_no_proof(content: bytes, memory: MemoryDisk) -> None:
    memory.put(str(PATH), content)

    with pytest.raises(HistoryError, match=f"{PATH}: byte"):
        audit_file(PATH, [PerPeriod(1, 100)], memory)
    with pytest.raises(FileNotFoundError):
        audit_file(PATH.with_name("absent"), [PerPeriod(1, 100)], memory)


def test_what_cannot_be_read_is_no_proof(tmp_path: Path) -> None:
    path = tmp_path / "isp"
    path.write_bytes(_content(Reserved(100, 200, 1, 1)))
    limits = [PerPeriod(1, 100)]
    for disk in (Denying("isp", BROKEN), Denying("isp", BROKEN, when_read=True)):
        with pytest.raises(HistoryError, match="cannot read"):
            audit_file(path, limits, disk)
    with pytest.raises(PermissionError):
        audit_file(path, limits, Denying("isp", DENIED))
    with path.open("r+b") as file:
        file.truncate(LARGEST_BYTES + 1)
    with pytest.raises(HistoryError, match="no history"):
        audit_file(path, limits, RealDisk())


def test_an_end_without_a_beginning_changes_nothing() -> None:
    content = _content(Ended(7, 500), Charged(300, 1, 1, 0, 100), Charged(250, 1, 1, 0, 100))
    proof = audit(content, [PerPeriod(1, 100)])
    assert proof.transactions == 1


def test_no_slot_is_given_away_as_of_before_a_slow_disk(tmp_path: Path) -> None:
    """The event loop asks meanwhile, by a later clock than the decision's."""
    clock = FakeClock()

    class Slow(RealDisk):
        stall_ns = 0

        def inode(self, path: str) -> int | None:
            if self.stall_ns:
                clock.advance(self.stall_ns)
                self.stall_ns = 0
                account.opens_at_ns(1)
            return super().inode(path)

    disk, limits = Slow(), [messages(1, seconds=60)]
    account = throttle(tmp_path / "isp", disk, clock, limits)
    settle(account, clock, *granted(account, 1))
    clock.advance(56 * SECOND_NS)
    disk.stall_ns = 5 * SECOND_NS

    assert len(granted(account, 1)) == 1
    account.close()
    assert audit_file(tmp_path / "isp", limits, RealDisk()).findings[0].is_proven
