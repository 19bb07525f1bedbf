"""The log: every event in all styles, nothing foreign in its shape, and never an exception."""

import functools
import io
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.mail.envelope import Envelope, QueueId, Shape
from relay.mail.header import Names
from relay.smtp.reply import Phase, Reply
from relay.spool.interface import Message
from relay.telemetry.event_table import KINDS, Level
from relay.telemetry.events import Delays, Events, LogStyle, Subject, Via
from relay.verdicts.decision import Fate
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict
from tests.fakes.clock import FakeClock

ID = QueueId("0123456789abcdef")
NOW = "2025-10-09T08:53:20.000Z"


def an_envelope(*, reverse_path: str = "list@example.org", user: str | None = None) -> Envelope:
    return Envelope(
        reverse_path, ("a@x", "b@y"), 0, "mail.example[192.0.2.1]", "mail.example", "ESMTPSA", user
    )


def an_answer(text: str = "250 2.0.0 Ok: queued") -> Answer:
    return Answer(Verdict.RELAYED, Phase.EOD, Reply(250, "2.0.0", "2.0.0 Ok: queued"), text)


def events_on(
    stream: io.StringIO,
    style: LogStyle = "text",
    *,
    level: Level = Level.DEBUG,
) -> Events:
    return Events(stream, style, FakeClock(), level=level, hostname="mx")


def a_subject(message_id: str) -> Subject:
    message = Message(ID, an_envelope(), Shape(1, eight_bit=False, smtputf8=False), ())
    return Subject(message, Names(message_id))


def relayed(
    events: Events,
    *,
    recipient: str = "a@x",
    text: str = "250 2.0.0 Ok: queued",
    message_id: str | None = None,
) -> None:
    events.delivery(
        queue_id=ID,
        reverse_path="s@x",
        recipient=recipient,
        fate=Fate.RELAYED,
        answer=an_answer(text),
        delays=Delays(50_000_000, 0, 30_000_000, 1_040_000_000),
        via=Via("isp", "smtp.example.net[192.0.2.7]:587", 3, "TLSv1.3"),
        subject=None if message_id is None else a_subject(message_id),
    )


@functools.cache
def parameters_of(name: str) -> list[tuple[str, bool]]:
    """Return the parameters of a method, and whether each is a number."""
    hints = get_type_hints(getattr(Events, name))
    return [
        (parameter, hints[parameter] in (int, int | None)) for parameter in hints if parameter != "return"
    ]


def tell_everything(events: Events, foreign: str) -> None:
    """Call every method, with foreign text wherever a text goes."""
    values: dict[str, object] = {
        "subject": a_subject(foreign),
        "envelope": Envelope(foreign, (foreign,), 0, foreign, foreign, foreign, foreign),
        "answer": an_answer(foreign),
        "fate": Fate.DEFERRED,
        "delays": Delays(1, 2, 3, 4),
        "via": Via(foreign, foreign, 7, foreign),
        "counts": {"messages": 3},
        "faults": [foreign],
        "keys": [foreign],
        "changes": [foreign],
        "error": foreign,
    }
    for name in KINDS:
        method = getattr(events, name)
        arguments = {
            parameter: values.get(parameter, 7 if is_number else foreign)
            for parameter, is_number in parameters_of(name)
        }
        if name == "fault":
            arguments["error"] = ValueError(foreign)
        method(**arguments)


