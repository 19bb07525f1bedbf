"""The proof agrees with an oracle that never saw the file, and says what it cannot know."""

import random
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.throttle.bounds import BOUNDS, HistoryBounds
from relay.throttle.history_check import audit_file
from relay.throttle.history_format import (
    HistoryError,
    header,
)
from relay.throttle.throttle import Request, Reservation
from tests.engines.history.limits import (
    PerPeriod,
    messages,
    recipients,
    settle,
    throttle,
)
from tests.engines.history.memory_disk import MemoryDisk
from tests.engines.history.oracle import Seen, worst_window
from tests.fakes.clock import FakeClock

PATH = Path("/history/isp")


@pytest.mark.parametrize("seed", range(6))
def test_it_agrees_with_an_oracle_that_never_saw_the_file(
    seed: int, memory: MemoryDisk, clock: FakeClock
) -> None:
    # Of some seeds histories are rewritten often, of some merged too, and of some limits edited.
    bounds = [BOUNDS, HistoryBounds(400, 10), HistoryBounds(400, 10, exact_ends=5)][seed % 3]
    draw = random.Random(seed)
    limits = [
        messages(draw.randint(2, 6), 60),
        recipients(draw.randint(3, 9), 90),
        recipients(draw.randint(1, 6), 60, "sender"),
    ]
    account = throttle(PATH, memory, clock, limits, bounds)
    seen: list[Seen] = []
    of_sender: dict[str, list[Seen]] = {"a": [], "b": [], "c": []}
    flying: list[tuple[Reservation, Seen]] = []
    edits = 0.05 if seed >= 3 else 0
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


def test_what_is_no_history_is_no_proof(memory: MemoryDisk) -> None:
    for content in (b"", b"user: password\n", header("boot"), header("boot") + b"group 9"):
        memory.put(str(PATH), content)
        with pytest.raises(HistoryError, match=f"{PATH}: byte"):
            audit_file(PATH, [PerPeriod(1, 100)], memory)
    with pytest.raises(FileNotFoundError):
        audit_file(PATH.with_name("absent"), [PerPeriod(1, 100)], memory)
