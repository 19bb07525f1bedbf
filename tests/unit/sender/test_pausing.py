"""A change of an account's state is told once, in the log, and nothing else is."""

import io
import json
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.sender.pausing import Pausing
from relay.sender.state_file import AccountFile
from relay.smtp.reply import Phase, Reply
from relay.spool.disk.durable import RealDisk
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from relay.telemetry.telemetry import Telemetry
from relay.verdicts.health import Happening
from relay.verdicts.operator_pause import FOREVER_NS, OperatorPause
from relay.verdicts.outcome import Answer, Outcome
from relay.verdicts.verdict import Verdict
from tests.fakes.clock import FakeClock


class World:
    def __init__(self, path: Path) -> None:
        self.clock, self.log = FakeClock(), io.StringIO()
        self.kept = AccountFile(path, RealDisk())
        events = Events(self.log, "json", self.clock)
        self.events = events
        self.pausing = Pausing(
            "isp",
            Telemetry(events, Metrics(self.clock), self.clock),
            self.kept,
            leaves_in_ns=lambda _span_ns: None,
            on_refused=lambda _answer: None,
            on_change=lambda _availability: None,
        )

    def do(self, word: str) -> None:
        pausing = self.pausing
        match word:
            case "pause" | "stop":
                code = 421 if word == "pause" else 535
                pausing.rest(Answer(Verdict(word), Phase.MAIL, Reply(code, None, "no"), f"{code} no"))
            case "proof":
                pausing.observe(
                    Outcome((Answer(Verdict.RELAYED, Phase.EOD, Reply(250, None, "ok"), "250 ok"),))
                )
            case "later":
                self.clock.advance(7200 * SECOND_NS)
                pausing.until_ns(self.clock.boottime_ns())
            case "word":
                pausing.apply(Happening.KEEP, pause=OperatorPause(FOREVER_NS, "anna", 0))
            case "resume":
                pausing.end()
            case "edit":
                pausing.end(Happening.EDIT)
            case "fault":
                until_ns = self.clock.boottime_ns() + 60 * SECOND_NS
                pausing.apply(Happening.FAULT, text="damaged", until_ns=until_ns)
            case "sound":
                pausing.trust_history()

    def told(self) -> list[str]:
        self.events.flush()
        text = self.log.getvalue()
        self.log.seek(0)
        self.log.truncate()
        return [json.loads(line)["event"].removeprefix("upstream_") for line in text.splitlines()]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("pause later proof", [["paused"], ["proving"], ["resumed"]]),
        ("pause later pause", [["paused"], ["proving"], ["paused"]]),
        ("stop pause stop", [["stopped"], [], []]),
        ("stop proof resume proof", [["stopped"], [], ["proving"], ["resumed"]]),
        ("word resume", [["operator_paused"], ["operator_pause_ended", "proving"]]),
        ("word pause edit resume", [["operator_paused"], ["paused"], ["proving"], ["operator_pause_ended"]]),
        ("fault fault sound proof", [["stopped"], [], ["proving"], ["resumed"]]),
        ("pause later fault sound", [["paused"], ["proving"], ["stopped"], ["proving"]]),
        ("pause fault later sound", [["paused"], [], [], ["proving"]]),
        ("proof edit later", [[], [], []]),
    ],
)
async def test_a_change_is_told_and_nothing_else(tmp_path: Path, words: str, told: list[list[str]]) -> None:
    world, each = World(tmp_path / "pause"), []
    for word in words.split():
        world.do(word)
        each.append(world.told())

    assert each == told
    # What a start would go on with is what there is.
    assert await world.kept.written() == ""
    record = world.kept.load()
    assert (record is not None) == any(told)
    assert record is None or record.state == world.pausing.state