def lines_of(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def said(act: Callable[[Events], None]) -> list[str]:
    """Return what an event is as text, without time, host and pid, and the event's name."""
    stream = io.StringIO()
    act(events_on(stream))
    beginning = f"{NOW} mx relay[{os.getpid()}]: "
    assert all(line.startswith(beginning) for line in lines_of(stream))
    return [line.removeprefix(beginning).rpartition(" event=")[0] for line in lines_of(stream)]


def test_a_delivery_line_has_the_fields_of_postfix_in_its_order() -> None:
    assert said(relayed) == [
        (
            f"{ID}: to=<a@x>, relay=smtp.example.net[192.0.2.7]:587, conn_use=3, delay=1.1, "
            "delays=0.05/0/0.03/1, tls=TLSv1.3, dsn=2.0.0, status=sent (250 2.0.0 Ok: queued)"
        )
    ]


def test_an_accepted_message_is_one_line() -> None:
    def act(events: Events) -> None:
        events.accepted(
            listener="127.0.0.1:2525",
            queue_id=ID,
            envelope=an_envelope(user="ann"),
            message_id=None,
            size_bytes=1234,
            commit_ns=5,
        )

    assert said(act) == [
        (
            f"{ID}: from=<list@example.org>, size=1234, nrcpt=2, client=mail.example[192.0.2.1], "
            "helo=<mail.example>, proto=ESMTPSA, sasl_username=ann"
        )
    ]


def test_as_text_a_line_that_settles_ends_with_the_message_id() -> None:
    def act(events: Events) -> None:
        relayed(events, message_id="<1@x>")
        relayed(events)
        events.deleted(queue_id=ID, message_id="<1@x>", nrcpt=2)

    with_id, without, deleted = said(act)
    assert with_id.endswith("status=sent (250 2.0.0 Ok: queued), message-id=<1@x>")
    assert without.endswith("status=sent (250 2.0.0 Ok: queued)")
    assert deleted == f"{ID}: deleted by the operator, recipients left: 2, message-id=<1@x>"


def test_each_fault_of_a_policy_is_a_line_and_no_fault_is_none() -> None:
    def act(events: Events) -> None:
        events.policy_refused(
            path="policy.yaml", faults=["policy.yaml:1:1: spool: missing", "policy.yaml:2:1: x"]
        )

    assert len(said(act)) == 2


def test_json_is_one_object_with_the_documented_keys() -> None:
    stream = io.StringIO()
    relayed(events_on(stream, "json"))

    (line,) = lines_of(stream)
    told = json.loads(line)

    assert (told["time"], told["event"], told["level"]) == (NOW, "delivery", "info")
    assert (told["delay_seconds"], told["delays_seconds"]) == (1.12, [0.05, 0.0, 0.03, 1.04])
    assert (told["status"], told["command"], told["code"], told["dsn"]) == ("relayed", ".", 250, "2.0.0")


def test_every_event_has_exactly_the_fields_of_its_row() -> None:
    stream = io.StringIO()
    tell_everything(events_on(stream, "json"), "x")

    told = {entry["event"]: entry for entry in map(json.loads, lines_of(stream))}

    assert set(told) == set(KINDS)
    for name, kind in KINDS.items():
        assert set(told[name]) == {"time", "event", "level", *kind.fields}, name


@given(st.text(max_size=50))
def test_no_foreign_text_adds_a_line_or_steers_a_terminal(foreign: str) -> None:
    stream = io.StringIO()
    events = events_on(stream)
    tell_everything(events, foreign)

    *lines, end = stream.getvalue().split("\n")
    assert ([line.rpartition(" event=")[2] for line in lines], end) == (list(KINDS), "")
    assert all(line.isprintable() for line in lines)
    assert events.lines_lost == 0


@example("\x7f\x9b\u202e\ud800")
@given(st.text(max_size=50))
def test_no_foreign_text_breaks_json(foreign: str) -> None:
    stream = io.StringIO()
    tell_everything(events_on(stream, "json"), foreign)

    lines = stream.getvalue().split("\n")

    assert [json.loads(line)["event"] for line in lines[:-1]] == list(KINDS)
    assert all(line.isascii() and line.isprintable() for line in lines)


class ClosedStream(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_stream_that_is_gone_costs_lines_and_nothing_else(style: LogStyle) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (ClosedStream(), closed):
        events = events_on(stream, style)
        tell_everything(events, "x")
        assert events.lines_lost >= len(KINDS)


def test_a_flood_of_refusals_is_a_hundred_lines_and_a_number() -> None:
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

    told = [json.loads(line) for line in lines_of(stream)]
    runs = [(name, len(list(each))) for name, each in itertools.groupby(line["event"] for line in told)]
    assert runs == [
        ("refused", 100), ("refusals_untold", 1), ("refused", 200), ("refusals_untold", 1),
    ]  # fmt: skip
    assert [line["untold"] for line in told if line["event"] == "refusals_untold"] == [900, 1]


@pytest.mark.parametrize("style", ["text", "json"])
def test_under_the_journal_a_line_begins_with_its_priority(
    style: LogStyle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "journal").open("w+") as stream:
        status = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        events = Events(stream, style, FakeClock())
        events.removed(queue_id=ID)
        events.spool_failed(error="EIO")
        stream.seek(0)
        first, second = stream.read().splitlines()

    assert first.startswith("<6>")
    assert second.startswith("<3>")
    if style == "text":
        assert first == f"<6>{ID}: removed event=removed"
