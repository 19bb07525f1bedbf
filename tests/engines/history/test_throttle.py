"""`Throttle` as its callers see it, over restarts, policy edits, failures and clock steps."""

import contextlib
import errno
import random
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.mail.envelope import Envelope
from relay.throttle.admission import Place, Request, TooLarge, Wait, request_for
from relay.throttle.file_history import LONGEST_BELIEVED_NS, REPLACE_ABOVE_BYTES
from relay.throttle.history import HistoryError
from relay.throttle.limit import ForEach, Limit
from relay.throttle.throttle import Reservation, Throttle
from tests.engines.history.limits import (
    TRANSACTION_NS,
    ask,
    granted,
    limit,
    messages,
    recipients,
    settle,
    throttle,
    waiting,
)
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault, Killed, ModelDisk

PATH = Path("/history/isp")
LIMITS = [messages(3, seconds=60)]
SPELLINGS = [
    ["a@h.example", '"a"@h.example', '"\\a"@h.example', "A@H.example.", "a@h\u3002example\u3002"],
    ['"a b"@h.example', '"a\\ b"@h.example', '"A b"@h.example'],
    ["a@[IPv6:2001:db8::1]", "a@[ipv6:2001:0DB8:0:0::0001]", '"a"@[IPv6:2001:db8::1]'],
    ["\u00e9@h.example", "e\u0301@h.example", "\u00c9@h.example", '"e\u0301"@h.example'],
    ["a@b\u00fccher.example", "a@bu\u0308cher.example", "a@XN--BCHER-KVA.example"],
]


def _request(reverse_path: str, *to: str, user: str = "", client: str = "local") -> Request:
    whose = reverse_path, to or ("c@d.example",)
    envelope = Envelope(*whose, 0, client, "here", "ESMTP", user=user or None)
    return request_for(envelope, range(len(envelope.recipients)), 100)


def _went(account: Throttle, *requests: Request) -> list[bool]:
    return [isinstance(account.reserve([each])[0], Reservation) for each in requests]


@pytest.mark.parametrize("reopened", [False, True])
def test_instant_transactions_get_exactly_n_in_every_period(
    reopened: bool, memory: ModelDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, LIMITS)
    start_ns = clock.boottime_ns()
    started_at_ns: list[int] = []

    while len(started_at_ns) < 15:
        for reservation in granted(account, *[1] * 5):
            started_at_ns.append(clock.boottime_ns() - start_ns)
            settle(account, clock, reservation)
        if reopened:
            account.flush()
            account.close()
            account = throttle(PATH, memory, clock, LIMITS)
        clock.advance(waiting(account).until_ns - clock.boottime_ns())

    assert started_at_ns == [period * 60 * SECOND_NS for period in range(5) for _ in range(3)]


@pytest.mark.parametrize(("ends_s", "opens_s"), [(0, 60), (25, 85), (None, 160), (170, 230)])
def test_a_slot_is_occupied_from_its_reservation_until_a_period_after_its_end(
    ends_s: int | None, opens_s: int, memory: ModelDisk, clock: FakeClock
) -> None:
    """An unknown end counts as the deadline. An end after the deadline is charged again."""
    account = throttle(PATH, memory, clock, [messages(1, seconds=60)])
    (reservation,) = granted(account, 1)
    opens_ns = clock.boottime_ns() + opens_s * SECOND_NS
    assert reservation.deadline_ns == clock.boottime_ns() + TRANSACTION_NS
    if ends_s is not None:
        clock.advance(ends_s * SECOND_NS)
        settle(account, clock, reservation)

    clock.advance(opens_ns - clock.boottime_ns() - 1)
    for each in (account, throttle(PATH, memory, clock, [messages(1, seconds=60)])):
        assert waiting(each).until_ns == opens_ns
    clock.advance(1)
    assert len(granted(account, 1)) == 1


