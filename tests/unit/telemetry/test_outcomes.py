"""What is kept of what became of messages: bounded, for a while, and none of it is anybody's trouble."""

import asyncio
import io
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from relay.clock import SECOND_NS
from relay.mail.envelope import Envelope, QueueId, Shape
from relay.mail.header import Names
from relay.mail.sought import sought
from relay.policy.model import RecentSettings
from relay.smtp.reply import Phase
from relay.spool.disk.durable import RealDisk
from relay.spool.interface import Message, Status
from relay.status.filters import USAGE_KEYS
from relay.telemetry.events import Delays, Events, Subject, Via
from relay.telemetry.metrics import Metrics, Telemetry
from relay.telemetry.outcomes import (
    OutcomeStore,
    PastOutcome,
    RelayedBy,
    found,
    outcomes_folder,
    past_outcomes,
    usage,
)
from relay.verdicts.decision import Fate
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict
from tests.fakes.clock import FakeClock

PATIENCE_SECONDS = 120.0
DAY_NS = 86_400 * SECOND_NS


WEEK = RecentSettings.model_validate({"keep": "7d", "most": "1M"})


def a_subject(
    number: int = 1, sender: str = "a@here.example", client: str = "unknown[192.0.2.1]", lane: str = "lists"
) -> Subject:
    names = Names(f"<{number}@here.example>", f"Report {number}", f"4X{number}")
    envelope = Envelope(sender, ("b@x.example",), 1, client, "here", "ESMTP")
    queue_id, shape = QueueId(f"{number:016}"), Shape(1000, eight_bit=False, smtputf8=False)
    message = Message(queue_id, envelope, shape, (Status.TODO,), content=b"not kept")
    return Subject(message, names, lane)


class Hearing:
    """A store beside a spool, and the log that it hears."""

    def __init__(
        self, folder: Path, bounds: RecentSettings | None = WEEK, clock: FakeClock | None = None
    ) -> None:
        self.spool = str(folder / "spool")
        self.folder = Path(outcomes_folder(self.spool))
        self.log, self.clock = io.StringIO(), clock or FakeClock()
        self.events = Events(self.log, "text", self.clock)
        telemetry = Telemetry(self.events, Metrics(self.clock), self.clock)
        self.store = OutcomeStore(self.spool, bounds, RealDisk(), telemetry)

    def end(
        self,
        recipient: str,
        fate: Fate = Fate.RELAYED,
        *,
        subject: Subject | None = None,
        upstream: str = "isp",
    ) -> None:
        subject = subject or a_subject()
        message = subject.message
        self.events.delivery(
            queue_id=message.queue_id,
            reverse_path=message.envelope.reverse_path,
            recipient=recipient,
            fate=fate,
            answer=Answer(Verdict.RELAYED, Phase.EOD, None, "250 2.0.0 Ok", own_status="2.0.0"),
            delays=Delays(),
            via=Via(upstream, "smtp.test[192.0.2.1]:587", 1, None),
            subject=subject,
        )

    async def write(self) -> None:
        """Write what was heard, and stop."""
        self.store.start()
        await self.store.close()

    def found(self, text: str = "example", since_ns: int = 0) -> list[PastOutcome]:
        with past_outcomes(self.spool) as past:
            return list(found(past, sought(text), since_ns))

    def recipients(self) -> list[str]:
        return [each.recipient for each in self.found()]

    @property
    def said(self) -> str:
        self.events.flush()
        return self.log.getvalue()

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                self.events.flush()
                await asyncio.sleep(0)


async def test_what_ended_is_kept_with_its_reply_and_what_did_not_is_not(tmp_path: Path) -> None:
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


async def test_switched_off_it_keeps_nothing_and_removes_what_was_kept(tmp_path: Path) -> None:
    hearing = Hearing(tmp_path)
    hearing.store.start()
    hearing.end("b@x.example")
    await hearing.until(hearing.found)

    hearing.store.use(None)
    hearing.end("c@x.example")
    await hearing.until(lambda: not any(hearing.folder.iterdir()))
    hearing.store.use(WEEK)
    hearing.end("d@x.example")
    await hearing.store.close()

    assert hearing.recipients() == ["d@x.example"]


async def test_it_has_so_many_octets_at_most_and_the_oldest_goes_first(tmp_path: Path) -> None:
    hearing = Hearing(tmp_path)
    for number in range(6000):
        hearing.end(f"{number}@x.example")
    await hearing.write()

    kept = hearing.recipients()
    assert kept == [f"{number}@x.example" for number in range(5999, 5999 - len(kept), -1)]
    assert 1000 < len(kept) < 6000
    assert sum(path.stat().st_size for path in hearing.folder.iterdir()) <= 1024 * 1024


