"""The log: every event in both styles.  Foreign text shapes no line, and a call never raises or waits."""

import ast
import contextlib
import io
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import relay
from relay.clock import SECOND_NS
from relay.mail.envelope import Envelope, QueueId, Shape
from relay.mail.header import Names
from relay.smtp.reply import Phase, Reply
from relay.spool.interface import Message
from relay.telemetry.events import KINDS, Delays, Events, Level, LogStyle, Subject, Via
from relay.telemetry.stderr import LogStream
from relay.verdicts.decision import Fate
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict
from tests.fakes.clock import FakeClock
from tests.unit.telemetry.page import fields_of, shown_fields

ID = QueueId("0123456789abcdef")
NOW = "2025-10-09T08:53:20.000Z"


def events_on(stream: io.StringIO, style: LogStyle = "text") -> Events:
    return Events(stream, style, FakeClock(), level=Level.DEBUG, hostname="mx")


def relayed(events: Events, message_id: str | None = None) -> None:
    envelope = Envelope("s@x", ("a@x",), 0, "c", "h", "ESMTP")
    message = Message(ID, envelope, Shape(1, eight_bit=False, smtputf8=False), ())
    events.delivery(
        queue_id=ID,
        reverse_path="s@x",
        recipient="a@x",
        fate=Fate.RELAYED,
        answer=Answer(
            Verdict.RELAYED, Phase.EOD, Reply(250, "2.0.0", "2.0.0 Ok: queued"), "250 2.0.0 Ok: queued"
        ),
        delays=Delays(50_000_000, 0, 30_000_000, 1_040_000_000),
        via=Via("isp", "smtp.example.net[192.0.2.7]:587", 3, "TLSv1.3"),
        subject=Subject(message, Names(message_id)),
    )


def tell(events: Events, foreign: str, names: Iterable[str] = KINDS) -> None:
    """Log these events with the text `foreign` in each field."""
    for name in names:
        kind = KINDS[name]
        if name == "delivery":
            relayed(events, foreign)
        else:
            fields = dict.fromkeys((*kind.only_json.split(), *shown_fields(kind)), foreign)
            events.tell(name, **fields)