def test_a_message_is_split_to_fit_and_none_overtakes_a_waiting_message(
    memory: ModelDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, [recipients(10, seconds=60), messages(3, seconds=60)])

    first, second, third, fourth = ask(account, 4, 9, 1, 1)

    assert [a.recipients for a in (first, second) if isinstance(a, Reservation)] == [4, 6]
    assert isinstance(third, Wait)
    assert third == fourth
    assert [usage.used for usage in account.usage()] == [10, 2]


def test_bytes_wait_for_room_and_a_message_that_never_fits_blocks_no_other(
    memory: ModelDisk, clock: FakeClock
) -> None:
    most = limit(100, 60 * SECOND_NS, "bytes")
    account = throttle(PATH, memory, clock, [most])

    large, first, wide, small = account.reserve([Request(1, size_bytes=each) for each in (101, 60, 50, 1)])

    assert large == TooLarge(most)
    assert isinstance(first, Reservation)
    assert isinstance(wide, Wait)
    assert small == wide


@pytest.mark.parametrize("same", SPELLINGS)
@pytest.mark.parametrize("kind", ["sender", "sender_domain", "recipient_domain"])
def test_a_limit_for_each_key_holds_for_all_spellings_and_blocks_no_other_key(
    kind: ForEach, same: list[str], memory: ModelDisk, clock: FakeClock
) -> None:
    each = Limit("messages", 3, 3600 * SECOND_NS, "each", kind)
    account = throttle(PATH, memory, clock, [each])

    assert sum(_went(account, *[_request(address, address) for address in same * 3])) == 3
    assert _went(account, _request("z@other.example", "z@other.example")) == [True]
    (wait,) = account.reserve([_request(same[0], same[0])])
    assert isinstance(wait, Wait)
    assert wait.place is not None
    assert wait.place.for_each == kind


def test_a_client_is_an_address_and_a_user_is_any_text() -> None:
    whose = _request("a@b.example", client="mail.example[2001:DB8::1]", user="zo\u00eb b")

    assert (whose.client, whose.user) == ("2001:db8::1", "zo%c3%ab%20b")


def test_a_message_waits_for_the_first_of_its_domains_that_opens(memory: ModelDisk, clock: FakeClock) -> None:
    account = throttle(PATH, memory, clock, [messages(1, 60, "recipient_domain")])
    opens_ns = {}
    for domain in ("x", "y"):
        (reserved,) = account.reserve([Request(1, recipient_domains=(domain,))])
        assert isinstance(reserved, Reservation)
        settle(account, clock, reserved)
        opens_ns[domain] = clock.boottime_ns() + 60 * SECOND_NS
        clock.advance(20 * SECOND_NS)

    for domains in ("x", "y"), ("y", "x"):
        (wait,) = account.reserve([Request(2, recipient_domains=domains)])
        assert isinstance(wait, Wait)
        assert (wait.until_ns, wait.place) == (opens_ns["x"], Place("recipient_domain", "x"))
    clock.advance(20 * SECOND_NS)
    (reserved,) = account.reserve([Request(2, recipient_domains=("y", "x"))])
    assert isinstance(reserved, Reservation)
    assert reserved.chosen == [1]


def test_usage_and_settle_do_not_wait_for_a_sync_of_the_disk(memory: ModelDisk, clock: FakeClock) -> None:
    account = throttle(PATH, memory, clock, [messages(2, seconds=60)])
    (first,) = granted(account, 1)
    told: list[int] = []

    def meanwhile(step: str) -> None:
        if step.startswith("sync_content"):
            settle(account, clock, first)
            told.extend((account.usage()[0].opens_at_ns, account.usage()[0].used))

    memory.before = meanwhile
    granted(account, 1)

    assert told == [clock.boottime_ns() + 60 * SECOND_NS, 2]


