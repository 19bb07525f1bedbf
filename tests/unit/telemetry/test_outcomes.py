"""The store of recent outcomes is bounded in size and in time, and its troubles stop no mail."""

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.clock import SECOND_NS
from relay.mail.address import parse_search
from relay.mail.envelope import Envelope, QueueId, Shape
from relay.mail.header import Names
from relay.policy.model import RecentSettings
from relay.smtp.reply import Phase
from relay.spool.disk.durable import RealDisk
from relay.spool.interface import Message, Status
from relay.telemetry.events import Delays, Events, Subject, Via
from relay.telemetry.metrics import Metrics, Telemetry
from relay.telemetry.outcomes import (
    OutcomeStore,
    PastOutcome,
    found,
    outcomes_folder,
    past_outcomes,
)
from relay.verdicts.decision import Fate
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict
from tests.fakes.clock import FakeClock

PATIENCE_SECONDS = 120.0
DAY_NS = 86_400 * SECOND_NS
WEEK = RecentSettings.model_validate({"keep": "7d", "most": "1M"})


def a_subject(number: int = 1, recipient: str = "b@x.example") -> Subject:
    names = Names(f"<{number}@here.example>", f"Report {number}", f"4X{number}")
    envelope = Envelope("a@here.example", (recipient,), 1, "unknown[192.0.2.1]", "here", "ESMTP")
    queue_id, shape = QueueId(f"{number:016}"), Shape(1000, eight_bit=False, smtputf8=False)
    message = Message(queue_id, envelope, shape, (Status.TODO,), content=b"not kept")
    return Subject(message, names, "lists")


class Hearing:
    """An outcome store beside a spool, and the events that it hears."""

    def __init__(self, folder: Path, clock: FakeClock | None = None) -> None:
        self.spool = str(folder / "spool")
        self.folder = Path(outcomes_folder(self.spool))
        self.log, self.clock = io.StringIO(), clock or FakeClock()
        self.events = Events(self.log, "text", self.clock)
        telemetry = Telemetry(self.events, Metrics(), self.clock)
        self.store = OutcomeStore(self.spool, WEEK, RealDisk(), telemetry)

    def end(self, recipient: str, fate: Fate = Fate.RELAYED) -> None:
        self.events.delivery(
            a_subject(recipient=recipient),
            0,
            fate,
            Answer(Verdict.RELAYED, Phase.EOD, None, "250 2.0.0 Ok", own_status="2.0.0"),
            delays=Delays(),
            via=Via("isp", "smtp.test[192.0.2.1]:587", 1, None),
        )

    async def write(self) -> None:
        """Write the outcomes that the store heard, and stop."""
        self.store.start()
        await self.store.close()

    def found(self, text: str = "example", since_ns: int = 0) -> list[PastOutcome]:
        with past_outcomes(self.spool) as past:
            return list(found(past, parse_search(text), since_ns))

    def recipients(self) -> list[str]:
        return [each.recipient for each in self.found()]

    @property
    def said(self) -> str:
        return self.log.getvalue()

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():  # noqa: ASYNC110 - the store tells nobody that it has written
                await asyncio.sleep(0)


async def test_final_outcomes_are_kept_with_their_reply_and_deferrals_are_not(tmp_path: Path) -> None:
    hearing = Hearing(tmp_path)
    hearing.end("before@the.start.example")
    hearing.store.start()
    hearing.end("b@x.example")
    hearing.end("later@x.example", Fate.DEFERRED)
    hearing.end("no@x.example", Fate.BOUNCED)
    fields = {"queue_id": "2", "message_id": None, "reverse_path": "", "recipient": "gone@x.example"}
    hearing.events.tell("recipient_deleted", a_subject(2), **fields)
    hearing.events.tell("removed", queue_id="1")
    await hearing.store.close()

    kept = hearing.found()
    assert [(each.recipient, each.became, each.reply) for each in kept] == [
        ("gone@x.example", "deleted", ""),
        ("no@x.example", "bounced", "250 2.0.0 Ok"),
        ("b@x.example", "relayed", "250 2.0.0 Ok"),
        ("before@the.start.example", "relayed", "250 2.0.0 Ok"),
    ]
    envelope = "0000000000000001", "a@here.example", "b@x.example", "relayed", "isp"
    reply = "smtp.test[192.0.2.1]:587", "2.0.0", "250 2.0.0 Ok"
    names = "<1@here.example>", "Report 1", "4X1", "unknown[192.0.2.1]", "lists", 1000
    assert kept[2] == (hearing.clock.wall_ns(), *envelope, *reply, *names)
    assert hearing.events.take_lines_lost() == 0


async def test_a_store_that_is_switched_off_keeps_nothing_and_removes_what_it_kept(tmp_path: Path) -> None:
    hearing = Hearing(tmp_path)
    hearing.store.start()
    hearing.end("b@x.example")
    await hearing.until(hearing.found)
    # No write-ahead log: its index is mapped into memory, and a full disk would mean SIGBUS.
    assert {path.name for path in hearing.folder.iterdir()} == {"outcomes", "outcomes-journal"}

    hearing.store.use(None)
    hearing.end("c@x.example")
    await hearing.until(lambda: not any(hearing.folder.iterdir()))
    hearing.store.use(WEEK)
    hearing.end("d@x.example")
    await hearing.store.close()

    assert hearing.recipients() == ["d@x.example"]


async def test_the_store_has_a_maximum_size_and_drops_the_oldest_first(tmp_path: Path) -> None:
    hearing = Hearing(tmp_path)
    for number in range(6000):
        hearing.end(f"{number}@x.example")
    await hearing.write()

    kept = hearing.recipients()
    assert kept == [f"{number}@x.example" for number in range(5999, 5999 - len(kept), -1)]
    assert 1000 < len(kept) < 6000
    assert sum(path.stat().st_size for path in hearing.folder.iterdir()) <= 1024 * 1024


async def test_outcomes_that_are_too_old_or_from_the_future_are_removed(tmp_path: Path) -> None:
    clock = FakeClock()
    ahead = FakeClock()
    ahead.step_wall(365 * DAY_NS)
    for each in (Hearing(tmp_path, ahead), Hearing(tmp_path, clock)):
        each.end("old@x.example")
        await each.write()
    clock.advance(7 * DAY_NS + 1)
    hearing = Hearing(tmp_path, clock)
    hearing.end("b@x.example")
    await hearing.write()

    assert hearing.recipients() == ["b@x.example"]


@pytest.mark.parametrize("damage", [b"x" * 20_000, b"SQLite format 3\0" + b"\1" * 9000])
async def test_a_damaged_database_is_logged_once_and_replaced(tmp_path: Path, damage: bytes) -> None:
    hearing = Hearing(tmp_path)
    hearing.folder.mkdir()
    (hearing.folder / "outcomes").write_bytes(damage)
    hearing.end("b@x.example")
    hearing.store.start()
    await hearing.until(lambda: "outcomes dropped: 1" in hearing.said)
    hearing.end("c@x.example")
    await hearing.store.close()

    assert hearing.recipients() == ["c@x.example"]
    assert hearing.said.count("outcomes are not recorded") == 1