def lines_of(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def _calls() -> Iterator[tuple[str, list[ast.keyword]]]:
    """Yield the name of the event and the fields of each call of `tell` in relay/."""
    texts = [path.read_text() for path in Path(relay.__file__).parent.rglob("*.py")]
    for text in (each for each in texts if ".tell(" in each):
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(ast.Attribute(attr="tell"), [ast.Constant(str(name)), *_], fields):
                    yield name, fields
                case ast.Call(ast.Attribute(attr="tell"), [ast.JoinedStr([_, end]), *_], fields):
                    # Such as f"{kind}_published": all events with that ending.
                    yield from ((name, fields) for name in KINDS if name.endswith(ast.literal_eval(end)))


def _written(field: str) -> str:
    if field.endswith("_at_ns"):
        return field.removesuffix("_ns")
    return field.removesuffix("ns") + "seconds" if field.endswith("_ns") else field


def test_each_event_is_logged_with_the_fields_of_its_row() -> None:
    """A log call never raises, so nothing else would notice a missing field."""
    told = set()
    for name, keywords in _calls():
        fields = {_written(each.arg) for each in keywords if each.arg and each.arg[0] != "_"}
        assert fields == fields_of(KINDS[name]), name
        told.add(name)
    by_a_table = {"held", "released", "retried"}
    assert told | by_a_table == set(KINDS)


def test_a_delivery_line_has_the_fields_of_postfix_and_in_json_the_documented_keys() -> None:
    stream = io.StringIO()
    relayed(events_on(stream))
    relayed(events_on(stream), "<1@x>")

    line = (
        f"{NOW} mx relay[{os.getpid()}]: {ID}: to=<a@x>, relay=smtp.example.net[192.0.2.7]:587, conn_use=3, "
        "delay=1.1, delays=0.05/0/0.03/1, tls=TLSv1.3, dsn=2.0.0, status=sent (250 2.0.0 Ok: queued)"
    )
    assert lines_of(stream) == [f"{line} event=delivery", f"{line}, message-id=<1@x> event=delivery"]
    stream = io.StringIO()
    relayed(events_on(stream, "json"))
    told = json.loads(stream.getvalue())
    assert set(told) == {"time", "event", "level", *fields_of(KINDS["delivery"])}
    assert (told["time"], told["event"], told["level"]) == (NOW, "delivery", "info")
    assert (told["delay_seconds"], told["delays_seconds"]) == (1.12, [0.05, 0.0, 0.03, 1.04])
    assert (told["status"], told["command"], told["code"], told["dsn"]) == ("relayed", ".", 250, "2.0.0")


@pytest.mark.parametrize("style", ["text", "json"])
@example("\x7f\x9b\u202e\ud800\r\n\x1b[2J", [*KINDS])
@given(st.text(max_size=50), st.lists(st.sampled_from([*KINDS]), min_size=1, max_size=5))
def test_foreign_text_adds_no_line_or_terminal_escape(style: LogStyle, foreign: str, told: list[str]) -> None:
    stream = io.StringIO()
    events = events_on(stream, style)
    tell(events, foreign, told)

    *lines, end = stream.getvalue().split("\n")
    names = [
        json.loads(line)["event"] if style == "json" else line.rpartition(" event=")[2] for line in lines
    ]
    assert (names, end) == (told, "")
    assert all(line.isprintable() for line in lines)
    assert events.take_lines_lost() == 0


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_closed_stream_loses_and_counts_lines_and_raises_nothing(style: LogStyle) -> None:
    closed = io.StringIO()
    closed.close()
    events = events_on(closed, style)
    tell(events, "x")
    assert (events.take_lines_lost(), events.take_lines_lost()) == (len(KINDS), 0)


def test_a_flood_of_refusals_is_a_hundred_lines_a_second_and_a_count() -> None:
    stream, clock = io.StringIO(), FakeClock()
    events = Events(stream, "json", clock, hostname="mx")

    def refuse(times: int) -> None:
        for _ in range(times):
            events.refused(listener="l", client="c", phase="connect", reply="421 4.7.0 no", user=None)

    for times in (1000, 100):
        refuse(times)
        clock.advance(SECOND_NS)
    refuse(101)
    events.flush()
    events.flush()

    told = [json.loads(line).get("untold", "refused") for line in lines_of(stream)]
    assert told == ["refused"] * 100 + [900] + ["refused"] * 200 + [1]


@pytest.mark.parametrize("style", ["text", "json"])
def test_under_the_journal_a_line_begins_with_its_priority(
    style: LogStyle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "journal").open("w+") as stream:
        status = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        events = Events(stream, style, FakeClock())
        events.tell("removed", queue_id=ID)
        events.tell("spool_failed", error="EIO")
        stream.seek(0)
        first, second = stream.read().splitlines()

    assert first.startswith("<6>")
    assert second.startswith("<3>")
    if style == "text":
        assert first == f"<6>{ID}: removed event=removed"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for fd in (reading, writing):
        with contextlib.suppress(OSError):  # a test closed it
            os.close(fd)


def test_lines_that_nobody_reads_are_dropped_and_counted(pipe: tuple[int, int]) -> None:
    stream = LogStream(pipe[1], most_held_bytes=100_000)
    events = Events(cast("TextIO", stream), "text", FakeClock())
    for number in range(3000):
        stream.write(f"{number:099}\n")
    lost = stream.lines_lost

    with open(pipe[0], closefd=False) as reader:
        kept = [int(reader.readline()) for _ in range(3000 - lost)]
        assert stream.drain()

    assert kept == sorted(set(kept))
    assert lost > 1000
    assert events.take_lines_lost() == lost


def test_a_closed_reader_loses_and_counts_lines_and_raises_nothing(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    stream = LogStream(pipe[1])
    stream.write("one\ntwo\n")

    assert stream.drain()
    assert stream.lines_lost == 2
