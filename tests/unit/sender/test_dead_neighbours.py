"""What a process that died left in flight costs those that share its history."""

from relay.clock import SECOND_NS
from relay.sender.throttle_thread import ThrottleThread
from relay.throttle.history import HistoryError
from relay.throttle.throttle import Throttle
from tests.engines.history.limits import TRANSACTION_NS, granted, messages
from tests.engines.history.memory_history import Kept, MemoryHistory
from tests.fakes.clock import FakeClock


async def test_slots_of_the_dead_are_asked_about_once_a_second_and_not_at_each_beat() -> None:
    clock, limits = FakeClock(), [messages(3, seconds=60)]
    kept = Kept(clock)
    granted(Throttle(MemoryHistory(kept), limits, 0, clock, transaction_ns=TRANSACTION_NS), 1)
    throttle = Throttle(MemoryHistory(kept), limits, 0, clock)
    thread = ThrottleThread(throttle, clock, list[HistoryError]().append)
    before = kept.transactions
    await thread.open()

    for _ in range(3):
        for _ in range(20):
            await thread.hear_of_others()
        clock.advance(SECOND_NS)
    assert kept.transactions == before + 1 + 3

    # Once their deadline is over nothing is asked any more.
    clock.advance(TRANSACTION_NS)
    await thread.hear_of_others()
    await thread.hear_of_others()
    assert thread.usage()[0].used == 1
    before = kept.transactions
    clock.advance(SECOND_NS)
    await thread.hear_of_others()
    assert kept.transactions == before
    await thread.close()