def test_a_file_whose_name_may_not_be_durable_is_written_again_before_a_grant(
    memory: ModelDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, LIMITS, replace_above_bytes=0)
    settle(account, clock, *granted(account, 1))
    inode = memory.inode(str(PATH))
    memory.fail(Fault(1, errno.EIO, kinds=frozenset({"sync_directory"}), forever=True))
    while memory.inode(str(PATH)) == inode:
        with contextlib.suppress(HistoryError):
            ask(account, 1)
        clock.advance(200 * SECOND_NS)
    memory.heal()
    doubtful = memory.inode(str(PATH))
    assert len(granted(account, 1)) == 1
    # A second sync of that name would prove nothing.
    assert memory.inode(str(PATH)) != doubtful

    cut = ModelDisk(memory.platter.after_cut(()))
    assert len(granted(throttle(PATH, cut, clock, LIMITS), 1, 1, 1)) == 2


@pytest.mark.parametrize("call", ["sync_content", "sync_directory"])
def test_writes_of_a_killed_process_are_durable_before_another_appends(call: str, clock: FakeClock) -> None:
    """One process dies in its commit or its replacement of the file. Another continues until a power cut."""
    limits, above = [messages(99, seconds=60)], 0 if call == "sync_directory" else REPLACE_ABOVE_BYTES
    disk = ModelDisk()
    disk_of_one = disk.another()
    one = throttle(PATH, disk_of_one, clock, limits, replace_above_bytes=above)
    other = throttle(PATH, disk, clock, limits)
    granted(one, 1)
    other.flush()

    def die(kind: str) -> None:
        if kind.startswith(call):
            raise Killed

    disk_of_one.before = die
    with pytest.raises(Killed):
        [granted(one, *[1] * 8) for _ in range(9)]  # more than a sector each
    images: list[ModelDisk] = []
    disk.after = lambda: images.extend(disk.cuts(random.Random(0), 128))
    granted(other, 1)

    for image in images:
        throttle(PATH, image, clock, limits).flush()
    for image in disk.cuts(random.Random(0), 128):
        account = throttle(PATH, image, clock, limits)
        account.flush()
        assert account.usage()[0].used >= other.usage()[0].used


def _opens_in_s(memory: ModelDisk, clock: FakeClock) -> float:
    """Return the seconds until a slot is free, as a new process computes them from the file."""
    account = throttle(PATH, memory, clock, [messages(2, seconds=60)])
    account.flush()
    return (account.usage()[0].opens_at_ns - clock.boottime_ns()) / SECOND_NS


@pytest.mark.parametrize(
    ("down_s", "step_s", "opens_in_s"),
    [
        (10, 0, 25),  # both clocks agree: 15 s passed, with the boot
        (10, -3600, 40),  # the wall clock went back: no time counts as passed
        (1, -1_760_000_000, 40),  # 1970
        (1, 70 * 365 * 86_400, 40),  # 2096
        (LONGEST_BELIEVED_NS // SECOND_NS + 60, 0, 40),  # off for longer than the believed maximum
    ],
)
def test_after_a_reboot_only_as_much_time_counts_as_the_wall_clock_can_be_believed(
    down_s: int, step_s: int, opens_in_s: float, memory: ModelDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, [])
    settle(account, clock, *granted(account, 1))
    account.flush()
    clock.advance(20 * SECOND_NS)
    clock.step_wall(-(10**17))
    clock.step_wall(10**17)
    granted(account, 1)
    clock.reboot(down_s * SECOND_NS, boottime_ns=5 * SECOND_NS)
    clock.step_wall(step_s * SECOND_NS)

    assert _opens_in_s(memory, clock) == opens_in_s
    # Later starts, by whatever clock, still know this and count no more time than truly passed.
    clock.step_wall(-step_s * SECOND_NS)
    clock.reboot(SECOND_NS, boottime_ns=0)
    assert _opens_in_s(memory, clock) >= min(opens_in_s, max(0, 40 - down_s - 5)) - 1