async def test_what_is_too_old_goes_and_so_does_what_a_clock_that_was_ahead_wrote(tmp_path: Path) -> None:
    clock = FakeClock()
    ahead = FakeClock()
    ahead.step_wall(365 * DAY_NS)
    for each in (Hearing(tmp_path, clock=ahead), Hearing(tmp_path, clock=clock)):
        each.end("old@x.example")
        await each.write()
    clock.advance(7 * DAY_NS + 1)
    hearing = Hearing(tmp_path, clock=clock)
    hearing.end("b@x.example")
    await hearing.write()

    assert hearing.recipients() == ["b@x.example"]


@pytest.mark.parametrize("damage", [b"x" * 20_000, b"SQLite format 3\0" + b"\1" * 9000])
async def test_a_damaged_database_is_told_of_once_and_begun_anew(tmp_path: Path, damage: bytes) -> None:
    hearing = Hearing(tmp_path)
    hearing.folder.mkdir()
    (hearing.folder / "outcomes").write_bytes(damage)
    hearing.end("b@x.example")
    hearing.store.start()
    await hearing.until(lambda: "outcomes dropped: 1" in hearing.said)
    hearing.end("c@x.example")
    await hearing.store.close()

    assert hearing.recipients() == ["c@x.example"]
    assert hearing.said.count("what became of messages is not kept") == 1


def killed_while_it_wrote(folder: Path) -> None:
    """Make a database of one outcome, as a kill in the middle of the next transaction leaves it."""
    folder.mkdir(exist_ok=True)
    (made := folder / "made").mkdir()
    with closing(sqlite3.connect(made / "outcomes")) as database:
        database.execute("PRAGMA journal_mode = TRUNCATE")
        database.execute("PRAGMA cache_size = 1")
        database.execute(f"CREATE TABLE outcome ({', '.join(PastOutcome._fields)})")
        row = PastOutcome(FakeClock().wall_ns(), "1", "a@x.example", "before@x.example", "relayed")
        insert = f"INSERT INTO outcome VALUES ({', '.join('?' * len(row))})"
        database.execute(insert, row)
        database.commit()
        database.executemany(insert, [row._replace(recipient="torn@x.example", reply="no" * 500)] * 100)
        for name in ("outcomes", "outcomes-journal"):
            if (made / name).exists():
                shutil.copy(made / name, folder)
    shutil.rmtree(made)


def mapped_files() -> str:
    return Path("/proc/self/maps").read_text()


async def test_no_file_is_mapped_into_memory_where_a_full_disk_would_be_a_bus_error(tmp_path: Path) -> None:
    hearing = Hearing(tmp_path)
    killed_while_it_wrote(hearing.folder)
    assert hearing.recipients() == ["before@x.example"]
    killed_while_it_wrote(hearing.folder)
    hearing.end("b@x.example")
    hearing.store.start()
    await hearing.until(lambda: b"b@x.example" in (hearing.folder / "outcomes").read_bytes())
    with past_outcomes(hearing.spool) as past:
        assert past.execute("SELECT count(*) FROM outcome").fetchone() == (2,)
        assert str(hearing.folder / "outcomes-") not in mapped_files()
    await hearing.store.close()

    assert hearing.recipients() == ["b@x.example", "before@x.example"]


async def test_usage_is_what_an_upstream_took_by_sender_client_and_lane(tmp_path: Path) -> None:
    hearing = Hearing(tmp_path)
    hearing.end("old@x.example")
    hearing.clock.advance(3600 * SECOND_NS)
    for number in range(3):
        verp = f"list-return-7-b{number}=x.example@here.example"
        hearing.end(f"b{number}@x.example", subject=a_subject(10 + number, sender=verp))
    alone = a_subject(20, sender="Ann@here.example", client="unknown[192.0.2.9]", lane="default")
    for recipient in ("c@x.example", "d@x.example"):
        hearing.end(recipient, subject=alone)
    hearing.end("e@x.example", Fate.BOUNCED, subject=alone)
    hearing.end("f@x.example", subject=alone, upstream="other")
    await hearing.write()

    since_ns = hearing.clock.wall_ns() - 3600 * SECOND_NS
    with past_outcomes(hearing.spool) as past:
        for key, first, second in (
            ("sender", "list-return-7@here.example", "ann@here.example"),
            ("client", "unknown[192.0.2.1]", "unknown[192.0.2.9]"),
            ("lane", "lists", "default"),
        ):
            found_now = usage(past, USAGE_KEYS[key], "isp", since_ns)
            assert found_now == [RelayedBy(first, 3, 3, 3000), RelayedBy(second, 1, 2, 1000)]
    assert (hearing.folder / "outcomes").stat().st_mode & 0o777 == 0o600
