"""What the recent past hears, writes and drops, and that none of it is anybody's trouble."""

import asyncio
import errno
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.smtp.reply import Phase
from relay.spool.disk.durable import Disk
from relay.telemetry import recent_past
from relay.telemetry.endings import PastEnding
from relay.telemetry.events import Delays, Events, Via
from relay.telemetry.past_files import PastReader
from relay.telemetry.recent_past import RecentPast, past_folder
from relay.verdicts.decision import Fate
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault, ModelDisk

FOLDER = past_folder("/spool")
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Limits:
    keep_ns: int = 7 * 86_400 * SECOND_NS
    most_bytes: int = 1024 * 1024


class Hearing:
    """A recent past on a disk in memory, and the log that it hears."""

    def __init__(self, bounds: Limits | None = Limits(), disk: Disk | None = None) -> None:
        self.log, self.clock = io.StringIO(), FakeClock()
        self.model = ModelDisk()
        self.model.now_ns = self.clock.wall_ns()
        self.disk = disk or self.model
        self.events = Events(self.log, "text", self.clock)
        self.past = RecentPast(FOLDER, bounds, self.disk, events=self.events, clock=self.clock)

    def end(self, recipient: str, fate: Fate = Fate.RELAYED, text: str = "250 2.0.0 Ok") -> None:
        self.events.delivery(
            queue_id=QueueId("0000000000000001"),
            reverse_path="a@here.example",
            recipient=recipient,
            fate=fate,
            answer=Answer(Verdict.RELAYED, Phase.EOD, None, text, own_status="2.0.0"),
            delays=Delays(),
            via=Via("isp", "smtp.test[192.0.2.1]:587", 1, None),
            message_id="<1@here.example>",
        )

    def found(self) -> list[PastEnding]:
        return list(PastReader(FOLDER, self.model).endings(lambda _: True))

    @property
    def said(self) -> str:
        self.events.flush()
        return self.log.getvalue()

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                self.events.flush()
                await asyncio.sleep(0)


async def test_what_ended_is_kept_with_its_reply_and_what_did_not_is_not() -> None:
    hearing = Hearing()
    hearing.end("before@the.start")
    hearing.past.start()
    hearing.end("b@x.example")
    hearing.end("later@x.example", Fate.DEFERRED)
    hearing.end("no@x.example", Fate.BOUNCED, "550 5.1.1 no")
    hearing.events.recipient_deleted(
        queue_id=QueueId("0000000000000002"), message_id=None, reverse_path="", recipient="gone@x.example"
    )
    hearing.events.removed(queue_id=QueueId("0000000000000001"))
    await hearing.past.close()

    found = hearing.found()
    assert [(each.recipient, each.became, each.reply) for each in found] == [
        ("gone@x.example", "deleted", ""),
        ("no@x.example", "bounced", "550 5.1.1 no"),
        ("b@x.example", "relayed", "250 2.0.0 Ok"),
        ("before@the.start", "relayed", "250 2.0.0 Ok"),
    ]
    assert found[2] == PastEnding(
        hearing.clock.wall_ns(),
        "0000000000000001",
        "<1@here.example>",
        "a@here.example",
        "b@x.example",
        "relayed",
        "isp",
        "smtp.test[192.0.2.1]:587",
        "2.0.0",
        "250 2.0.0 Ok",
    )
    assert hearing.events.lines_lost == 0


async def test_it_is_written_without_a_stop() -> None:
    hearing = Hearing()
    hearing.past.start()
    hearing.end("b@x.example")

    await hearing.until(hearing.found)
    hearing.end("c@x.example")
    await hearing.until(lambda: len(hearing.found()) == 2)

    await hearing.past.close()
    await hearing.past.close()


async def test_switched_off_it_keeps_nothing_and_removes_what_was_kept() -> None:
    hearing = Hearing()
    hearing.past.start()
    hearing.end("b@x.example")
    await hearing.until(hearing.found)

    hearing.past.use(None)
    hearing.end("c@x.example")
    await hearing.until(lambda: not hearing.found())
    hearing.past.use(Limits())
    hearing.end("d@x.example")
    await hearing.past.close()

    assert [each.recipient for each in hearing.found()] == ["d@x.example"]


async def test_a_start_with_it_switched_off_removes_what_was_kept() -> None:
    before = Hearing()
    before.past.start()
    before.end("b@x.example")
    await before.past.close()
    hearing = Hearing(None, before.model)

    hearing.past.start()
    hearing.end("c@x.example")
    await hearing.past.close()

    assert before.found() == []


async def test_a_disk_that_fails_is_told_of_once() -> None:
    hearing = Hearing()
    hearing.past.start()
    hearing.model.fail(Fault(1, errno.EIO, forever=True))
    hearing.end("b@x.example")
    await hearing.until(lambda: "endings dropped: 1" in hearing.said)
    hearing.end("c@x.example")
    await hearing.past.close()

    assert hearing.said.count("what became of messages is not kept for `relay find`") == 1


async def test_what_comes_behind_a_failure_is_kept() -> None:
    hearing = Hearing()
    hearing.past.start()
    hearing.model.fail(Fault(1, errno.EIO))
    hearing.end("b@x.example")
    await hearing.until(lambda: "endings dropped: 1" in hearing.said)
    hearing.end("c@x.example")
    await hearing.until(hearing.found)
    hearing.model.fail(Fault(1, errno.EIO))
    hearing.end("d@x.example")
    await hearing.past.close()

    assert [each.recipient for each in hearing.found()] == ["c@x.example"]
    assert hearing.said.count("endings dropped: 1") == 2


async def test_a_disk_that_does_not_answer_fills_no_memory() -> None:
    hearing = Hearing()
    for number in range(recent_past.MOST_HEARD + 5):
        hearing.end(f"{number}@x.example")
    hearing.past.start()
    await hearing.past.close()

    kept = hearing.found()
    assert kept[0].recipient == f"{recent_past.MOST_HEARD - 1}@x.example"
    assert "the disk is too slow; endings dropped: 5" in hearing.said
