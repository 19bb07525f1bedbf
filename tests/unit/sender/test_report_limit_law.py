"""However reports come, and whatever ends in between: never more than the policy says in any hour."""

import asyncio
import io
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.policy.model import Policy
from relay.queue.queued import Queued, origin_of
from relay.queue.whole import Queue
from relay.sender.report_limit import HOUR_NS, OwedReports
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from relay.telemetry.telemetry import Telemetry
from tests.fakes.clock import FakeClock
from tests.unit.sender.in_process_relay import policy_of
from tests.unit.throttle.memory_disk import MemoryDisk

MINUTE_NS = 60 * SECOND_NS
UNLIMITED = 10**9
steps = st.lists(
    st.one_of(
        st.tuples(st.just("report"), st.just(0)),
        st.tuples(st.just("warning"), st.just(0)),
        st.tuples(st.just("pass"), st.integers(0, 90)),
        st.tuples(st.just("edit"), st.integers(0, 5)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=40,
)


class Cap:
    """The reports of one spool, and every one that was let go, with the number in force then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = FakeClock()
        self.disk = MemoryDisk()
        self.policy = self.allowing(3)
        self.went: list[tuple[int, int]] = []
        self.waiting: list[QueueId] = []
        self.owed = self.started()

    def allowing(self, per_hour: int) -> Policy:
        shown = per_hour or "null"
        retry = "retry: {min: 1s, max: 2s, lifetime: 1d}"
        return policy_of(self.folder, 25, rest=f"{retry}\nreports: {{per_hour: {shown}}}")

    def started(self) -> OwedReports:
        self.queue = Queue()
        self.log = io.StringIO()
        events = Events(self.log, "text", self.clock)
        telemetry = Telemetry(events, Metrics(self.clock), self.clock)
        return OwedReports(self.policy, self.queue, self.disk, telemetry)

    async def ask(self, *, is_warning: bool) -> None:
        was_waiting = bool(self.waiting)
        if await self.owed.may_go(is_warning=is_warning):
            assert not was_waiting, "who comes later went first"
            self.went.append((self.clock.boottime_ns(), self.policy.reports.per_hour or UNLIMITED))
        elif not is_warning:
            queue_id = QueueId(f"{len(self.went) + len(self.waiting):016}")
            queued = Queued(queue_id, origin_of("a@here.example"), 1, 0, 0)
            self.queue.add(queued, now_ns=0)
            self.owed.wait(queued)
            self.waiting.append(queue_id)

    async def settle_down(self) -> None:
        """Let those go that may go by now."""
        running = asyncio.create_task(self.owed.run(self.report))
        last = -1
        while last != len(self.went):
            last = len(self.went)
            # A decision crosses a thread: the last one has been taken when another has.
            await self.owed._gate._call(lambda: None)
            for _ in range(20):
                await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def report(self, queue_id: QueueId) -> bool:
        assert queue_id == self.waiting.pop(0), "first come, first served"
        self.queue.remove(queue_id)
        self.went.append((self.clock.boottime_ns(), self.policy.reports.per_hour or UNLIMITED))
        return True

    async def restart(self) -> None:
        """Begin anew with the same disk, as after a kill: what waited is found in the spool."""
        before, ids = self.owed, self.waiting
        if before._gate._flush is not None:
            before._gate._flush.cancel()
        before._gate._thread.close()
        self.disk.bury()
        self.owed, self.waiting = self.started(), []
        for queue_id in ids:
            queued = Queued(queue_id, origin_of("a@here.example"), 1, 0, 0)
            if await self.owed.may_go():
                self.went.append((self.clock.boottime_ns(), self.policy.reports.per_hour or UNLIMITED))
            else:
                self.owed.wait(queued)
                self.waiting.append(queue_id)

    async def play(self, given_steps: list[tuple[str, int]]) -> None:
        for step, number in given_steps:
            match step:
                case "report" | "warning":
                    await self.ask(is_warning=step == "warning")
                case "pass":
                    self.clock.advance(number * MINUTE_NS)
                    await self.settle_down()
                case "edit":
                    self.policy = self.allowing(number)
                    await self.owed.use(self.policy)
                    await self.settle_down()
                case _:
                    await self.restart()
        await self.owed.close()


@settings(max_examples=60, deadline=None)
@given(steps)
def test_no_hour_holds_more_reports_than_allowed_first_come_first(
    given_steps: list[tuple[str, int]],
) -> None:
    cap = Cap(Path.cwd())

    asyncio.run(cap.play(given_steps))

    # While there is no number nothing is counted; the first that an edit gives starts counting.
    counted = [(at_ns, most) for at_ns, most in cap.went if most != UNLIMITED]
    for index, (at_ns, most) in enumerate(counted):
        in_the_hour = [before_ns for before_ns, _ in counted[:index] if before_ns > at_ns - HOUR_NS]
        assert len(in_the_hour) < most, cap.went


async def test_a_report_that_cannot_be_made_now_lets_others_go_first() -> None:
    cap = Cap(Path.cwd())
    first, second = QueueId("0000000000000001"), QueueId("0000000000000002")
    asked: list[QueueId] = []
    was_asked = asyncio.Event()

    async def report(queue_id: QueueId) -> bool:
        asked.append(queue_id)
        was_asked.set()
        if len(asked) > 1:
            cap.queue.remove(queue_id)
        return len(asked) > 1

    for queue_id in (first, second):
        cap.owed.wait(Queued(queue_id, origin_of("a@here.example"), 1, 0, 0))
    running = asyncio.create_task(cap.owed.run(report))
    await was_asked.wait()
    # Not at once: it would take every slot of the hour.
    assert asked == [first]
    while len(asked) < 3:
        cap.owed.wake()
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await cap.owed.close()

    assert asked == [first, second, first]
    assert not await cap.owed.may_go(), "what is owed from now on waits for the next start"
