"""What the spool says of a message to whoever queues it, and estimates when it goes."""

from dataclasses import replace

import pytest

from relay.mail.dsn import NO_REQUEST, NOTHING_ASKED, DsnRequest, Notify, RecipientRequest
from relay.mail.envelope import QueueId, Shape
from relay.queue.routes import WHOLE, Part, Route
from relay.spool.interface import MOST_RUNS, Entry, Message, Status, runs
from tests.engines.spool.engine import ENVELOPE

ISP, SES = Route(("isp",)), Route(("ses",))


def entry_of(statuses: str, parts: tuple[Part, ...] = (WHOLE,), dsn: DsnRequest = NOTHING_ASKED) -> Entry:
    """Return the entry of a message to x@a.example, y@b.example and z@b.example."""
    envelope = replace(ENVELOPE, recipients=("x@a.example", "y@b.example", "z@b.example"), dsn=dsn)
    marks = tuple(Status(mark.encode()) for mark in statuses)
    shape = Shape(1, eight_bit=False, smtputf8=False)
    return Message(QueueId("0" * 16), envelope, shape, marks, False, False, None, parts=parts).entry


def test_recipients_in_a_row_of_one_domain_are_one_run() -> None:
    assert runs(["a@x.example", "b@X.example", "c@y.example"]) == (("@x.example", 2), ("@y.example", 1))


def test_what_follows_the_last_run_counts_to_it() -> None:
    found = runs(f"a@{number}.example" for number in range(MOST_RUNS + 2))

    assert (len(found), found[-1]) == (MOST_RUNS, (f"@{MOST_RUNS - 1}.example", 3))


def test_an_entry_has_parts_while_recipients_of_several_are_left() -> None:
    parts = Part(ISP, frozenset({0, 2})), Part(SES, frozenset({1}))

    two, one = entry_of("TTD", parts), entry_of("TDT", parts)

    assert [(each.part, each.recipients_left, each.left.shown) for each in two.parts] == [
        (parts[0], 1, ("x@a.example",)),
        (parts[1], 1, ("y@b.example",)),
    ]
    assert [each.left.domains for each in two.parts] == [(("@a.example", 1),), (("@b.example", 1),)]
    assert two.whole == WHOLE
    assert (one.parts, one.whole) == ((), Part(ISP))
    assert one.recipients_shown == ("x@a.example", "z@b.example")


@pytest.mark.parametrize(
    ("statuses", "asked", "warns"),
    [
        ("TTT", (), True),
        ("DDD", (), False),
        ("TTT", (Notify.NEVER, Notify.FAILURE, Notify.SUCCESS), False),
        ("TTT", (Notify.NEVER, Notify.FAILURE, Notify.DELAY), True),
        ("TTD", (Notify.NEVER, Notify.FAILURE, Notify.DELAY), False),
        ("TTT", (Notify.NEVER, None, Notify.NEVER), True),
    ],
)
def test_a_delay_is_told_if_asked_of_any_who_is_left(
    statuses: str, asked: tuple[Notify | None, ...], *, warns: bool
) -> None:
    requests = tuple(NO_REQUEST if each is None else RecipientRequest(each) for each in asked)

    assert entry_of(statuses, dsn=DsnRequest(recipients=requests)).warns is warns
